"""The statistics of reports, without dependencies."""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import NormalDist, fmean, median

import msgspec


class Interval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The bounds of a confidence interval."""

    low: float
    high: float

    @property
    def percent(self) -> str:
        """The bounds in percent."""
        return f"{self.low * 100:.1f} to {self.high * 100:.1f}"


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


RESAMPLES = 2000
"""Of a bootstrap; Efron and Tibshirani take 1000 and more for percentiles."""
FEWEST = 10
"""Values of a bootstrap: fewer give an interval that is far too narrow."""
TOO_FEW = "too few tasks to tell"
_DRAWS = 10_000
_EQUAL = 1e-9


def pass_at_k(samples: int, resolved: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of ``k`` samples resolves the task, k <= samples.

    1 - C(n - c, k) / C(n, k), the share of the subsets of k samples with a resolved one: M. Chen et al., Evaluating
    Large Language Models Trained on Code, arXiv:2107.03374 (2021).
    """
    return 1.0 - math.comb(samples - resolved, k) / math.comb(samples, k)


def bootstrap(values: Sequence[float], confidence: float) -> Interval | None:
    """The percentile bootstrap's interval for the mean; the same in every run.

    None for fewer than ``FEWEST`` values, and where all are equal, as every resample of them is: an interval without
    width would look like certainty. B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if len(values) < FEWEST:
        return None
    draw, number = Random(0).choices, len(values)  # noqa: S311 - no secret
    means = sorted(math.fsum(draw(values, k=number)) / number for _ in range(RESAMPLES))
    outside = int((1 - confidence) / 2 * RESAMPLES)
    low, high = means[outside], means[-1 - outside]
    return Interval(low=low, high=high) if high - low > _EQUAL else None


def newcombe(both: int, only_a: int, only_b: int, neither: int, confidence: float) -> Interval:
    """The interval for B's proportion minus A's over pairs, of which there is at least one.

    R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions based on paired data,
    Statistics in Medicine 17 (1998), method 10: Wilson's intervals of both sides and the correlation between them. It
    has a width where no pair differs, and stays between -1 and 1.
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
    """The two-sided p-value of the paired randomization test: how often do random signs give so large a sum?

    If both sides were equal, each difference would have either sign with the same chance. Where all differences that
    are not 0 have one size, this is McNemar's test; else it is computed from random signs, the same in every run.
    R. A. Fisher, The Design of Experiments (1935), chapter 3.
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
    """The p-values of several tests, adjusted so that the chance of any false finding is bounded by the level.

    S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    """
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
