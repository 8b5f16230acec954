"""``dgym report``: the figures of results as tables, JSON or comma-separated values."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from dgym.cli.output import add_row, console, echo, echo_json, show_table, text
from dgym.cli.report.arms import about_arms, label_tables, pair_table, pass_table
from dgym.cli.report.cells import (
    EFFORT,
    bounds,
    effort,
    outcome,
    outcome_names,
    percent,
    plural,
    points,
    subjects,
    table_of,
)
from dgym.results.report import (
    LABELS,
    Comparison,
    Difference,
    EpisodeRow,
    Group,
    Price,
    Report,
    Run,
    Stages,
    TaskPair,
    compare,
    cost_of,
    make_report,
    read_run,
    run_of,
    sentence,
)

ROWS = 100
"""Tasks listed at most: those with the lowest rates, or with the greatest difference."""

_NAMES = {"resolved": "resolve rate", "input_tokens": "input tokens", "output_tokens": "output tokens"}


def show_report(
    directories: Sequence[str],
    others: Sequence[str],
    *,
    agents: tuple[str | None, str | None],
    every_configuration: bool,
    prices: Sequence[str],
    confidence: float,
    output: str,
    baseline: str | None = None,
    labels: Sequence[str] = (),
    plot: str | None = None,
    figures: Sequence[str] = (),
) -> None:
    """Print the figures of the results in ``directories``; where there are ``others``, compare the two.

    ``agents`` names the agent of either side whose results count; None for all. ``baseline`` is the arm that the others
    are compared with; ``labels`` are those of DebugTasks to group by, in place of repository and difficulty.
    """
    known_prices = dict(_price(text) for text in prices)
    run = _of_agent(read_run([*map(Path, directories)], every_configuration=every_configuration), agents[0])
    if others:
        other = _of_agent(read_run([*map(Path, others)], every_configuration=every_configuration), agents[1])
        _compare(run, other, output, confidence, known_prices)
        return
    if baseline is not None:
        _check_arm(run, baseline)
    by = labels or LABELS
    make = partial(make_report, confidence=confidence, prices=known_prices, baseline=baseline, by=by)
    _report(run, output, known_prices, make)
    if plot is not None:
        _plot(run, plot, figures, confidence, known_prices)


def _plot(run: Run, target: str, names: Sequence[str], confidence: float, prices: dict[str, Price]) -> None:
    from dgym.cli.plots import draw_figures

    written, left_out = draw_figures(run, target, names, confidence=confidence, prices=prices)
    for path in written:
        echo(f"drawn: {path}", err=True)
    if left_out:
        echo(f"{left_out} episodes of the smallest arms are in no figure", err=True)


def _report(run: Run, output: str, prices: dict[str, Price], make: Callable[[Run], Report]) -> None:
    if output == "csv":
        _print_episodes(run, prices)
        return
    report = make(run)
    if output == "json":
        episodes = [{**_plain(record), "run": _run(record), "calls": len(record.calls)} for record in run.records]
        echo_json({**msgspec.to_builtins(report), "episodes": episodes})
    else:
        _print_report(report)


def _compare(a: Run, b: Run, output: str, confidence: float, prices: dict[str, Price]) -> None:
    comparison = compare(a, b, confidence=confidence)
    if output == "csv":
        _print_pairs(comparison)
        return
    report_a = make_report(a, confidence=confidence, prices=prices)
    report_b = make_report(b, confidence=confidence, prices=prices)
    if output == "json":
        echo_json({"a": report_a, "b": report_b, "comparison": comparison})
    else:
        _print_comparison(report_a, report_b, comparison)


def _of_agent(run: Run, agent: str | None) -> Run:
    if agent is None:
        return run
    records = tuple(record for record in run.records if record.agent == agent)
    if not records:
        known = ", ".join(sorted({record.agent for record in run.records})) or "none"
        raise click.BadParameter(f"no result is of the agent {agent!r}; there are results of {known}")
    return msgspec.structs.replace(run, records=records, unfinished=())


def _check_arm(run: Run, baseline: str) -> None:
    arms = sorted({record.arm for record in run.records if record.arm})
    if baseline not in arms:
        known = f"there are results of {', '.join(arms)}" if arms else "the results are of no arm"
        raise click.BadParameter(f"no result is of the arm {baseline!r}; {known}", param_hint="--baseline")


def _price(text: str) -> tuple[str, Price]:
    model, _, amounts = text.rpartition("=")
    incoming, colon, outgoing = amounts.partition(":")
    try:
        price = Price(input=float(incoming), output=float(outgoing))
    except ValueError:
        price = Price(input=-1, output=-1)
    if not (model and colon and 0 <= price.input < float("inf") and 0 <= price.output < float("inf")):
        raise click.BadParameter(f"{text!r}: write MODEL=IN:OUT, such as my-model=2.5:10", param_hint="--price")
    return model, price


def _print_report(report: Report) -> None:
    """All tables of one report, then notes on them."""
    screen = console()
    tables = (
        *(_outcomes(report), pair_table(report), *_changes(report), pass_table(report), _efforts(report)),
        *(*label_tables(report), _tasks(report)),
        *(_reasons(report), _signs(report), _tools(report), _stages(report)),
    )
    screen.print(text(_summary(report.overall)))
    for each in tables:
        if each.row_count:
            screen.print()
            show_table(each)
    screen.print()
    notes = [f"Intervals are Wilson's at {report.confidence * 100:g} %. Steps, rewrites and seconds are medians."]
    if report.overall.failed:
        notes.append(f"{report.overall.failed} failed without a verdict: no rate and no median counts them.")
    notes += about_arms(report)
    if len(report.arm_pairs) == 1:
        (pair,) = report.arm_pairs
        notes += about_provenance(pair.comparison, pair.a, pair.b)
    notes += _about_reading(report)
    if len(report.tasks) > ROWS:
        notes.append(f"{len(report.tasks) - ROWS} more tasks; --output json lists all.")
    for note in notes:
        screen.print(text(note, "dim"))


def _print_comparison(a: Report, b: Report, comparison: Comparison) -> None:
    """The two runs, the tasks that differ, and whether chance alone explains it."""
    screen = console()
    for side, report in (("A", a), ("B", b)):
        agents = ", ".join(f"{group.agent} {group.model}".strip() for group in report.agents)
        screen.print(text(f"{side}: {agents}: {_summary(report.overall)}"))
    for each in (_differences(comparison.differences), _pairs(comparison)):
        if each.row_count:
            screen.print()
            show_table(each)
    screen.print()
    screen.print(text(comparison.summary))
    for warning in about_provenance(comparison, "A", "B"):
        screen.print(text(warning, "yellow"))
    for note in _about_pairs(a, b, comparison):
        screen.print(text(note, "dim"))


def _summary(group: Group) -> str:
    """The sentence that a report begins with."""
    clean = "" if group.clean is None else f", {group.clean} of them clean"
    summary = f"{group.resolved} of {group.verdicts} resolved{clean}: {percent(group.rate)} ({bounds(group)} %)"
    summary += f", pass@1 {percent(group.pass_at_1)}"
    if group.failed:
        summary += f", {group.failed} failed"
    return summary if group.cost is None else f"{summary}, cost {group.cost:,.2f}"


def _outcomes(report: Report) -> Table:
    headings, rows = subjects(report)
    failed = ("Failed",) if report.overall.failed else ()
    drawn = table_of(*headings, numbers=(*outcome_names(report), "pass@1 %", *failed))
    for names, group, _ in rows:
        cells = [*names, *outcome(report, group), f"{group.pass_at_1 * 100:.1f}"]
        add_row(drawn, [*cells, *([f"{group.failed}"] if failed else ())])
    return drawn


def _efforts(report: Report) -> Table:
    headings, rows = subjects(report)
    tokens = bool(report.overall.input_tokens.total or report.overall.output_tokens.total)
    cost = any(group.cost is not None for _, group, _ in rows)
    more = ("Tokens in", "Tokens out") if tokens else ()
    drawn = table_of(*headings, numbers=(*EFFORT, *more, *(("Cost",) if cost else ())))
    for names, group, _ in rows:
        cells = [*names, *effort(group)]
        cells += [f"{group.input_tokens.total:,.0f}", f"{group.output_tokens.total:,.0f}"] if tokens else []
        cells += ["" if group.cost is None else f"{group.cost:,.2f}"] if cost else []
        add_row(drawn, cells)
    return drawn


def _tasks(report: Report) -> Table:
    drawn = table_of("Task", numbers=(*outcome_names(report), *EFFORT))
    shown = report.tasks
    if len(shown) > ROWS:
        shown = tuple(sorted(shown, key=lambda one: (one.figures.rate, one.task))[:ROWS])
    for one in shown:
        add_row(drawn, [one.task, *outcome(report, one.figures), *effort(one.figures)])
    return drawn


def _reasons(report: Report) -> Table:
    """Each reason under each arm, or of each agent: also where it is none, so that an imbalance is seen."""
    headings, rows = subjects(report)
    if len(rows) < 2:
        headings, rows = (), [([], report.overall, ())]
    drawn = table_of("Reason", *headings, numbers=("Episodes", "Share"))
    for reason in report.overall.reasons:
        for number, (names, group, _) in enumerate(rows):
            count = group.reasons.get(reason, 0)
            share = percent(count / group.episodes) if group.episodes else ""
            add_row(drawn, ["" if number else reason, *names, str(count), share])
    return drawn


def _signs(report: Report) -> Table:
    drawn = table_of("Integrity", numbers=("Episodes", "Share"))
    for sign, number in report.overall.signs.items():
        add_row(drawn, [sign, str(number), percent(number / report.overall.verdicts)])
    return drawn


def _tools(report: Report) -> Table:
    drawn = table_of("Tool", numbers=("Calls", "Share", "In episodes", "Refused", "Median ms", "p95 ms", "Total s"))
    for use in report.tools:
        counts = [str(use.calls), percent(use.share_of_calls), str(use.episodes), str(use.refused)]
        times = [f"{use.median_milliseconds:,.1f}", f"{use.p95_milliseconds:,.1f}", f"{use.total_seconds:,.1f}"]
        add_row(drawn, [use.tool, *counts, *times])
    return drawn


def _stages(report: Report) -> Table:
    drawn = table_of("Stage", numbers=("Share", "Median s", "p95 s", "Total s"))
    for one in report.stages:
        taken = one.seconds
        add_row(
            drawn,
            [one.stage, percent(one.share), f"{taken.median:,.2f}", f"{taken.p95:,.2f}", f"{taken.total:,.1f}"],
        )
    return drawn


def _changes(report: Report) -> Iterator[Table]:
    """The means of two arms over the tasks of their pairs; of more arms, --output json has them."""
    if len(report.arm_pairs) == 1:
        (pair,) = report.arm_pairs
        yield _differences(pair.comparison.differences, pair.a, pair.b)


def _differences(differences: Sequence[Difference], a: str = "A", b: str = "B") -> Table:
    drawn = table_of("Mean over tasks", numbers=(a, b, f"{b} - {a}"))
    for one in differences:
        if one.quantity == "resolved":
            cells = [percent(one.a), percent(one.b), points(one.difference)]
        elif one.a or one.b:
            cells = [f"{one.a:,.1f}", f"{one.b:,.1f}", f"{one.difference:+,.1f}"]
        else:
            continue
        add_row(drawn, [_NAMES.get(one.quantity, one.quantity), *cells])
    return drawn


def _pairs(comparison: Comparison) -> Table:
    """The tasks that the two resolve differently, the greatest difference first."""
    drawn = table_of("Task", numbers=("A %", "B %", "B - A", "Steps A", "Steps B", "Seconds A", "Seconds B"))
    differing = sorted(
        (pair for pair in comparison.pairs if pair.difference), key=lambda pair: (-abs(pair.difference), pair.task)
    )
    for pair in differing[:ROWS]:
        rates = [f"{pair.rate_a * 100:.1f}", f"{pair.rate_b * 100:.1f}", points(pair.difference)]
        steps = [f"{pair.steps_a:.1f}", f"{pair.steps_b:.1f}"]
        add_row(drawn, [pair.task, *rates, *steps, f"{pair.seconds_a:.1f}", f"{pair.seconds_b:.1f}"])
    return drawn


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


def about_provenance(comparison: Comparison, a: str, b: str) -> list[str]:
    """Warnings: the recorded values in which two runs differ, and the episodes that record none."""
    found = sentence(comparison.provenance, a, b)
    missing = [
        f"{side}: provenance not recorded for {number} {plural(number, 'episode')}."
        for side, number in zip((a, b), comparison.not_recorded, strict=True)
        if number
    ]
    return [f"Warning: {found}", *missing] if found else missing


def _about_reading(report: Report) -> list[str]:
    notes = []
    if report.unfinished:
        notes.append(f"{len(report.unfinished)} without a result, such as {report.unfinished[0]}.")
    if report.superseded:
        notes.append(
            f"{report.superseded} {plural(report.superseded, 'result')} of earlier configurations left out"
            " (--all-configurations counts them)."
        )
    for name, counts in report.left_out.items():
        number = sum(counts.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        notes.append(f"{name}: {number} {plural(number, 'task')} of the benchmark left out ({reasons}).")
    return notes


_NOT_COLUMNS = {"task_labels", "calls", "stages", "price", "signs", "facts"}


def _print_episodes(run: Run, prices: Mapping[str, Price]) -> None:
    """A line for each episode; cells that are not known are empty."""
    fields = [field for field in EpisodeRow.__struct_fields__ if field not in _NOT_COLUMNS]
    stages = [f"{name}_seconds" for name in Stages.__struct_fields__]
    lines = []
    for record in run.records:
        taken = msgspec.structs.astuple(record.stages) if record.stages is not None else [None] * len(stages)
        lines.append([_run(record), *(getattr(record, field) for field in fields), *taken, cost_of([record], prices)])
    _print(["run", *fields, *stages, "cost"], lines)


def _plain(record: EpisodeRow) -> dict[str, Any]:
    """The fields of a row but its provenance, which is in ``result.json``."""
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(record, facts=None))
    del fields["facts"]
    return fields


def _run(record: EpisodeRow) -> str:
    """The results directory of an episode, whose path ends in the number of the attempt."""
    return run_of(record.path.rpartition("/")[0])


def _print_pairs(comparison: Comparison) -> None:
    """A line for each task in both runs."""
    _print(TaskPair.__struct_fields__, [msgspec.structs.astuple(pair) for pair in comparison.pairs])


def _print(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in line] for line in lines)
    echo(written.getvalue(), nl=False)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula has an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
