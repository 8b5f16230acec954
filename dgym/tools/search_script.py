"""Searches the files that are listed on standard input. Runs in the sandbox with any Python from 3.6 on.

Writes one JSON line per match, and one at the end, to the report descriptor. Uses only the standard library.
"""

import io
import json
import os
import re
import sys

LINE_LIMIT = 300
FILE_LIMIT = 20 * 1024 * 1024


def main() -> None:
    """Read one query from standard input and write its report."""
    question = json.loads(sys.stdin.read())
    with os.fdopen(int(os.environ["DGYM_REPORT_FD"]), "w", 1) as report:
        end = search(question["pattern"], question["paths"], question["max_results"], report)
        report.write(json.dumps(end) + "\n")


def search(pattern: str, paths: "list[str]", max_results: int, report: io.TextIOBase) -> "dict[str, object]":
    """Write ``[path, line number, line]`` for each match, and return the last line of the report."""
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    found = skipped = 0
    for path in paths:
        lines = read_lines(path)
        skipped += lines is None
        for number, line in enumerate(lines or [], 1):
            if expression.search(line) is None:
                continue
            if found == max_results:
                return {"more": True, "skipped": skipped}
            found += 1
            shown = line[:LINE_LIMIT] + (" ..." if len(line) > LINE_LIMIT else "")
            report.write(json.dumps([path, number, shown]) + "\n")
    return {"skipped": skipped}


def read_lines(path: str) -> "list[str] | None":
    """Return the lines of a text file; None if the file is a link, too large, binary or unreadable."""
    try:
        if os.path.islink(path) or os.path.getsize(path) > FILE_LIMIT:  # noqa: PTH114, PTH202 - imports must be few
            return None
        with open(path, "rb") as file:  # noqa: PTH123 - imports must be few
            data = file.read()
    except OSError:
        return None
    if b"\0" in data[:8192]:
        return None
    lines = re.split("\r\n|\r|\n", data.decode("utf-8", "replace"))
    return lines if lines[-1] else lines[:-1]


if __name__ == "__main__":
    main()
