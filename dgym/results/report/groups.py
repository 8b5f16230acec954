"""Figures over some episodes: rates with intervals, effort, tokens, cost.

Rates are over episodes with a verdict. An infrastructure failure says nothing about an agent, so failed episodes are
counted and shown but enter no rate and no average.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from dgym.results.report.reading import EpisodeRow
from dgym.results.report.statistics import Interval, Spread, bootstrap, pass_at_k, spread, wilson

Key = TypeVar("Key", bound=Any)

CONFIDENCE = 0.95


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a million tokens of a model, in any one currency."""

    input: float
    output: float


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Figures over some episodes. ``cost`` is None unless it is known of every episode that used tokens.

    ``pass_at_1`` is the mean over tasks of the share of a task's samples that resolved it: the chance that one episode
    resolves a task drawn at random. With as many samples of each task it equals ``rate``. ``clean`` are resolved with a
    clean label of integrity, None where no verdict has a label; ``signs`` are the episodes by what was seen of them.
    """

    episodes: int
    verdicts: int
    resolved: int
    failed: int
    rate: float
    interval: Interval
    pass_at_1: float
    reasons: dict[str, int]
    steps: Spread
    rewrites: Spread
    seconds: Spread
    input_tokens: Spread
    output_tokens: Spread
    cost: float | None = None
    clean: int | None = None
    signs: dict[str, int] = {}


class PassAtK(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The chance that at least one of ``k`` episodes of a task resolves it: the mean over tasks, with an interval.

    ``tasks`` are those with at least ``k`` verdicts; the others are left out. ``interval`` is None where they are too
    few for one.
    """

    k: int
    value: float
    interval: Interval | None
    tasks: int


def grouped(records: Sequence[EpisodeRow], key: Callable[[EpisodeRow], Key]) -> dict[Key, list[EpisodeRow]]:
    """The records by ``key``, in the order of the keys."""
    groups: defaultdict[Key, list[EpisodeRow]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return {name: groups[name] for name in sorted(groups)}


def resolve_rate(records: Sequence[EpisodeRow]) -> float | None:
    """The share of episodes with a verdict that are resolved; None without any."""
    verdicts = [record.resolved for record in records if record.has_verdict]
    return fmean(verdicts) if verdicts else None


def cost_of(records: Sequence[EpisodeRow], prices: Mapping[str, Price]) -> float | None:
    """The cost of the tokens of ``records``: as stored with each, else by ``prices``.

    None when it is not known of an episode that used tokens, or when none did.
    """
    used = [record for record in records if record.input_tokens or record.output_tokens]
    costs = [_cost(record, prices) for record in used]
    return sum(cost for cost in costs if cost is not None) if costs and None not in costs else None


def _cost(record: EpisodeRow, prices: Mapping[str, Price]) -> float | None:
    if record.price is not None:
        return record.price
    price = prices.get(record.model)
    if price is None:
        return None
    return (price.input * record.input_tokens + price.output * record.output_tokens) / 1e6


def figures(records: Sequence[EpisodeRow], confidence: float, prices: Mapping[str, Price]) -> Group:
    """The figures over ``records``; ``prices`` are by model."""
    verdicts = [record for record in records if record.has_verdict]
    resolved = sum(record.resolved for record in verdicts)
    rates = [resolve_rate(same) for same in grouped(verdicts, lambda record: record.task).values()]
    reasons = Counter(str(record.reason) for record in records)
    labelled = [record for record in verdicts if record.clean is not None]
    return Group(
        episodes=len(records),
        verdicts=len(verdicts),
        resolved=resolved,
        failed=sum(not record.reason.is_verdict for record in records),
        rate=resolved / len(verdicts) if verdicts else 0.0,
        interval=wilson(resolved, len(verdicts), confidence),
        pass_at_1=fmean(rate for rate in rates if rate is not None) if rates else 0.0,
        reasons=_by_number(reasons),
        steps=spread([record.steps for record in verdicts]),
        rewrites=spread([record.rewrites for record in verdicts]),
        seconds=spread([record.seconds for record in verdicts]),
        input_tokens=spread([record.input_tokens for record in verdicts]),
        output_tokens=spread([record.output_tokens for record in verdicts]),
        cost=cost_of(records, prices),
        clean=sum(record.resolved for record in labelled if record.clean) if labelled else None,
        signs=_by_number(Counter(sign for record in verdicts for sign in record.signs)),
    )


def _by_number(counts: Counter[str]) -> dict[str, int]:
    """The counts, the greatest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def passes(records: Sequence[EpisodeRow], confidence: float) -> tuple[PassAtK, ...]:
    """pass@k for k = 1, 2, 4, … and the most verdicts that a task has; none where each task has one verdict at most.

    Intervals are by a bootstrap over tasks.
    """
    verdicts = grouped([record for record in records if record.has_verdict], lambda record: record.task)
    counts = [(len(same), sum(record.resolved for record in same)) for same in verdicts.values()]
    most = max((number for number, _ in counts), default=0)
    found = []
    for k in sorted(
        {*(1 << power for power in range(most.bit_length()) if 1 << power < most), most} if most > 1 else ()
    ):
        values = [pass_at_k(number, resolved, k) for number, resolved in counts if number >= k]
        found.append(PassAtK(k=k, value=fmean(values), interval=bootstrap(values, confidence), tasks=len(values)))
    return tuple(found)
