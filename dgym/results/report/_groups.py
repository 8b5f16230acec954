"""Read the episodes of a report from results directories, and compute figures over a group of them.

Figures are rates with intervals, steps, time, tokens and cost. The statistics have no dependencies.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, median
from typing import Any, TypeVar

import msgspec

from dgym.errors import ManifestError
from dgym.results._attempts import Attempt, LeftOut, TrajectoryHeader, read_left_out
from dgym.results._library import check_directory, find_episodes
from dgym.results._rows import EpisodeRow, read_row


class Interval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The bounds of a confidence interval."""

    low: float
    high: float

    @property
    def percent(self) -> str:
        """The bounds in percent, as text."""
        return f"{self.low * 100:.1f} to {self.high * 100:.1f}"


class Distribution(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Figures of the distribution of a quantity."""

    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    total: float = 0.0


def wilson(successes: int, trials: int, confidence: float) -> Interval:
    """Wilson's score interval for a proportion. Without trials it is 0 to 1.

    It keeps its coverage for few trials and for proportions of 0 and 1. The usual interval (estimate plus and minus z
    standard errors) has a width of 0 there. Source: E. B. Wilson, Probable inference, the law of succession, and
    statistical inference, JASA 22 (1927). Brown, Cai and DasGupta compare it with others in Interval estimation for a
    binomial proportion, Statistical Science 16 (2001).
    """
    if trials == 0:
        return Interval(low=0.0, high=1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At 0 and 1, rounding errors could move a bound beyond the estimate.
    low = 0.0 if successes == 0 else (centre - margin) / scale
    high = 1.0 if successes == trials else (centre + margin) / scale
    return Interval(low=max(0.0, low), high=min(1.0, high))


def mcnemar(better: int, worse: int) -> float:
    """The two-sided p-value of McNemar's exact test for the numbers of pairs in which B is better and worse.

    Under the null hypothesis both are equally likely. Source: Q. McNemar, Note on the sampling error of the difference
    between correlated proportions or percentages, Psychometrika 12 (1947), with the binomial distribution in place of
    its approximation.
    """
    tosses = better + worse
    ways, tail = 1, 0
    for heads in range(min(better, worse) + 1):
        tail += ways
        ways = ways * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * tail / (1 << tosses))


def spread(values: Sequence[float]) -> Distribution:
    """Mean, median, 95th percentile and sum of ``values``. All are 0 without values."""
    if not values:
        return Distribution()
    return Distribution(
        mean=fmean(values), median=float(median(values)), p95=percentile(values, 0.95), total=math.fsum(values)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


RESAMPLES = 2000
"""Number of resamples of a bootstrap. Efron and Tibshirani recommend at least 1000 for percentiles."""
FEWEST = 10
"""Minimum number of values for a bootstrap. With fewer values the interval is far too narrow."""
TOO_FEW = "too few tasks"
_DRAWS = 10_000
_EQUAL = 1e-9


def pass_at_k(samples: int, resolved: int, k: int) -> float:
    """The unbiased estimate of the probability that at least one of ``k`` samples resolves the task, k <= samples.

    The formula is 1 - C(n - c, k) / C(n, k): the share of subsets of k samples that contain a resolved sample. Source:
    M. Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374 (2021).
    """
    return 1.0 - math.comb(samples - resolved, k) / math.comb(samples, k)


def bootstrap(values: Sequence[float], confidence: float) -> Interval | None:
    """The percentile bootstrap interval for the mean. The seed is fixed, so the result is reproducible.

    Returns None for fewer than ``FEWEST`` values. Also None if all values are equal: the interval would have a width of
    0, which would suggest certainty. Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993),
    chapter 13.
    """
    if len(values) < FEWEST:
        return None
    draw, number = Random(0).choices, len(values)  # noqa: S311 - no secret
    means = sorted(math.fsum(draw(values, k=number)) / number for _ in range(RESAMPLES))
    outside = int((1 - confidence) / 2 * RESAMPLES)
    low, high = means[outside], means[-1 - outside]
    return Interval(low=low, high=high) if high - low > _EQUAL else None


def newcombe(both: int, only_a: int, only_b: int, neither: int, confidence: float) -> Interval:
    """The confidence interval for B's proportion minus A's over at least one pair.

    The method combines Wilson's intervals of both sides with their correlation. The interval has a positive width even
    if no pair differs, and stays between -1 and 1. Source: R. G. Newcombe, Improved confidence intervals for the
    difference between binomial proportions based on paired data, Statistics in Medicine 17 (1998), method 10.
    """
    number = both + only_a + only_b + neither
    a, b = (both + only_a) / number, (both + only_b) / number
    of_a, of_b = wilson(both + only_a, number, confidence), wilson(both + only_b, number, confidence)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    product = float(both * neither - only_a * only_b)
    if product > 0:
        product = max(product - number / 2, 0.0)
    phi = product / math.sqrt(margins) if margins else 0.0

    def reach(of_one: float, of_other: float) -> float:
        return math.sqrt(max(0.0, of_one**2 - 2 * phi * of_one * of_other + of_other**2))

    return Interval(low=b - a - reach(b - of_b.low, of_a.high - a), high=b - a + reach(of_b.high - b, a - of_a.low))


def randomization_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of the paired randomization test.

    It is the probability that the sum is at least as large if each difference gets a random sign, because under the
    null hypothesis both signs are equally likely. If all differences other than 0 have the same size, this is McNemar's
    test. Otherwise the probability is estimated from random signs with a fixed seed. Source: R. A. Fisher, The Design
    of Experiments (1935), chapter 3.
    """
    sizes = Counter(round(abs(each), 9) for each in differences if abs(each) > _EQUAL)
    if len(sizes) <= 1:
        return mcnemar(sum(each > _EQUAL for each in differences), sum(each < -_EQUAL for each in differences))
    observed, bits = abs(math.fsum(differences)) - _EQUAL, Random(0).getrandbits  # noqa: S311 - no secret
    hits = 0
    for _ in range(_DRAWS):
        total = math.fsum(size * (2 * bits(number).bit_count() - number) for size, number in sizes.items())
        hits += abs(total) >= observed
    return (hits + 1) / (_DRAWS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that the level bounds the probability of any false positive.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
    (1979).
    """
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


Key = TypeVar("Key", bound=Any)
CONFIDENCE = 0.95


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a million tokens of a model. All prices must have the same currency."""

    input: float
    output: float


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Figures over a group of episodes.

    Attributes:
        episodes: Number of all episodes.
        scored: Number of scored episodes.
        resolved: Number of resolved episodes.
        failed: Number of failed episodes.
        rate: Share of scored episodes that are resolved.
        interval: The confidence interval of ``rate``.
        pass_at_1: The mean over tasks of the share of a task's samples that resolved it: the probability that one
            episode resolves a random task. Equals ``rate`` if all tasks have the same number of samples.
        reasons: Number of episodes by outcome.
        steps: Steps of scored episodes; likewise the other ``Distribution`` values.
        cost: The cost of all tokens, None if it is unknown for an episode that used tokens.
        clean: Number of resolved episodes whose integrity label is clean, None if no scored episode has a label.
        signs: Number of episodes by integrity sign.
    """

    episodes: int
    scored: int
    resolved: int
    failed: int
    rate: float
    interval: Interval
    pass_at_1: float
    reasons: dict[str, int]
    steps: Distribution
    rewrites: Distribution
    seconds: Distribution
    input_tokens: Distribution
    output_tokens: Distribution
    cost: float | None = None
    clean: int | None = None
    signs: dict[str, int] = {}


class PassAtK(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The probability that at least one of ``k`` episodes of a task resolves it, as the mean over tasks.

    ``tasks`` is the number of tasks with at least ``k`` scored episodes. Other tasks are left out. ``interval`` is
    None if there are too few tasks.
    """

    k: int
    value: float
    interval: Interval | None
    tasks: int


def grouped(records: Sequence[EpisodeRow], key: Callable[[EpisodeRow], Key]) -> dict[Key, list[EpisodeRow]]:
    """The records by ``key``, sorted by key."""
    groups: defaultdict[Key, list[EpisodeRow]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return {name: groups[name] for name in sorted(groups)}


def resolve_rate(records: Sequence[EpisodeRow]) -> float | None:
    """The share of scored episodes that are resolved, or None without scored episodes."""
    scored = [record.resolved for record in records if record.is_scored]
    return fmean(scored) if scored else None


def cost_of(records: Sequence[EpisodeRow], prices: Mapping[str, Price]) -> float | None:
    """The cost of the tokens of ``records``, from the stored price of each episode or else from ``prices``.

    Returns None if the cost of an episode that used tokens is unknown, or if no episode used tokens.
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


def figures_of(records: Sequence[EpisodeRow], confidence: float, prices: Mapping[str, Price]) -> Group:
    """The figures over ``records``, with prices by model."""
    scored = [record for record in records if record.is_scored]
    resolved = sum(record.resolved for record in scored)
    rates = [resolve_rate(same) for same in grouped(scored, lambda record: record.task).values()]
    reasons = Counter(str(record.reason) for record in records)
    labelled = [record for record in scored if record.clean is not None]
    return Group(
        episodes=len(records),
        scored=len(scored),
        resolved=resolved,
        failed=sum(not record.reason.is_counted for record in records),
        rate=resolved / len(scored) if scored else 0.0,
        interval=wilson(resolved, len(scored), confidence),
        pass_at_1=fmean(rate for rate in rates if rate is not None) if rates else 0.0,
        reasons=_by_number(reasons),
        steps=spread([record.steps for record in scored]),
        rewrites=spread([record.rewrites for record in scored]),
        seconds=spread([record.seconds for record in scored]),
        input_tokens=spread([record.input_tokens for record in scored]),
        output_tokens=spread([record.output_tokens for record in scored]),
        cost=cost_of(records, prices),
        clean=sum(record.resolved for record in labelled if record.clean) if labelled else None,
        signs=_by_number(Counter(sign for record in scored for sign in record.signs)),
    )


def _by_number(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def passes(records: Sequence[EpisodeRow], confidence: float) -> tuple[PassAtK, ...]:
    """pass@k for k = 1, 2, 4, … and the maximum number of scored episodes of a task.

    The intervals are bootstraps over tasks. Empty if all tasks have at most one scored episode.
    """
    scored = grouped([record for record in records if record.is_scored], lambda record: record.task)
    counts = [(len(same), sum(record.resolved for record in same)) for same in scored.values()]
    most = max((number for number, _ in counts), default=0)
    found = []
    for k in sorted(
        {*(1 << power for power in range(most.bit_length()) if 1 << power < most), most} if most > 1 else ()
    ):
        values = [pass_at_k(number, resolved, k) for number, resolved in counts if number >= k]
        found.append(PassAtK(k=k, value=fmean(values), interval=bootstrap(values, confidence), tasks=len(values)))
    return tuple(found)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The episodes of results directories.

    Attributes:
        records: The newest result of each episode.
        unfinished: Paths of episodes that have an attempt but no readable result.
        superseded: The number of results of an earlier configuration of an episode that was run again. They are not
            in ``records``.
        left_out: The numbers of tasks that EpisodeSets leave out of benchmarks.
    """

    records: tuple[EpisodeRow, ...]
    unfinished: tuple[str, ...] = ()
    superseded: int = 0
    left_out: LeftOut = msgspec.field(default_factory=dict)


def read_run(directories: Sequence[Path], *, every_configuration: bool = False) -> Run:
    """Read results directories, or parts of them.

    For each episode, the newest attempt with a result is read. The index of ``dgym ui`` has the newest attempt instead,
    which may still be running (``EpisodeEntry``). The same agent and model may have run an episode in several
    configurations (an edited task, another step limit), or several times in a cluster. Then only the newest result is
    read, or all of them with ``every_configuration``.

    Raises:
        ManifestError: A directory does not exist, or the directories do not contain an episode.
    """
    records: dict[Path, EpisodeRow] = {}
    unfinished: list[str] = []
    superseded = 0
    left_out: LeftOut = {}
    for directory in directories:
        check_directory(directory)
        left_out |= read_left_out(directory)
        found = [_read_attempts(attempts) for attempts in find_episodes(directory)]
        kept = [record for record in found if isinstance(record, EpisodeRow)]
        ended = {_same(record): record.start_time for record in sorted(kept, key=lambda each: each.start_time)}
        open_runs = [run for run in found if isinstance(run, _Unfinished)]
        unfinished.extend(run.path for run in open_runs if every_configuration or not run.is_superseded(ended))
        if not every_configuration:
            newest = list(_newest(kept))
            superseded += len(kept) - len(newest)
            kept = newest
        records.update((Path(record.path).resolve(), record) for record in kept)
    if not records and not unfinished:
        raise ManifestError(f"{', '.join(map(str, directories))}: no results were found; dgym run writes results")
    ordered = sorted(records.values(), key=lambda record: (record.task, record.sample, record.agent, record.path))
    return Run(records=tuple(ordered), unfinished=tuple(sorted(unfinished)), superseded=superseded, left_out=left_out)


_Same = tuple[str, str, str, str, str, int]
"""The values that identify runs of the same episode by the same agent and model."""


class _Unfinished(msgspec.Struct, frozen=True):
    """An episode without a result: the path of its folder, and the header of its newest trajectory."""

    path: str
    header: TrajectoryHeader

    def is_superseded(self, ended: Mapping[_Same, str]) -> bool:
        """Whether a later run of the same episode has ended. ``ended`` has the start times of ended runs."""
        found = self.header
        agent, model = str(found.agent.get("name", "")), str(found.agent.get("model") or "")
        same = (found.namespace, found.episode, found.arm, agent, model, found.sample)
        return bool(found.start_time) and found.start_time < ended.get(same, "")


def _read_attempts(attempts: Sequence[Attempt]) -> EpisodeRow | _Unfinished:
    """The row of the newest result of an episode, or ``_Unfinished`` without a result."""
    for attempt in reversed(attempts):
        result = attempt.load()
        if result is not None:
            return read_row(attempt, result)
    return _Unfinished(str(attempts[-1].path.parent), attempts[-1].read_header())


def _same(record: EpisodeRow) -> _Same:
    return (record.namespace, record.episode, record.arm, record.agent, record.model, record.sample)


def _newest(records: Iterable[EpisodeRow]) -> Iterator[EpisodeRow]:
    by_episode: dict[_Same, list[EpisodeRow]] = defaultdict(list)
    for record in records:
        by_episode[_same(record)].append(record)
    for same in by_episode.values():
        yield max(same, key=lambda record: (record.start_time, record.path))
