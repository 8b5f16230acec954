"""Writes docs/faults.md's table from the results of the fault matrix (``make e2e-faults``).

``python hack/faults.py`` writes the table; ``--check`` fails when it is not what would be written.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
RESULTS = ROOT / "tests" / "e2e" / "cluster" / "faults" / "results.json"
BEGIN, END = "<!-- matrix: written by hack/faults.py -->\n", "<!-- /matrix -->\n"
MOMENTS = (
    "before the first step",
    "during a step",
    "between steps",
    "during close",
    "after close, before release",
)


def table(cells: list[dict[str, Any]]) -> str:
    """A row for each fault, a column for each moment."""
    ends = {(cell["fault"], cell["moment"]): shown(cell) for cell in cells}
    lines = [f"| fault | {' | '.join(MOMENTS)} |", "|---" * (len(MOMENTS) + 1) + "|"]
    faults = sorted({cell["fault"] for cell in cells})
    lines += [f"| {fault} | {' | '.join(ends.get((fault, moment), '') for moment in MOMENTS)} |" for fault in faults]
    return "\n".join([*lines, ""])


def shown(cell: dict[str, Any]) -> str:
    """The end of a cell in a few words."""
    parts = [cell["reason"]]
    if cell["attempts"] != 1:
        parts.append(f"attempt {cell['attempts']}")
    parts += [
        f"{cell[kind]} {kind}"[: None if cell[kind] > 1 else -1] for kind in ("failures", "disruptions") if cell[kind]
    ]
    if cell["poisoned"]:
        parts.append(f"poisoned steps: {cell['poisoned']}")
    return ", ".join(parts) + ("" if cell["asDesigned"] else " (**not as designed**)")


def main(arguments: list[str]) -> int:
    """Write or check the page; exit status 1 when a check fails."""
    written = PAGE.read_text(encoding="utf-8")
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table(json.loads(RESULTS.read_text(encoding='utf-8')))}{END}{after}"
    if "--check" not in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
    elif written != wanted:
        sys.stdout.write("docs/faults.md is out of date: run python hack/faults.py\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
