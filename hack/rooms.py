"""Writes CONTRIBUTING.md's table of packages from the first paragraph of each package's docstring.

``python hack/rooms.py`` writes the table; ``--check`` fails with a difference when it is not what would be written.
"""

import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: written by hack/rooms.py -->\n", "<!-- /rooms -->\n"
PACKAGES = ("dgym", "operator/dgym_operator")


def rooms() -> Iterator[tuple[str, str]]:
    """Each package below ``PACKAGES`` that holds code of ours, and the first paragraph of its docstring."""
    for package in PACKAGES:
        for init in sorted((ROOT / package).rglob("__init__.py")):
            tree = ast.parse(init.read_text(encoding="utf-8"))
            path = init.parent.relative_to(ROOT).as_posix()
            if path in PACKAGES or path.startswith("dgym/benchmarks/"):
                continue
            paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            yield path, " ".join(paragraph.split()).replace("``", "`").rstrip(".:")


def table() -> str:
    """The rows as Markdown."""
    lines = [f"| `{path}` | {text} |" for path, text in rooms()]
    return "\n".join(["| package | what it is for |", "|---|---|", *lines, ""])


def main(arguments: list[str]) -> int:
    """Write or check the page; exit status 1 when a check fails."""
    written = PAGE.read_text(encoding="utf-8")
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    nameless = [path for path, text in rooms() if not text]
    if nameless:
        sys.stdout.write(f"packages without a docstring: {', '.join(nameless)}\n")
        return 1
    if "--check" not in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    difference = difflib.unified_diff(
        written.splitlines(True), wanted.splitlines(True), "CONTRIBUTING.md", "as hack/rooms.py writes it"
    )
    sys.stdout.writelines(difference)
    return int(written != wanted)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
