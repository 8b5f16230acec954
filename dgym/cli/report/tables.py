"""Reports for people: tables as wide as the terminal, or as they need to be in a file."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dgym.agents.console import printable
from dgym.results.report import Comparison, Difference, Group, Report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

ROWS = 100
"""Tasks listed at most; beyond that those with the lowest rates, or that differ most."""

_NAME_WIDTH = 9
"""Of a column of names at least, when the terminal is too narrow for everything."""

_NARROWEST = 80
"""Columns; a narrower terminal wraps the lines, which is better than cells that are cut."""

_OUTCOME = ("Resolved", "Rate %", "Interval")
_EFFORT = ("Steps", "Rewrites", "Seconds")
_NAMES = {"resolved": "resolve rate", "input_tokens": "input tokens", "output_tokens": "output tokens"}


def print_report(report: Report) -> None:
    """All tables of one report, then what to know about them."""
    console = _console()
    tables = (
        *(_outcomes(report), _efforts(report), _tasks(report)),
        *(_reasons(report), _tools(report), _stages(report)),
    )
    console.print(_line(_summary(report.overall)))
    for table in tables:
        if table.row_count:
            console.print()
            console.print(table)
    console.print()
    notes = [f"Intervals are Wilson's at {report.confidence * 100:g} %. Steps, rewrites and seconds are medians."]
    if report.overall.failed:
        notes.append(f"{report.overall.failed} failed without a verdict: no rate and no median counts them.")
    notes += _about_reading(report)
    if len(report.tasks) > ROWS:
        notes.append(f"{len(report.tasks) - ROWS} more tasks; --output json lists all.")
    for note in notes:
        console.print(_line(note, "dim"))


def print_comparison(a: Report, b: Report, comparison: Comparison) -> None:
    """The two runs, the tasks that differ, and whether chance alone explains it."""
    console = _console()
    for side, report in (("A", a), ("B", b)):
        agents = ", ".join(f"{group.agent} {group.model}".strip() for group in report.agents)
        console.print(_line(f"{side}: {agents}: {_summary(report.overall)}"))
    for table in (_differences(comparison.differences), _pairs(comparison)):
        if table.row_count:
            console.print()
            console.print(table)
    console.print()
    console.print(_line(_test(comparison)))
    for note in _about_pairs(a, b, comparison):
        console.print(_line(note, "dim"))


def _summary(group: Group) -> str:
    """The sentence that a report begins with."""
    text = f"{group.resolved} of {group.verdicts} resolved: {_percent(group.rate)} ({_bounds(group)} %)"
    text += f", pass@1 {_percent(group.pass_at_1)}"
    if group.failed:
        text += f", {group.failed} failed"
    return text if group.cost is None else f"{text}, cost {group.cost:,.2f}"


def _outcomes(report: Report) -> "Table":
    table = _table("Agent", "Model", numbers=(*_OUTCOME, "pass@1 %"))
    for one in report.agents:
        _add(table, [one.agent, one.model, *_outcome(one.figures), f"{one.figures.pass_at_1 * 100:.1f}"])
    return table


def _efforts(report: Report) -> "Table":
    tokens = bool(report.overall.input_tokens.total or report.overall.output_tokens.total)
    cost = any(one.figures.cost is not None for one in report.agents)
    more = ("Tokens in", "Tokens out") if tokens else ()
    table = _table("Agent", "Model", numbers=(*_EFFORT, *more, *(("Cost",) if cost else ())))
    for one in report.agents:
        group = one.figures
        cells = [one.agent, one.model, *_effort(group)]
        cells += [f"{group.input_tokens.total:,.0f}", f"{group.output_tokens.total:,.0f}"] if tokens else []
        cells += ["" if group.cost is None else f"{group.cost:,.2f}"] if cost else []
        _add(table, cells)
    return table


def _tasks(report: Report) -> "Table":
    table = _table("Task", numbers=(*_OUTCOME, *_EFFORT))
    shown = report.tasks
    if len(shown) > ROWS:
        shown = tuple(sorted(shown, key=lambda one: (one.figures.rate, one.task))[:ROWS])
    for one in shown:
        _add(table, [one.task, *_outcome(one.figures), *_effort(one.figures)])
    return table


def _reasons(report: Report) -> "Table":
    table = _table("Reason", numbers=("Episodes", "Share"))
    for reason, number in report.overall.reasons.items():
        _add(table, [reason, str(number), _percent(number / report.overall.episodes)])
    return table


def _tools(report: Report) -> "Table":
    table = _table("Tool", numbers=("Calls", "Share", "In episodes", "Refused", "Median ms", "p95 ms", "Total s"))
    for use in report.tools:
        counts = [str(use.calls), _percent(use.share_of_calls), str(use.episodes), str(use.refused)]
        times = [f"{use.median_milliseconds:,.1f}", f"{use.p95_milliseconds:,.1f}", f"{use.total_seconds:,.1f}"]
        _add(table, [use.tool, *counts, *times])
    return table


def _stages(report: Report) -> "Table":
    table = _table("Stage", numbers=("Share", "Median s", "p95 s", "Total s"))
    for one in report.stages:
        taken = one.seconds
        _add(
            table,
            [one.stage, _percent(one.share), f"{taken.median:,.2f}", f"{taken.p95:,.2f}", f"{taken.total:,.1f}"],
        )
    return table


def _differences(differences: Sequence[Difference]) -> "Table":
    table = _table("Mean over tasks", numbers=("A", "B", "B - A"))
    for one in differences:
        if one.quantity == "resolved":
            cells = [_percent(one.a), _percent(one.b), _points(one.difference)]
        elif one.a or one.b:
            cells = [f"{one.a:,.1f}", f"{one.b:,.1f}", f"{one.difference:+,.1f}"]
        else:
            continue
        _add(table, [_NAMES.get(one.quantity, one.quantity), *cells])
    return table


def _pairs(comparison: Comparison) -> "Table":
    """The tasks that the two resolve differently, the greatest difference first."""
    table = _table("Task", numbers=("A %", "B %", "B - A", "Steps A", "Steps B", "Seconds A", "Seconds B"))
    differing = sorted(
        (pair for pair in comparison.pairs if pair.difference), key=lambda pair: (-abs(pair.difference), pair.task)
    )
    for pair in differing[:ROWS]:
        rates = [f"{pair.rate_a * 100:.1f}", f"{pair.rate_b * 100:.1f}", _points(pair.difference)]
        steps = [f"{pair.steps_a:.1f}", f"{pair.steps_b:.1f}"]
        _add(table, [pair.task, *rates, *steps, f"{pair.seconds_a:.1f}", f"{pair.seconds_b:.1f}"])
    return table


def _test(comparison: Comparison) -> str:
    number = len(comparison.pairs)
    if not number:
        return "No task has a verdict on both sides: there is nothing to compare."
    counts = f"B is better at {comparison.better}, worse at {comparison.worse} and equal at {comparison.equal}"
    return (
        f"Of {number} {_plural(number, 'task')} in both, {counts}. McNemar's exact test: p = {comparison.p_value:.3g}."
    )


def _about_pairs(a: Report, b: Report, comparison: Comparison) -> list[str]:
    notes = []
    for side, report, only in (("A", a, comparison.only_a), ("B", b, comparison.only_b)):
        if len(report.agents) > 1:
            option = "--agent" if side == "A" else "--compare-agent"
            notes.append(f"{side} mixes {len(report.agents)} agents or models; {option} picks one agent.")
        if only:
            more = f" and {len(only) - 5} more" if len(only) > 5 else ""
            notes.append(f"Only {side} has a verdict on {', '.join(only[:5])}{more}; not compared.")
        notes += [f"{side}: {note}" for note in _about_reading(report)]
    if any(one.figures.verdicts > 1 for report in (a, b) for one in report.tasks):
        notes.append("Tasks with several samples count once in the test, by the share of them that is resolved.")
    return notes


def _about_reading(report: Report) -> list[str]:
    notes = []
    if report.unfinished:
        notes.append(f"{len(report.unfinished)} without a result, such as {report.unfinished[0]}.")
    if report.superseded:
        notes.append(
            f"{report.superseded} {_plural(report.superseded, 'result')} of earlier configurations left out"
            " (--all-configurations counts them)."
        )
    return notes


def _outcome(group: Group) -> list[str]:
    resolved = f"{group.resolved}/{group.verdicts}"
    return [resolved, f"{group.rate * 100:.1f}", _bounds(group)] if group.verdicts else [resolved, "", ""]


def _effort(group: Group) -> list[str]:
    if not group.verdicts:
        return ["", "", ""]
    return [f"{group.steps.median:g}", f"{group.rewrites.median:g}", f"{group.seconds.median:,.1f}"]


def _bounds(group: Group) -> str:
    return f"{group.interval.low * 100:.1f} to {group.interval.high * 100:.1f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _points(difference: float) -> str:
    return f"{difference * 100:+.1f}"


def _plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"


def _table(*texts: str, numbers: Iterable[str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in texts:
        table.add_column(heading, overflow="fold", min_width=_NAME_WIDTH)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add(table: "Table", cells: Iterable[str]) -> None:
    """Names come from manifests and results: they are neither markup nor commands to the terminal."""
    table.add_row(*(_line(cell) for cell in cells))


def _line(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(printable(text), style=style)


def _console() -> "Console":
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200"))
    return Console(width=max(width, _NARROWEST), highlight=False)
