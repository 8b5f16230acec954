"""The statistics of reports, exact and without dependencies."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, median

import msgspec


class Interval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The bounds of a confidence interval."""

    low: float
    high: float


class Spread(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a quantity is distributed."""

    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    total: float = 0.0


def wilson(successes: int, trials: int, confidence: float) -> Interval:
    """Wilson's score interval for a proportion; with no trial everything is possible.

    Chosen because it keeps its coverage for few trials and for proportions at 0 and 1, where the usual interval
    (estimate plus and minus z standard errors) has no width at all. E. B. Wilson, Probable inference, the law of
    succession, and statistical inference, JASA 22 (1927); compared with others by Brown, Cai and DasGupta,
    Interval estimation for a binomial proportion, Statistical Science 16 (2001).
    """
    if trials == 0:
        return Interval(low=0.0, high=1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # Rounding must not push a bound beyond the estimate itself at 0 and 1.
    low = 0.0 if successes == 0 else (centre - margin) / scale
    high = 1.0 if successes == trials else (centre + margin) / scale
    return Interval(low=max(0.0, low), high=min(1.0, high))


def mcnemar(better: int, worse: int) -> float:
    """The two-sided p-value of McNemar's exact test for that many pairs that differ either way.

    If both sides were equal, each such pair would be a toss of a fair coin. Q. McNemar, Note on the sampling error of
    the difference between correlated proportions or percentages, Psychometrika 12 (1947), with the binomial
    distribution in place of its approximation.
    """
    tosses = better + worse
    ways, tail = 1, 0
    for heads in range(min(better, worse) + 1):
        tail += ways
        ways = ways * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * tail / (1 << tosses))


def spread(values: Sequence[float]) -> Spread:
    """Mean, median, 95th percentile and sum; all 0 of nothing."""
    if not values:
        return Spread()
    return Spread(
        mean=fmean(values), median=float(median(values)), p95=percentile(values, 0.95), total=math.fsum(values)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])
