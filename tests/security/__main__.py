"""Writes docs/attacks.md's table from the outcomes of tests that play attacks (``make e2e-security``).

``python -m tests.security --records DIRECTORY`` replaces the cells of the places where the run had attacks. The exit
status is 1 if an attack was neither stopped nor marked, or was not run in a required place. ``--check`` writes no
file. Its exit status is 1 if catalog, markers of tests and page disagree.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hack.tables import Section, table
from tests.security.catalog import ATTACKS, FAMILIES, PLACES, Attack
from tests.security.records import ROOT, place_of, read

SECTION = Section(ROOT / "docs" / "attacks.md", "attacks")
MARKER = re.compile(r"""mark\.attack\("([a-z-]+)"\)""")
OPEN = ("not run", "skipped", "failed")
"""Prefixes of cells that do not show a successful defence."""

Cells = dict[tuple[str, str], str]
"""The text of each cell, by the id of the attack and the place."""


def cell(attack: Attack, place: str, rows: list[dict[str, Any]]) -> str:
    """Return how an attack ended in a place. The text is empty if the attack need not be run there."""
    tests, failed, skipped = (sum(row[kind] for row in rows) for kind in ("tests", "failed", "skipped"))
    if failed:
        return f"**failed: {failed} of {tests}**"
    if skipped:
        return f"**skipped: {skipped} of {tests}**"
    if not tests:
        return "**not run**" if place in attack.places else ""
    runs = min(row["runs"] for row in rows)
    times = "" if runs == 1 else f", {runs} runs"
    return f"{attack.end}: {tests}{times}"


def cells_of(rows: Iterable[dict[str, Any]]) -> Cells:
    """Return the cells of all attacks in the places of the results."""
    rows = list(rows)
    places = {row["place"] for row in rows}
    return {
        (name, place): cell(attack, place, [row for row in rows if (row["attack"], row["place"]) == (name, place)])
        for name, attack in ATTACKS.items()
        for place in places
    }


def cells_of_page(rows: list[list[str]]) -> Cells:
    """Return the cells of the page's table. Attacks that the catalog no longer has are left out."""
    names = {(attack.against, attack.tries): name for name, attack in ATTACKS.items()}
    return {
        (names[against, tries], place): text
        for against, tries, *texts in rows
        if (against, tries) in names
        for place, text in zip(PLACES, texts, strict=True)
    }


def unfinished(cells: Cells) -> list[str]:
    """Return the attacks that were neither stopped nor marked, or were not run in a required place."""
    found = ((name, place, _text(cells, name, place).strip("*")) for name in ATTACKS for place in PLACES)
    return [f"{name} ({place}): {text}" for name, place, text in found if text.startswith(OPEN)]


def _text(cells: Cells, name: str, place: str) -> str:
    return cells.get((name, place)) or cell(ATTACKS[name], place, [])


def disagreements(rows: list[list[str]]) -> Iterator[str]:
    """Yield the differences between the catalog, the markers of tests and the rows of the page."""
    marked = {(name, place_of(module)) for module, names in markers().items() for name in names}
    for name in sorted({name for name, _ in marked} - set(ATTACKS)):
        yield f"a test is marked attack({name!r}), which is not in the catalog of attacks"
    for name, attack in ATTACKS.items():
        for place in attack.places:
            if (name, place) not in marked and name not in FAMILIES:
                yield f"the catalog has {name!r} in the place {place!r}: no test there is marked with it"
    if [row[:2] for row in rows] != [[attack.against, attack.tries] for attack in ATTACKS.values()]:
        yield "the rows of docs/attacks.md are not those of the catalog: run make e2e-security"


def markers() -> dict[str, set[str]]:
    """Return the attacks that each test module marks, by path."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): set(MARKER.findall(path.read_text("utf-8"))) for path in paths}


def written(cells: Cells) -> str:
    """Return the table, with a row for each attack and a column for each place."""
    rows = (
        (attack.against, attack.tries, *(_text(cells, name, place) for place in PLACES))
        for name, attack in ATTACKS.items()
    )
    return table(("against", "what is tried", *PLACES), rows)


def main(arguments: list[str]) -> int:
    """Write or check the page. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.security", description=(__doc__ or "").partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="write nothing")
    mode.add_argument("--records", type=Path, help="the directory that DGYM_ATTACKS named")
    given = parser.parse_args(arguments)
    wrong = []
    if given.records:
        cells = cells_of_page(SECTION.rows()) | cells_of(read(given.records))
        SECTION.write(written(cells))
        wrong += unfinished(cells)
    wrong += disagreements(SECTION.rows())
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
