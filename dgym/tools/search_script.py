"""Runs inside the sandbox, under any Python from 3.6 on: search the files named on standard input.

Writes a JSON line for each match and one at the end to the report descriptor. The standard library only.
"""

import io
import json
import os
import re
import sys

LINE_LIMIT = 300
FILE_LIMIT = 20 * 1024 * 1024


def main() -> None:
    """Answer one question."""
    question = json.loads(sys.stdin.read())
    with os.fdopen(int(os.environ["DGYM_REPORT_FD"]), "w", 1) as report:
        end = search(question["pattern"], question["paths"], question["max_results"], report)
        report.write(json.dumps(end) + "\n")


def search(pattern: str, paths: "list[str]", max_results: int, report: io.TextIOBase) -> "dict[str, object]":
    """Report ``[path, line number, line]`` for each match; return how the search ended."""
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
    """Lines of a text file; None for one that is not searched."""
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
