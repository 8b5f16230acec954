"""The tables of arms: paired differences, pass@k, and groups by labels of tasks."""

from collections.abc import Iterator

from rich.table import Table

from dgym.cli.output import add_row
from dgym.cli.report.cells import interval, outcome, outcome_names, plural, points, subjects, table_of
from dgym.results.report import ArmPair, Report


def pass_table(report: Report) -> Table:
    """pass@k of each arm, or agent, for k above 1 too; empty where each task has one verdict at most."""
    headings, rows = subjects(report)
    drawn = table_of(*headings, numbers=("k", "pass@k %", "Interval", "Tasks"))
    for names, _, passes in rows:
        for number, one in enumerate(passes):
            shown = names if number == 0 else [""] * len(names)
            add_row(drawn, [*shown, f"{one.k}", f"{one.value * 100:.1f}", interval(one.interval), f"{one.tasks}"])
    return drawn


def pair_table(report: Report) -> Table:
    """The paired differences between arms, in percentage points of the resolve rate."""
    several = len(report.arm_pairs) > 1
    numbers = ("Tasks", "Better", "Worse", "Points", "Interval", "p", *(("p adj.",) if several else ()))
    drawn = table_of("Difference", numbers=numbers)
    for pair in report.arm_pairs:
        found = pair.comparison
        cells = [f"{pair.b} - {pair.a}", f"{len(found.pairs)}", f"{found.better}", f"{found.worse}"]
        if found.pairs:
            cells += [points(found.difference), interval(found.interval), f"{found.p_value:.3g}"]
            cells += [f"{pair.p_adjusted:.3g}"] * several
        add_row(drawn, cells)
    return drawn


def label_tables(report: Report) -> Iterator[Table]:
    """A table for each label, by its values and the arms."""
    by_arm = bool(report.arms)
    for label in dict.fromkeys(group.label for group in report.labels):
        texts = (label.rpartition("/")[2].capitalize(), *(("Arm",) if by_arm else ()))
        drawn = table_of(*texts, numbers=outcome_names(report))
        before = None
        for group in report.labels:
            if group.label == label:
                value = "" if group.value == before else group.value or "(none)"
                before = group.value
                add_row(drawn, [value, *([group.arm] * by_arm), *outcome(report, group.figures)])
        yield drawn


def about_arms(report: Report) -> list[str]:
    """Notes on the tables of arms."""
    notes = []
    if pairs := report.arm_pairs:
        notes.append(
            f"Differences are over pairs of a task and a sample with a verdict under both arms: {_test(pairs[0])}"
        )
        if len(pairs) > 1:
            notes.append(f"p adj. is p adjusted for {len(pairs)} comparisons by Holm's method.")
        missing = [f"{pair.incomplete} of {pair.b} - {pair.a}" for pair in pairs if pair.incomplete]
        if missing:
            notes.append(f"Pairs left out, without a verdict under one arm or both: {', '.join(missing)}.")
    if any(one.passes for one in (report.arms or report.agents)):
        notes.append("pass@k is the unbiased estimate; its interval is a bootstrap over tasks.")
    outside = report.overall.episodes - sum(one.figures.episodes for one in report.arms)
    if report.arms and outside:
        notes.append(f"{outside} {plural(outside, 'episode')} of no arm, in the tables of tasks and tools alone.")
    return notes


def _test(pair: ArmPair) -> str:
    if pair.comparison.test == "mcnemar":
        return "McNemar's exact test, Newcombe's interval."
    return "randomization test and bootstrap, both over tasks."
