"""The arms of a set compared: figures of each, and paired differences between them."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec

from dgym.results.report.comparison import Comparison, compare
from dgym.results.report.groups import Group, PassAtK, Price, figures, grouped, passes
from dgym.results.report.reading import EpisodeRow, Run
from dgym.results.report.statistics import holm


class ArmGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of one arm. ``agent`` and ``model`` are empty where its episodes have several."""

    arm: str
    agent: str
    model: str
    figures: Group
    passes: tuple[PassAtK, ...]


class ArmPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Arm B compared with arm A.

    A pair is a task and a sample, which has an episode under each arm. ``complete`` pairs have a verdict under both;
    the ``incomplete`` ones enter nothing here. ``p_adjusted`` is Holm's over all pairs of arms of the report.
    """

    a: str
    b: str
    complete: int
    incomplete: int
    comparison: Comparison
    p_adjusted: float


def arm_groups(records: Sequence[EpisodeRow], confidence: float, prices: Mapping[str, Price]) -> tuple[ArmGroup, ...]:
    """The figures of each arm, in the order of their names; none where no episode is of an arm."""
    by_arm = grouped([record for record in records if record.arm], lambda record: record.arm)
    return tuple(
        ArmGroup(
            arm=arm,
            agent=_only({record.agent for record in same}),
            model=_only({record.model for record in same}),
            figures=figures(same, confidence, prices),
            passes=passes(same, confidence),
        )
        for arm, same in by_arm.items()
    )


def arm_pairs(records: Sequence[EpisodeRow], confidence: float, baseline: str | None = None) -> tuple[ArmPair, ...]:
    """Every two arms compared, or all others with ``baseline``."""
    arms = sorted({record.arm for record in records if record.arm})
    chosen = list(combinations(arms, 2))
    if baseline is not None:
        chosen = [(baseline, arm) for arm in arms if arm != baseline]
    pairs = [_pair(records, a, b, confidence) for a, b in chosen]
    adjusted = holm([pair.comparison.p_value for pair in pairs])
    return tuple(msgspec.structs.replace(pair, p_adjusted=p) for pair, p in zip(pairs, adjusted, strict=True))


def _pair(records: Sequence[EpisodeRow], a: str, b: str, confidence: float) -> ArmPair:
    sides = [grouped([record for record in records if record.arm == arm], _place) for arm in (a, b)]
    both = sides[0].keys() & sides[1].keys()
    complete = {place for place in both if all(any(record.has_verdict for record in side[place]) for side in sides)}
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
