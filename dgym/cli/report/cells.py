"""The cells that tables of reports share."""

from collections.abc import Sequence

from rich.table import Table

from dgym.cli.output import table
from dgym.results.report import TOO_FEW, Group, Interval, PassAtK, Report

EFFORT = ("Steps", "Rewrites", "Seconds")

Subject = tuple[Sequence[str], Group, tuple[PassAtK, ...]]


def subjects(report: Report) -> tuple[tuple[str, ...], list[Subject]]:
    """What a report compares: its arms, else its agents. The headings, and of each its names, figures and pass@k."""
    if report.arms:
        return ("Arm",), [([one.arm], one.figures, one.passes) for one in report.arms]
    return ("Agent", "Model"), [([one.agent, one.model], one.figures, one.passes) for one in report.agents]


def outcome_names(report: Report) -> tuple[str, ...]:
    """The columns of ``outcome``; results of before the label of integrity have no column of it."""
    return ("Resolved", *(("Clean",) if report.overall.clean is not None else ()), "Rate %", "Interval")


def outcome(report: Report, group: Group) -> list[str]:
    """The cells of ``outcome_names``."""
    resolved = f"{group.resolved}/{group.verdicts}"
    clean = ["" if group.clean is None else str(group.clean)] * (report.overall.clean is not None)
    return [resolved, *clean, *([f"{group.rate * 100:.1f}", bounds(group)] if group.verdicts else ["", ""])]


def effort(group: Group) -> list[str]:
    """The cells of ``EFFORT``: medians; empty without a verdict."""
    if not group.verdicts:
        return ["", "", ""]
    return [f"{group.steps.median:g}", f"{group.rewrites.median:g}", f"{group.seconds.median:,.1f}"]


def bounds(group: Group) -> str:
    """The interval of the rate, in percent."""
    return group.interval.percent


def interval(found: Interval | None) -> str:
    """The bounds in percent, or why there are none."""
    return TOO_FEW if found is None else found.percent


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{share * 100:.1f} %"


def points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{difference * 100:+.1f}"


def plural(number: int, word: str) -> str:
    """The word for so many."""
    return word if number == 1 else f"{word}s"


def table_of(*texts: str, numbers: Sequence[str]) -> Table:
    """A table whose columns are texts, then numbers."""
    return table((*texts, *numbers), numbers=numbers, breaking=texts)
