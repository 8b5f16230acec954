"""Compute the report of one run, by agent, arm, task, label, tool and stage, and its comparison with another run."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from statistics import fmean, median
from typing import Literal

import msgspec

from dgym.api import DIFFICULTY_LABEL, REPOSITORY_LABEL
from dgym.results._attempts import LeftOut
from dgym.results._rows import DISTRIBUTIONS, EpisodeRow, Facts, StageDurations
from dgym.results.report._groups import (
    CONFIDENCE,
    TOO_FEW,
    Distribution,
    Group,
    Interval,
    PassAtK,
    Price,
    Run,
    bootstrap,
    figures_of,
    grouped,
    holm,
    mcnemar,
    newcombe,
    passes,
    percentile,
    randomization_test,
    resolve_rate,
    spread,
)

_MISSING = "-"
_CHARACTERS = 60
"""Maximum length of a value in a sentence."""
_SHOWN = 12
_PACKAGES = 3


class ProvenanceDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recorded value that differs between A and B in ``tasks`` tasks. ``a`` and ``b`` are those of the first one."""

    name: str
    a: str
    b: str
    tasks: int


class TaskPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task in both runs: the share of resolved samples, and means of steps and seconds.

    ``difference`` is the rate of B minus the rate of A.
    """

    task: str
    rate_a: float
    rate_b: float
    difference: float
    steps_a: float
    steps_b: float
    seconds_a: float
    seconds_b: float


class MeanDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The means of one quantity over the common tasks, with equal weight for each task."""

    quantity: str
    a: float
    b: float
    difference: float


class RunComparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of run A with run B over the tasks that are scored in both.

    Attributes:
        pairs: The common tasks.
        differences: The means of each quantity.
        better: Number of tasks that B resolves more often than A.
        worse: Number of tasks that B resolves less often than A.
        equal: Number of the other tasks.
        difference: The mean over tasks of B's share of resolved samples minus A's.
        interval: The confidence interval of ``difference``, None if there are too few tasks.
        test: The test of ``p_value``.
        p_value: The two-sided p-value.
        only_a: Tasks that are not scored in B.
        only_b: Tasks that are not scored in A.
        provenance: The recorded values that differ.
        not_recorded: The number of episodes of A and of B without recorded values.
    """

    pairs: tuple[TaskPair, ...]
    differences: tuple[MeanDifference, ...]
    better: int
    worse: int
    equal: int
    difference: float
    interval: Interval | None
    test: Literal["mcnemar", "randomization"]
    p_value: float
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    provenance: tuple[ProvenanceDifference, ...] = ()
    not_recorded: tuple[int, int] = (0, 0)

    @property
    def summary(self) -> str:
        """The comparison in sentences."""
        number = len(self.pairs)
        if not number:
            return "No task is scored on both sides, so they cannot be compared."
        counts = f"B is better at {self.better}, worse at {self.worse} and equal at {self.equal}"
        interval = TOO_FEW if self.interval is None else self.interval.percent
        test = "McNemar's exact test" if self.test == "mcnemar" else "Randomization test"
        return (
            f"Of {number} {'task' if number == 1 else 'tasks'} in both, {counts}."
            f" B - A: {self.difference * 100:+.1f} points ({interval}). {test}: p = {self.p_value:.3g}."
        )


def compare(a: Run, b: Run, *, confidence: float = CONFIDENCE) -> RunComparison:
    """Compare two runs by task. Tasks that are not scored in one run are listed and excluded.

    A task is one observation regardless of its number of samples, because samples of a task are correlated. With one
    sample of each task, the test is McNemar's, and the interval is Newcombe's for paired proportions. With more samples
    the test is the randomization test, of which McNemar's is a special case, and the interval is a bootstrap over
    tasks.
    """
    tasks_a, tasks_b = _scored_by_task(a), _scored_by_task(b)
    pairs = tuple(_pair(task, tasks_a[task], tasks_b[task]) for task in tasks_a if task in tasks_b)
    better = sum(pair.difference > 0 for pair in pairs)
    worse = sum(pair.difference < 0 for pair in pairs)
    common = [(tasks_a[pair.task], tasks_b[pair.task]) for pair in pairs]
    single = all(len(side) == 1 for sides in common for side in sides)
    changes = [pair.difference for pair in pairs]
    return RunComparison(
        pairs=pairs,
        differences=tuple(_difference(name, common) for name in _QUANTITIES) if common else (),
        better=better,
        worse=worse,
        equal=len(pairs) - better - worse,
        difference=fmean(changes) if changes else 0.0,
        interval=_interval(pairs, single, confidence) if pairs else None,
        test="mcnemar" if single else "randomization",
        p_value=mcnemar(better, worse) if single else randomization_test(changes),
        only_a=tuple(task for task in tasks_a if task not in tasks_b),
        only_b=tuple(task for task in tasks_b if task not in tasks_a),
        provenance=differing([(_facts(side_a), _facts(side_b)) for side_a, side_b in common]),
        not_recorded=(
            sum(row.facts is None for side, _ in common for row in side),
            sum(row.facts is None for _, side in common for row in side),
        ),
    )


def _facts(rows: Sequence[EpisodeRow]) -> list[Facts]:
    return [row.facts for row in rows if row.facts is not None]


def _interval(pairs: Sequence[TaskPair], single: bool, confidence: float) -> Interval | None:
    if not single:
        return bootstrap([pair.difference for pair in pairs], confidence)
    counts = Counter((bool(pair.rate_a), bool(pair.rate_b)) for pair in pairs)
    return newcombe(counts[True, True], counts[True, False], counts[False, True], counts[False, False], confidence)


_QUANTITIES = ("resolved", "steps", "rewrites", "input_tokens", "output_tokens", "seconds")


def _scored_by_task(run: Run) -> dict[str, list[EpisodeRow]]:
    records = [record for record in run.records if record.is_scored]
    return grouped(records, lambda record: record.task)


def _pair(task: str, a: Sequence[EpisodeRow], b: Sequence[EpisodeRow]) -> TaskPair:
    rate_a, rate_b = resolve_rate(a) or 0.0, resolve_rate(b) or 0.0
    return TaskPair(
        task=task,
        rate_a=rate_a,
        rate_b=rate_b,
        difference=rate_b - rate_a,
        steps_a=_mean("steps", a),
        steps_b=_mean("steps", b),
        seconds_a=_mean("seconds", a),
        seconds_b=_mean("seconds", b),
    )


def _difference(quantity: str, common: Sequence[tuple[Sequence[EpisodeRow], Sequence[EpisodeRow]]]) -> MeanDifference:
    a = fmean(_mean(quantity, records) for records, _ in common)
    b = fmean(_mean(quantity, records) for _, records in common)
    return MeanDifference(quantity=quantity, a=a, b=b, difference=b - a)


def _mean(quantity: str, records: Sequence[EpisodeRow]) -> float:
    return fmean(getattr(record, quantity) for record in records)


def differing(common: Sequence[tuple[Sequence[Facts], Sequence[Facts]]]) -> tuple[ProvenanceDifference, ...]:
    """The values that differ between A and B. ``common`` has the facts of the episodes of A and of B for each task."""
    first: dict[str, tuple[str, str]] = {}
    tasks: dict[str, int] = {}
    for a, b in common:
        names = dict.fromkeys(name for facts in (*a, *b) for name in facts)
        for name in names if a and b else ():
            values = _values(name, a), _values(name, b)
            if values[0] != values[1]:
                first.setdefault(name, values)
                tasks[name] = tasks.get(name, 0) + 1
    return tuple(
        ProvenanceDifference(name=name, a=a, b=b, tasks=tasks[name])
        for name, (a, b) in ((name, _brief(name, *values)) for name, values in first.items())
    )


def _values(name: str, side: Sequence[Facts]) -> str:
    """The values of one side as one text. Samples of a task can have different values."""
    return " and ".join(sorted({facts.get(name, _MISSING) for facts in side}))


def _brief(name: str, a: str, b: str) -> tuple[str, str]:
    if name != DISTRIBUTIONS:
        return _short(a), _short(b)
    lines_a, lines_b = set(a.split("\n")), set(b.split("\n"))
    return _packages(lines_a - lines_b), _packages(lines_b - lines_a)


def _packages(lines: set[str]) -> str:
    shown = ", ".join(_short(line) for line in islice(sorted(lines), _PACKAGES))
    return (f"{shown} and {len(lines) - _PACKAGES} more" if len(lines) > _PACKAGES else shown) or _MISSING


def _short(text: str) -> str:
    digest = len(text) in (40, 64) and not set(text) - set("0123456789abcdef")
    if digest:
        return text[:12]
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"


def sentence(differences: Sequence[ProvenanceDifference], a: str, b: str) -> str:
    """The differences in one sentence, or an empty text without differences."""
    if not differences:
        return ""
    parts = [
        f"{each.name} {each.a} / {each.b}" + (f" (in {each.tasks} tasks)" if each.tasks > 1 else "")
        for each in differences[:_SHOWN]
    ]
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return f"{a} and {b} differ in: {'; '.join(parts)}{more}."


LABELS = (REPOSITORY_LABEL, DIFFICULTY_LABEL)
"""Labels of DebugTasks by which episodes are grouped."""


class AgentGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one agent with one model."""

    agent: str
    model: str
    figures: Group
    passes: tuple[PassAtK, ...]


class TaskGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one task."""

    task: str
    figures: Group


class LabelGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one arm whose tasks have one value of a label.

    ``arm`` is empty without arms. ``value`` is empty for tasks without the label.
    """

    label: str
    value: str
    arm: str
    figures: Group


class ArmGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one arm. ``agent`` and ``model`` are empty if its episodes have different ones."""

    arm: str
    agent: str
    model: str
    figures: Group
    passes: tuple[PassAtK, ...]


class ArmPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of arm B with arm A.

    A pair is one sample of a task, which has an episode in each arm. ``complete`` counts the pairs that are scored in
    both arms. ``incomplete`` counts the others, which are excluded. ``p_adjusted`` is Holm's adjusted p-value over all
    pairs of arms of the report.
    """

    a: str
    b: str
    complete: int
    incomplete: int
    comparison: RunComparison
    p_adjusted: float


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The use of one tool. ``refused`` counts the calls that failed for any reason."""

    tool: str
    calls: int
    refused: int
    episodes: int
    share_of_calls: float
    median_milliseconds: float
    p95_milliseconds: float
    total_seconds: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The time of one stage. The stages are the fields of :class:`~dgym.results._rows.StageDurations`."""

    stage: str
    episodes: int
    seconds: Distribution
    share: float


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All figures of one run."""

    confidence: float
    overall: Group
    agents: tuple[AgentGroup, ...]
    tasks: tuple[TaskGroup, ...]
    arms: tuple[ArmGroup, ...]
    arm_pairs: tuple[ArmPair, ...]
    labels: tuple[LabelGroup, ...]
    tools: tuple[ToolUse, ...]
    stages: tuple[StageTime, ...]
    unfinished: tuple[str, ...]
    superseded: int
    left_out: LeftOut


def make_report(
    run: Run,
    *,
    confidence: float = CONFIDENCE,
    prices: Mapping[str, Price] | None = None,
    baseline: str | None = None,
    by: Sequence[str] = LABELS,
) -> Report:
    """Compute the report of ``run``.

    Args:
        run: The episodes.
        confidence: The level of the confidence intervals.
        prices: Prices by model.
        baseline: The arm with which all other arms are compared. None: every two arms are compared.
        by: Labels of DebugTasks by which episodes are grouped.
    """

    def over(records: Sequence[EpisodeRow]) -> Group:
        return figures_of(records, confidence, prices or {})

    by_agent = grouped(run.records, lambda record: (record.agent, record.model))
    by_task = grouped(run.records, lambda record: record.task)
    return Report(
        confidence=confidence,
        overall=over(run.records),
        agents=tuple(
            AgentGroup(agent=agent, model=model, figures=over(records), passes=passes(records, confidence))
            for (agent, model), records in by_agent.items()
        ),
        tasks=tuple(TaskGroup(task=task, figures=over(records)) for task, records in by_task.items()),
        arms=_arm_groups(run.records, confidence, prices or {}),
        arm_pairs=_arm_pairs(run.records, confidence, baseline),
        labels=tuple(
            LabelGroup(label=label, value=value, arm=arm, figures=over(records))
            for label in by
            for (value, arm), records in _by_label(run.records, label).items()
        ),
        tools=_tools(run.records),
        stages=_stages(run.records),
        unfinished=run.unfinished,
        superseded=run.superseded,
        left_out=run.left_out,
    )


def _by_label(records: Sequence[EpisodeRow], label: str) -> dict[tuple[str, str], list[EpisodeRow]]:
    """The records by value of the label and arm. Empty if the label is on none of the tasks."""
    if not any(label in record.task_labels for record in records):
        return {}
    return grouped(records, lambda record: (record.task_labels.get(label, ""), record.arm))


def _tools(records: Sequence[EpisodeRow]) -> tuple[ToolUse, ...]:
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    refused: Counter[str] = Counter()
    episodes: Counter[str] = Counter()
    for record in records:
        episodes.update({call.tool for call in record.calls})
        refused.update(call.tool for call in record.calls if not call.ok)
        for call in record.calls:
            seconds[call.tool].append(call.seconds)
    calls = sum(map(len, seconds.values()))
    return tuple(
        ToolUse(
            tool=tool,
            calls=len(taken),
            refused=refused[tool],
            episodes=episodes[tool],
            share_of_calls=len(taken) / calls,
            median_milliseconds=median(taken) * 1000,
            p95_milliseconds=percentile(taken, 0.95) * 1000,
            total_seconds=sum(taken),
        )
        for tool, taken in sorted(seconds.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _stages(records: Sequence[EpisodeRow]) -> tuple[StageTime, ...]:
    known = [record.stages for record in records if record.stages is not None]
    taken = {name: [getattr(stages, name) for stages in known] for name in StageDurations.__struct_fields__}
    everything = sum(map(sum, taken.values()))
    return tuple(
        StageTime(
            stage=name,
            episodes=len(known),
            seconds=spread(values),
            share=sum(values) / everything if everything else 0.0,
        )
        for name, values in taken.items()
        if any(values)
    )


def _arm_groups(records: Sequence[EpisodeRow], confidence: float, prices: Mapping[str, Price]) -> tuple[ArmGroup, ...]:
    """The figures of each arm, sorted by name. Episodes without an arm are left out."""
    by_arm = grouped([record for record in records if record.arm], lambda record: record.arm)
    return tuple(
        ArmGroup(
            arm=arm,
            agent=_only({record.agent for record in same}),
            model=_only({record.model for record in same}),
            figures=figures_of(same, confidence, prices),
            passes=passes(same, confidence),
        )
        for arm, same in by_arm.items()
    )


def _arm_pairs(records: Sequence[EpisodeRow], confidence: float, baseline: str | None) -> tuple[ArmPair, ...]:
    arms = sorted({record.arm for record in records if record.arm})
    chosen = list(combinations(arms, 2))
    if baseline is not None:
        chosen = [(baseline, arm) for arm in arms if arm != baseline]
    pairs = [_pair_arms(records, a, b, confidence) for a, b in chosen]
    adjusted = holm([pair.comparison.p_value for pair in pairs])
    return tuple(msgspec.structs.replace(pair, p_adjusted=p) for pair, p in zip(pairs, adjusted, strict=True))


def _pair_arms(records: Sequence[EpisodeRow], a: str, b: str, confidence: float) -> ArmPair:
    sides = [grouped([record for record in records if record.arm == arm], _place) for arm in (a, b)]
    both = sides[0].keys() & sides[1].keys()
    complete = {place for place in both if all(any(record.is_scored for record in side[place]) for side in sides)}
    runs = [Run(records=tuple(record for place in sorted(complete) for record in side[place])) for side in sides]
    return ArmPair(
        a=a,
        b=b,
        complete=len(complete),
        incomplete=len(sides[0].keys() | sides[1].keys()) - len(complete),
        comparison=compare(*runs, confidence=confidence),
        p_adjusted=1.0,
    )


def _place(record: EpisodeRow) -> tuple[str, str, int]:
    return record.namespace, record.task, record.sample


def _only(values: set[str]) -> str:
    return values.pop() if len(values) == 1 else ""
