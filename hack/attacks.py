"""Writes docs/attacks.md's table from the results of the tests that play attacks (``make e2e-security``).

``python -m hack.attacks`` writes the table, ``--records DIRECTORY`` takes the outcomes of a run over into the results
first. ``--check`` fails when the page is not what would be written, or when catalog, markers and results disagree.
Without ``--check`` the exit status is 1 when an attack was neither stopped nor marked, or not tried where it must be.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.security.catalog import ATTACKS, FAMILIES, PLACES, Attack
from tests.security.records import RESULTS, ROOT, merge, place_of, read

PAGE = ROOT / "docs" / "attacks.md"
BEGIN, END = "<!-- attacks: written by hack/attacks.py -->\n", "<!-- /attacks -->\n"
MARKER = re.compile(r"""mark\.attack\("([a-z-]+)"\)""")
OPEN = ("not run", "skipped", "failed")
"""What a cell begins with that is no end of an attack."""


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each attack, a column for each place."""
    lines = [f"| against | what is tried | {' | '.join(PLACES)} |", "|---" * (len(PLACES) + 2) + "|"]
    for name, attack in ATTACKS.items():
        cells = (cell(attack, place, at(rows, name, place)) for place in PLACES)
        lines.append(f"| {attack.against} | {attack.tries} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def at(rows: list[dict[str, Any]], name: str, place: str) -> list[dict[str, Any]]:
    """The results of an attack in a place."""
    return [row for row in rows if (row["attack"], row["place"]) == (name, place)]


def cell(attack: Attack, place: str, rows: list[dict[str, Any]]) -> str:
    """The end of an attack in a place; empty where it need not be tried."""
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


def unfinished(rows: list[dict[str, Any]]) -> list[str]:
    """The attacks that were neither stopped nor marked, or not tried where they must be."""
    return [
        f"{name} ({place}): {text.strip('*')}"
        for name, attack in ATTACKS.items()
        for place in PLACES
        if (text := cell(attack, place, at(rows, name, place))).strip("*").startswith(OPEN)
    ]


def disagreements(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What catalog, markers and results say differently."""
    marked = {(name, place_of(module)) for module, names in markers().items() for name in names}
    for name in sorted({name for name, _ in marked} - set(ATTACKS)):
        yield f"a test is marked attack({name!r}), which is not in the catalog of attacks"
    for name, attack in ATTACKS.items():
        for place in attack.places:
            if (name, place) not in marked and name not in FAMILIES:
                yield f"the catalog has {name!r} in the place {place!r}: no test there is marked with it"
    for row in rows:
        if not (ROOT / row["module"]).is_file() or row["attack"] not in ATTACKS:
            yield f"results name {row['attack']!r} in {row['module']}, which is gone: run make e2e-security"


def markers() -> dict[str, set[str]]:
    """The attacks that the modules of tests name."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): set(MARKER.findall(path.read_text("utf-8"))) for path in paths}


def page(rows: list[dict[str, Any]]) -> str:
    """What the page ought to be."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table(rows)}{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--records", type=Path, help="the directory that DGYM_ATTACKS named")
    given = parser.parse_args(arguments)
    rows = json.loads(RESULTS.read_text("utf-8"))
    if given.records:
        rows = merge(rows, read(given.records))
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    wrong = list(disagreements(rows))
    if not given.check:
        PAGE.write_text(page(rows), "utf-8")
        wrong += unfinished(rows)
    elif PAGE.read_text("utf-8") != page(rows):
        wrong.append("docs/attacks.md is out of date: run python -m hack.attacks")
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
