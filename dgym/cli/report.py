"""``dgym report``: show the figures of results as tables, JSON or comma-separated values."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from dgym.cli.options import complete_agents
from dgym.cli.output import add_row, console, echo, echo_json, show_table, table, text
from dgym.errors import PluginError
from dgym.results import EpisodeRow, StageDurations, run_of
from dgym.results.report import (
    LABELS,
    TOO_FEW,
    ArmPair,
    Group,
    Interval,
    MeanDifference,
    PassAtK,
    Price,
    Report,
    Run,
    RunComparison,
    TaskPair,
    compare,
    cost_of,
    make_report,
    read_run,
    sentence,
)

_ROWS = 100
"""Maximum number of tasks in a table: those with the lowest rates, or with the greatest difference."""

_DIRECTORY = click.Path(file_okay=False)
_NAMES = {"resolved": "resolve rate", "input_tokens": "input tokens", "output_tokens": "output tokens"}
_NOT_COLUMNS = {"task_labels", "calls", "stages", "price", "signs", "facts"}
_EFFORT = ("Steps", "Rewrites", "Seconds")
_Subject = tuple[Sequence[str], Group, tuple[PassAtK, ...]]


@click.command("report")
@click.argument("directories", nargs=-1, metavar="[DIR]...", type=_DIRECTORY)
@click.option("--compare", "others", multiple=True, metavar="DIR", type=_DIRECTORY, help="Compare with these results.")
@click.option("--agent", metavar="NAME", shell_complete=complete_agents, help="Only the results of this agent.")
@click.option(
    "--compare-agent",
    metavar="NAME",
    shell_complete=complete_agents,
    help="Only the results of this agent in the directory of --compare. [default: --agent]",
)
@click.option("--baseline", metavar="ARM", help="Compare the other arms with this arm. [default: all pairs]")
@click.option(
    "--by",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="Group by this label of DebugTasks. [default: dgym.dev/repository and dgym.dev/difficulty]",
)
@click.option("--all-configurations", is_flag=True, help="Also count earlier configurations of an episode.")
@click.option(
    "--price", "prices", multiple=True, metavar="MODEL=IN:OUT", help="Cost of a million input and output tokens."
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    metavar="LEVEL",
    help="Confidence level of the intervals.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Format of the output; csv has one line for each episode, or for each task with --compare.",
)
@click.option("--plot", metavar="PATH", help="Draw figures: DIR/NAME.svg of a directory, else FILE-NAME.svg or .png.")
@click.option(
    "--figure",
    "figures",
    multiple=True,
    type=click.Choice(["resolve-rate", "steps", "cost", "stages", "tools"]),
    help="With --plot, draw only this figure, into the FILE itself. Can be repeated. [default: all]",
)
def report_command(
    directories: tuple[str, ...],
    others: tuple[str, ...],
    agent: str | None,
    compare_agent: str | None,
    baseline: str | None,
    labels: tuple[str, ...],
    all_configurations: bool,
    prices: tuple[str, ...],
    confidence: float,
    output: str,
    plot: str | None,
    figures: tuple[str, ...],
) -> None:
    """Show the figures of results, or compare two runs.

    DIR is a results directory, or a part of one. The default is ./results. Rates are over scored
    episodes, with Wilson's interval. --compare matches tasks and tests the difference with McNemar's exact test. The
    arms of an EpisodeSet are compared in the same way, without an option.

    --plot draws resolve-rate, steps, cost, stages and tools, by arm or, without arms, by agent and model.
    """
    if compare_agent and not others:
        raise click.UsageError("--compare-agent requires --compare DIR")
    if others and (baseline or labels):
        raise click.UsageError("--baseline and --by cannot be combined with --compare DIR")
    if figures and not plot:
        raise click.UsageError("--figure requires --plot PATH")
    if others and plot:
        raise click.UsageError("--plot draws one run: give both directories without --compare to draw their agents")
    known_prices = dict(_price(text) for text in prices)
    run = _read(directories or ("results",), agent, every_configuration=all_configurations)
    if others:
        other = _read(others, compare_agent or agent, every_configuration=all_configurations)
        _compare(run, other, output, confidence, known_prices)
        return
    if baseline is not None:
        _check_arm(run, baseline)
    if output == "csv":
        _print_episodes(run, known_prices)
    else:
        report = make_report(run, confidence=confidence, prices=known_prices, baseline=baseline, by=labels or LABELS)
        if output == "json":
            _print_json(run, report)
        else:
            _print_report(report)
    if plot is not None:
        _plot(run, plot, figures, confidence, known_prices)


def _plot(run: Run, target: str, names: Sequence[str], confidence: float, prices: dict[str, Price]) -> None:
    try:
        from dgym.cli.plots import draw_figures
    except ImportError as error:
        raise PluginError(f"--plot needs matplotlib: pip install 'dgym[plot]' ({error})") from None
    written, left_out = draw_figures(run, target, names, confidence=confidence, prices=prices)
    for path in written:
        echo(f"drawn: {path}", err=True)
    if left_out:
        echo(f"{left_out} episodes of the smallest arms are not in the figures", err=True)


def _print_json(run: Run, report: Report) -> None:
    episodes = [{**_plain(record), "run": _run(record), "calls": len(record.calls)} for record in run.records]
    echo_json({**msgspec.to_builtins(report), "episodes": episodes})


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


def _read(directories: Sequence[str], agent: str | None, *, every_configuration: bool) -> Run:
    run = read_run([*map(Path, directories)], every_configuration=every_configuration)
    if agent is None:
        return run
    records = tuple(record for record in run.records if record.agent == agent)
    if not records:
        known = ", ".join(sorted({record.agent for record in run.records})) or "none"
        raise click.BadParameter(f"the agent {agent!r} does not have results; these agents have: {known}")
    return msgspec.structs.replace(run, records=records, unfinished=())


def _check_arm(run: Run, baseline: str) -> None:
    arms = sorted({record.arm for record in run.records if record.arm})
    if baseline not in arms:
        known = f"these arms have: {', '.join(arms)}" if arms else "the results do not have arms"
        raise click.BadParameter(f"the arm {baseline!r} does not have results; {known}", param_hint="--baseline")


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
    screen = console()
    tables = (
        *(_outcomes(report), _pair_table(report), *_changes(report), _pass_table(report), _efforts(report)),
        *(*_label_tables(report), _tasks(report)),
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
        failed = report.overall.failed
        notes.append(f"Rates and medians do not include {failed} failed {_plural(failed, 'episode')}.")
    notes += _about_arms(report)
    if len(report.arm_pairs) == 1:
        (pair,) = report.arm_pairs
        notes += _about_provenance(pair.comparison, pair.a, pair.b)
    notes += _about_reading(report)
    if len(report.tasks) > _ROWS:
        notes.append(f"{len(report.tasks) - _ROWS} more tasks; --output json lists all.")
    for note in notes:
        screen.print(text(note, "dim"))


def _print_comparison(a: Report, b: Report, comparison: RunComparison) -> None:
    """Print the two runs, the tasks that differ, and the result of the test of significance."""
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
    for warning in _about_provenance(comparison, "A", "B"):
        screen.print(text(warning, "yellow"))
    for note in _about_pairs(a, b, comparison):
        screen.print(text(note, "dim"))


def _summary(group: Group) -> str:
    """Return the first sentence of a report."""
    clean = "" if group.clean is None else f", {group.clean} of them clean"
    summary = f"{group.resolved} of {group.scored} resolved{clean}: {_percent(group.rate)}"
    summary += f" ({group.interval.percent} %), pass@1 {_percent(group.pass_at_1)}"
    if group.failed:
        summary += f", {group.failed} failed"
    return summary if group.cost is None else f"{summary}, cost {group.cost:,.2f}"


def _outcomes(report: Report) -> Table:
    headings, rows = _subjects(report)
    failed = ("Failed",) if report.overall.failed else ()
    drawn = _table_of(*headings, numbers=(*_outcome_names(report), "pass@1 %", *failed))
    for names, group, _ in rows:
        cells = [*names, *_outcome(report, group), f"{group.pass_at_1 * 100:.1f}"]
        add_row(drawn, [*cells, *([f"{group.failed}"] if failed else ())])
    return drawn


def _efforts(report: Report) -> Table:
    headings, rows = _subjects(report)
    tokens = bool(report.overall.input_tokens.total or report.overall.output_tokens.total)
    cost = any(group.cost is not None for _, group, _ in rows)
    more = ("Tokens in", "Tokens out") if tokens else ()
    drawn = _table_of(*headings, numbers=(*_EFFORT, *more, *(("Cost",) if cost else ())))
    for names, group, _ in rows:
        cells = [*names, *_effort(group)]
        cells += [f"{group.input_tokens.total:,.0f}", f"{group.output_tokens.total:,.0f}"] if tokens else []
        cells += ["" if group.cost is None else f"{group.cost:,.2f}"] if cost else []
        add_row(drawn, cells)
    return drawn


def _tasks(report: Report) -> Table:
    drawn = _table_of("Task", numbers=(*_outcome_names(report), *_EFFORT))
    shown = report.tasks
    if len(shown) > _ROWS:
        shown = tuple(sorted(shown, key=lambda one: (one.figures.rate, one.task))[:_ROWS])
    for one in shown:
        add_row(drawn, [one.task, *_outcome(report, one.figures), *_effort(one.figures)])
    return drawn


def _reasons(report: Report) -> Table:
    """Return the counts of each reason by arm or agent. Zeros are shown, so that an imbalance is visible."""
    headings, rows = _subjects(report)
    if len(rows) < 2:
        headings, rows = (), [([], report.overall, ())]
    drawn = _table_of("Reason", *headings, numbers=("Episodes", "Share"))
    for reason in report.overall.reasons:
        for number, (names, group, _) in enumerate(rows):
            count = group.reasons.get(reason, 0)
            share = _percent(count / group.episodes) if group.episodes else ""
            add_row(drawn, ["" if number else reason, *names, str(count), share])
    return drawn


def _signs(report: Report) -> Table:
    drawn = _table_of("Integrity", numbers=("Episodes", "Share"))
    for sign, number in report.overall.signs.items():
        add_row(drawn, [sign, str(number), _percent(number / report.overall.scored)])
    return drawn


def _tools(report: Report) -> Table:
    drawn = _table_of("Tool", numbers=("Calls", "Share", "In episodes", "Refused", "Median ms", "p95 ms", "Total s"))
    for use in report.tools:
        counts = [str(use.calls), _percent(use.share_of_calls), str(use.episodes), str(use.refused)]
        times = [f"{use.median_milliseconds:,.1f}", f"{use.p95_milliseconds:,.1f}", f"{use.total_seconds:,.1f}"]
        add_row(drawn, [use.tool, *counts, *times])
    return drawn


def _stages(report: Report) -> Table:
    drawn = _table_of("Stage", numbers=("Share", "Median s", "p95 s", "Total s"))
    for one in report.stages:
        taken = one.seconds
        add_row(
            drawn,
            [one.stage, _percent(one.share), f"{taken.median:,.2f}", f"{taken.p95:,.2f}", f"{taken.total:,.1f}"],
        )
    return drawn


def _changes(report: Report) -> Iterator[Table]:
    """Yield the means of two arms over their common tasks. With more arms, only ``--output json`` has them."""
    if len(report.arm_pairs) == 1:
        (pair,) = report.arm_pairs
        yield _differences(pair.comparison.differences, pair.a, pair.b)


def _differences(differences: Sequence[MeanDifference], a: str = "A", b: str = "B") -> Table:
    drawn = _table_of("Mean over tasks", numbers=(a, b, f"{b} - {a}"))
    for one in differences:
        if one.quantity == "resolved":
            cells = [_percent(one.a), _percent(one.b), _points(one.difference)]
        elif one.a or one.b:
            cells = [f"{one.a:,.1f}", f"{one.b:,.1f}", f"{one.difference:+,.1f}"]
        else:
            continue
        add_row(drawn, [_NAMES.get(one.quantity, one.quantity), *cells])
    return drawn


def _pairs(comparison: RunComparison) -> Table:
    """Return the tasks with different resolve rates, the greatest difference first."""
    drawn = _table_of("Task", numbers=("A %", "B %", "B - A", "Steps A", "Steps B", "Seconds A", "Seconds B"))
    differing = sorted(
        (pair for pair in comparison.pairs if pair.difference), key=lambda pair: (-abs(pair.difference), pair.task)
    )
    for pair in differing[:_ROWS]:
        rates = [f"{pair.rate_a * 100:.1f}", f"{pair.rate_b * 100:.1f}", _points(pair.difference)]
        steps = [f"{pair.steps_a:.1f}", f"{pair.steps_b:.1f}"]
        add_row(drawn, [pair.task, *rates, *steps, f"{pair.seconds_a:.1f}", f"{pair.seconds_b:.1f}"])
    return drawn


def _about_pairs(a: Report, b: Report, comparison: RunComparison) -> list[str]:
    notes = []
    for side, report, only in (("A", a, comparison.only_a), ("B", b, comparison.only_b)):
        if len(report.agents) > 1:
            option = "--agent" if side == "A" else "--compare-agent"
            notes.append(f"{side} mixes {len(report.agents)} agents or models; {option} picks one agent.")
        if only:
            more = f" and {len(only) - 5} more" if len(only) > 5 else ""
            notes.append(f"Only {side} has a score on {', '.join(only[:5])}{more}; not compared.")
        notes += [f"{side}: {note}" for note in _about_reading(report)]
    if any(one.figures.scored > 1 for report in (a, b) for one in report.tasks):
        notes.append("Tasks with several samples count once in the test, by the share of them that is resolved.")
    return notes


def _about_provenance(comparison: RunComparison, a: str, b: str) -> list[str]:
    """Return warnings about recorded values in which two runs differ, and about episodes without recorded values."""
    found = sentence(comparison.provenance, a, b)
    missing = [
        f"{side}: provenance not recorded for {number} {_plural(number, 'episode')}."
        for side, number in zip((a, b), comparison.not_recorded, strict=True)
        if number
    ]
    return [f"Warning: {found}", *missing] if found else missing


def _about_reading(report: Report) -> list[str]:
    notes = []
    if report.unfinished:
        notes.append(f"{len(report.unfinished)} without a readable result, such as {report.unfinished[0]}.")
    if report.superseded:
        notes.append(
            f"{report.superseded} {_plural(report.superseded, 'result')} of earlier configurations left out"
            " (--all-configurations counts them)."
        )
    for name, counts in report.left_out.items():
        number = sum(counts.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        notes.append(f"{name}: {number} {_plural(number, 'task')} of the benchmark left out ({reasons}).")
    return notes


def _print_episodes(run: Run, prices: Mapping[str, Price]) -> None:
    """Print a CSV line for each episode. Unknown values are empty."""
    fields = [field for field in EpisodeRow.__struct_fields__ if field not in _NOT_COLUMNS]
    stages = [f"{name}_seconds" for name in StageDurations.__struct_fields__]
    lines = []
    for record in run.records:
        taken = msgspec.structs.astuple(record.stages) if record.stages is not None else [None] * len(stages)
        lines.append([_run(record), *(getattr(record, field) for field in fields), *taken, cost_of([record], prices)])
    _print(["run", *fields, *stages, "cost"], lines)


def _plain(record: EpisodeRow) -> dict[str, Any]:
    """Return the fields of a row without its provenance, which is in ``result.json``."""
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(record, facts=None))
    del fields["facts"]
    return fields


def _run(record: EpisodeRow) -> str:
    """Return the results directory of an episode. The path of a record ends with the number of the attempt."""
    return run_of(record.path.rpartition("/")[0])


def _print_pairs(comparison: RunComparison) -> None:
    """Print a CSV line for each task that is in both runs."""
    _print(TaskPair.__struct_fields__, [msgspec.structs.astuple(pair) for pair in comparison.pairs])


def _print(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in line] for line in lines)
    echo(written.getvalue(), nl=False)


def _cell(value: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would interpret as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


def _pass_table(report: Report) -> Table:
    """Return pass@k of each arm or agent. It is empty if each task has at most one scored episode."""
    headings, rows = _subjects(report)
    drawn = _table_of(*headings, numbers=("k", "pass@k %", "Interval", "Tasks"))
    for names, _, passes in rows:
        for number, one in enumerate(passes):
            shown = names if number == 0 else [""] * len(names)
            add_row(drawn, [*shown, f"{one.k}", f"{one.value * 100:.1f}", _interval(one.interval), f"{one.tasks}"])
    return drawn


def _pair_table(report: Report) -> Table:
    """Return the paired differences between arms, in percentage points of the resolve rate."""
    several = len(report.arm_pairs) > 1
    numbers = ("Tasks", "Better", "Worse", "Points", "Interval", "p", *(("p adj.",) if several else ()))
    drawn = _table_of("Difference", numbers=numbers)
    for pair in report.arm_pairs:
        found = pair.comparison
        cells = [f"{pair.b} - {pair.a}", f"{len(found.pairs)}", f"{found.better}", f"{found.worse}"]
        if found.pairs:
            cells += [_points(found.difference), _interval(found.interval), f"{found.p_value:.3g}"]
            cells += [f"{pair.p_adjusted:.3g}"] * several
        add_row(drawn, cells)
    return drawn


def _label_tables(report: Report) -> Iterator[Table]:
    """Yield a table for each label, with a row for each value and arm."""
    by_arm = bool(report.arms)
    for label in dict.fromkeys(group.label for group in report.labels):
        texts = (label.rpartition("/")[2].capitalize(), *(("Arm",) if by_arm else ()))
        drawn = _table_of(*texts, numbers=_outcome_names(report))
        before = None
        for group in report.labels:
            if group.label == label:
                value = "" if group.value == before else group.value or "(none)"
                before = group.value
                add_row(drawn, [value, *([group.arm] * by_arm), *_outcome(report, group.figures)])
        yield drawn


def _about_arms(report: Report) -> list[str]:
    notes = []
    if pairs := report.arm_pairs:
        notes.append(
            f"Differences are over pairs of a task and a sample that is scored under both arms: {_test(pairs[0])}"
        )
        if len(pairs) > 1:
            notes.append(f"p adj. is p adjusted for {len(pairs)} comparisons by Holm's method.")
        missing = [f"{pair.incomplete} of {pair.b} - {pair.a}" for pair in pairs if pair.incomplete]
        if missing:
            notes.append(f"Pairs left out, not scored under one arm or both: {', '.join(missing)}.")
    if any(one.passes for one in (report.arms or report.agents)):
        notes.append("pass@k is the unbiased estimate; its interval is a bootstrap over tasks.")
    outside = report.overall.episodes - sum(one.figures.episodes for one in report.arms)
    if report.arms and outside:
        notes.append(f"{outside} {_plural(outside, 'episode')} without an arm, only in the tables of tasks and tools.")
    return notes


def _test(pair: ArmPair) -> str:
    if pair.comparison.test == "mcnemar":
        return "McNemar's exact test, Newcombe's interval."
    return "randomization test and bootstrap, both over tasks."


def _subjects(report: Report) -> tuple[tuple[str, ...], list[_Subject]]:
    """Return the subjects of a report: its arms or, without arms, its agents.

    Returns:
        The headings of their names, and for each subject its names, figures and pass@k.
    """
    if report.arms:
        return ("Arm",), [([one.arm], one.figures, one.passes) for one in report.arms]
    return ("Agent", "Model"), [([one.agent, one.model], one.figures, one.passes) for one in report.agents]


def _outcome_names(report: Report) -> tuple[str, ...]:
    """Return the columns of ``_outcome``. The column ``Clean`` is missing if no episode has an integrity label."""
    return ("Resolved", *(("Clean",) if report.overall.clean is not None else ()), "Rate %", "Interval")


def _outcome(report: Report, group: Group) -> list[str]:
    """Return the cells for the columns of ``_outcome_names``."""
    resolved = f"{group.resolved}/{group.scored}"
    clean = ["" if group.clean is None else str(group.clean)] * (report.overall.clean is not None)
    return [resolved, *clean, *([f"{group.rate * 100:.1f}", group.interval.percent] if group.scored else ["", ""])]


def _effort(group: Group) -> list[str]:
    """Return the medians for the columns ``_EFFORT``. They are empty without a scored episode."""
    if not group.scored:
        return ["", "", ""]
    return [f"{group.steps.median:g}", f"{group.rewrites.median:g}", f"{group.seconds.median:,.1f}"]


def _interval(found: Interval | None) -> str:
    """Format the bounds in percent, or the reason why the interval is missing."""
    return TOO_FEW if found is None else found.percent


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _points(difference: float) -> str:
    return f"{difference * 100:+.1f}"


def _plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"


def _table_of(*texts: str, numbers: Sequence[str]) -> Table:
    """Return a table with columns of text, followed by columns of numbers."""
    return table((*texts, *numbers), numbers=numbers, breaking=texts)
