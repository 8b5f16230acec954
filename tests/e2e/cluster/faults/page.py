"""Table of docs/faults.md: how an episode ended, with a row for each fault and a column for each moment."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hack.tables import Section, table

MATRIX = Section(Path(__file__).parents[4] / "docs" / "faults.md", "matrix")
MOMENTS = (
    "before the first step",
    "during a step",
    "between steps",
    "during close",
    "after close, before release",
)


def write(cells: Iterable[dict[str, Any]]) -> None:
    """Replace the cells that were run. The other cells are kept."""
    ends = {(fault, moment): end for fault, *row in MATRIX.rows() for moment, end in zip(MOMENTS, row, strict=True)}
    ends.update({(cell["fault"], cell["moment"]): shown(cell) for cell in cells})
    faults = sorted({fault for fault, _ in ends})
    rows = ([fault, *(ends.get((fault, moment), "") for moment in MOMENTS)] for fault in faults)
    MATRIX.write(table(("fault", *MOMENTS), rows))


def shown(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    parts = [cell["reason"]]
    if cell["attempts"] != 1:
        parts.append(f"attempt {cell['attempts']}")
    parts += [
        f"{cell[kind]} {kind}"[: None if cell[kind] > 1 else -1] for kind in ("failures", "disruptions") if cell[kind]
    ]
    if cell["poisoned"]:
        parts.append(f"poisoned steps: {cell['poisoned']}")
    return ", ".join(parts) + ("" if cell["asDesigned"] else " (**not as designed**)")
