"""Two runs compared over the tasks that they have in common."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec

from dgym.results.report.groups import CONFIDENCE, grouped, resolve_rate
from dgym.results.report.provenance import Facts, ProvenanceDifference, differing
from dgym.results.report.reading import EpisodeRow, Run
from dgym.results.report.statistics import TOO_FEW, Interval, bootstrap, mcnemar, newcombe, randomization_test


class TaskPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task in both runs: shares of its samples that are resolved, and means; ``difference`` is B's minus A's."""

    task: str
    rate_a: float
    rate_b: float
    difference: float
    steps_a: float
    steps_b: float
    seconds_a: float
    seconds_b: float


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One quantity: its means over the tasks in common, each task counted once."""

    quantity: str
    a: float
    b: float
    difference: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of run A with run B over the tasks that have a verdict on both sides.

    ``difference`` is B's share of resolved samples minus A's, the mean over tasks; ``interval`` is around it, None
    where the tasks in common are too few for one. ``better`` and ``worse`` are the tasks that B resolves more and less
    often than A. ``p_value`` is of ``test``. ``provenance`` are the recorded values in which the two differ;
    ``not_recorded`` counts the episodes of A and of B that record none.
    """

    pairs: tuple[TaskPair, ...]
    differences: tuple[Difference, ...]
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
            return "No task has a verdict on both sides: there is nothing to compare."
        counts = f"B is better at {self.better}, worse at {self.worse} and equal at {self.equal}"
        interval = TOO_FEW if self.interval is None else self.interval.percent
        test = "McNemar's exact test" if self.test == "mcnemar" else "Randomization test"
        return (
            f"Of {number} {'task' if number == 1 else 'tasks'} in both, {counts}."
            f" B - A: {self.difference * 100:+.1f} points ({interval}). {test}: p = {self.p_value:.3g}."
        )


def compare(a: Run, b: Run, *, confidence: float = CONFIDENCE) -> Comparison:
    """Compare by task. Tasks that have no verdict on one side are named and left out.

    A task is one observation however many samples it has, because samples of a task resemble each other. With one
    sample of each task the test is McNemar's, and the interval Newcombe's for paired proportions. With more, the test
    is the randomization test of which McNemar's is a case, and the interval a bootstrap over tasks.
    """
    tasks_a, tasks_b = _verdicts(a), _verdicts(b)
    pairs = tuple(_pair(task, tasks_a[task], tasks_b[task]) for task in tasks_a if task in tasks_b)
    better = sum(pair.difference > 0 for pair in pairs)
    worse = sum(pair.difference < 0 for pair in pairs)
    common = [(tasks_a[pair.task], tasks_b[pair.task]) for pair in pairs]
    single = all(len(side) == 1 for sides in common for side in sides)
    changes = [pair.difference for pair in pairs]
    return Comparison(
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


def _verdicts(run: Run) -> dict[str, list[EpisodeRow]]:
    records = [record for record in run.records if record.has_verdict]
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


def _difference(quantity: str, common: Sequence[tuple[Sequence[EpisodeRow], Sequence[EpisodeRow]]]) -> Difference:
    a = fmean(_mean(quantity, records) for records, _ in common)
    b = fmean(_mean(quantity, records) for _, records in common)
    return Difference(quantity=quantity, a=a, b=b, difference=b - a)


def _mean(quantity: str, records: Sequence[EpisodeRow]) -> float:
    return fmean(getattr(record, quantity) for record in records)
