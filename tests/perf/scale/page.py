"""Tables of docs/scale.md, with a row for each number of episodes."""

from collections.abc import Sequence
from pathlib import Path

from hack.tables import Section, table
from tests.perf.scale.active import Active
from tests.perf.scale.comparison import Comparison, Side

_PAGE = Path(__file__).parents[3] / "docs" / "scale.md"
_COMPARED = Section(_PAGE, "compared")
_ACTIVE = Section(_PAGE, "active")
_HEADING_COMPARED = (
    "number",
    "a second: episodes, Jobs",
    "API server and etcd, ms each",
    "operator, Job controller, ms each",
    "writes each",
    "operator, MB",
)
_HEADING_ACTIVE = (
    "active",
    "starts a second",
    "operator, ms a start",
    "idle, % of a core",
    "at 50 ends a second, % of a core",
    "MB",
    "pause of a handover, s",
    "first decision of a new leader, s",
)


def write_comparison(number: int, found: Comparison) -> None:
    """Replace the row of ``number`` episodes and Jobs, or add it."""
    ours, theirs = found.episodes, found.jobs
    row = (
        _pair(ours.number / ours.usage.seconds, theirs.number / theirs.usage.seconds, 1),
        _pair(_server(ours), _server(theirs), 1),
        _pair(ours.each(ours.usage.controller), theirs.each(theirs.usage.controller), 2),
        f"{ours.writes_each:.2f}, {theirs.writes_each:.2f}",
        f"{ours.memory:.0f}",
    )
    _replace(_COMPARED, _HEADING_COMPARED, number, row)


def write_active(number: int, found: Active) -> None:
    """Replace the row of ``number`` active episodes, or add it."""
    row = (
        f"{found.starts:.0f}",
        f"{found.start_ms:.2f}",
        f"{100 * found.idle:.1f}",
        f"{100 * found.ending:.1f}" + ("" if found.rate > 45 else f" (at {found.rate:.0f})"),
        f"{found.memory:.0f}",
        f"{found.handover:.2f}",
        f"{found.takeover:.2f}",
    )
    _replace(_ACTIVE, _HEADING_ACTIVE, number, row)


def _replace(section: Section, heading: Sequence[str], number: int, row: Sequence[str]) -> None:
    rows: dict[int, Sequence[str]] = {int(first.replace(",", "")): rest for first, *rest in section.rows()}
    rows[number] = row
    section.write(table(heading, ((f"{each:,}", *rows[each]) for each in sorted(rows))))


def _pair(ours: float, theirs: float, digits: int) -> str:
    """Format both figures and their ratio."""
    return f"{ours:.{digits}f}, {theirs:.{digits}f} ({ours / theirs:.2f} x)"


def _server(side: Side) -> float:
    return side.each(side.usage.api_server + side.usage.etcd)
