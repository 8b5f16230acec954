"""Reads and replaces tables of pages that programs write, among them CONTRIBUTING.md's table of packages.

A table is between the lines ``<!-- NAME: written by PROGRAM -->`` and ``<!-- /NAME -->``. ``python hack/tables.py``
writes the table of packages from the first paragraph of each package's docstring. ``--check`` prints a diff and fails
if the table is out of date.
"""

import ast
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dgym", "operator/dgym_operator")


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    page: Path
    name: str

    def read(self) -> str:
        """Return the lines between the marks. Raises ValueError if the page lacks the marks."""
        return self._split()[1]

    def write(self, text: str) -> None:
        """Replace the lines between the marks. Raises ValueError if the page lacks the marks."""
        self.page.write_text(self.page_with(text), "utf-8")

    def page_with(self, text: str) -> str:
        """Return the page with ``text`` between the marks. Raises ValueError if the page lacks the marks."""
        before, _, after = self._split()
        return before + text + after

    def _split(self) -> tuple[str, str, str]:
        name = re.escape(self.name)
        pattern = rf"(.*<!-- {name}: written by [^\n]* -->\n)(.*)(<!-- /{name} -->\n.*)"
        found = re.fullmatch(pattern, self.page.read_text("utf-8"), re.DOTALL)
        if not found:
            raise ValueError(f"{self.page}: the marks of the section {self.name} are missing")
        return found[1], found[2], found[3]

    def rows(self) -> list[list[str]]:
        """Return the cells of each row of the table in the section, without the heading."""
        lines = self.read().splitlines()[2:]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


CATALOG = Section(ROOT / "CONTRIBUTING.md", "packages")


def packages() -> Iterator[tuple[str, str]]:
    """Yield path and first paragraph of the docstring of each package below ``PACKAGES``, except benchmark tasks."""
    for package in PACKAGES:
        for init in sorted((ROOT / package).rglob("__init__.py")):
            tree = ast.parse(init.read_text(encoding="utf-8"))
            path = init.parent.relative_to(ROOT).as_posix()
            if path in PACKAGES or path.startswith("dgym/benchmarks/"):
                continue
            paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            yield path, " ".join(paragraph.split()).replace("``", "`").rstrip(".:")


def main(arguments: list[str]) -> int:
    """Write or check the page. Return 1 if the check fails."""
    found = list(packages())
    wanted = table(("package", "what it is for"), ((f"`{path}`", text) for path, text in found))
    nameless = [path for path, text in found if not text]
    if nameless:
        sys.stdout.write(f"packages without a docstring: {', '.join(nameless)}\n")
        return 1
    if "--check" not in arguments:
        CATALOG.write(wanted)
        return 0
    written = CATALOG.read()
    difference = difflib.unified_diff(
        written.splitlines(True), wanted.splitlines(True), "CONTRIBUTING.md", "as hack/tables.py writes it"
    )
    sys.stdout.writelines(difference)
    return int(written != wanted)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
