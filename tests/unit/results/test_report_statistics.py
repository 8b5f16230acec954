import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.results.report._groups import (
    bootstrap,
    holm,
    mcnemar,
    newcombe,
    pass_at_k,
    percentile,
    randomization_test,
    spread,
    wilson,
)

COUNTS = st.integers(min_value=0, max_value=400)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_agrees_with_published_values(successes, trials, low, high):
    interval = wilson(successes, trials, 0.95)
    assert interval.low == pytest.approx(low, abs=1e-4)
    assert interval.high == pytest.approx(high, abs=1e-4)


@given(trials=st.integers(min_value=1, max_value=10_000), data=st.data(), confidence=st.floats(0.5, 0.9999))
def test_wilson_contains_the_estimate_and_is_symmetric(trials, data, confidence):
    successes = data.draw(st.integers(min_value=0, max_value=trials))
    interval = wilson(successes, trials, confidence)
    assert 0 <= interval.low <= successes / trials <= interval.high <= 1
    assert interval.low < interval.high
    mirrored = wilson(trials - successes, trials, confidence)
    assert mirrored.low == pytest.approx(1 - interval.high, abs=1e-9)


def test_without_trials_the_interval_is_0_to_1():
    interval = wilson(0, 0, 0.95)
    assert (interval.low, interval.high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 1, 14 / 64), (6, 0, 2 / 64), (3, 3, 1.0), (10, 2, 158 / 4096)],
)
def test_mcnemar_is_the_exact_binomial_test(better, worse, p):
    assert mcnemar(better, worse) == pytest.approx(p)
    assert mcnemar(worse, better) == pytest.approx(p)


@given(better=COUNTS, worse=COUNTS)
def test_mcnemar_sums_the_tails_of_the_binomial_distribution(better, worse):
    tosses = better + worse
    as_extreme = [k for k in range(tosses + 1) if abs(2 * k - tosses) >= abs(better - worse)]
    expected = sum(math.comb(tosses, k) for k in as_extreme) / 2**tosses
    assert mcnemar(better, worse) == pytest.approx(min(1.0, expected))


def test_mcnemar_of_ten_thousand_tasks_is_a_number():
    assert 0 <= mcnemar(6000, 4000) < 1e-50


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_mean_median_and_percentile_are_between_minimum_and_maximum(values):
    found = spread(values)
    smallest, greatest = min(values), max(values)
    slack = 1e-9 * (1 + greatest)
    for one in (found.mean, found.median, found.p95):
        assert smallest - slack <= one <= greatest + slack
    assert found.total == pytest.approx(sum(values))
    assert sum(value <= percentile(values, 0.95) for value in values) >= 0.95 * len(values)


def test_the_spread_of_nothing_is_zero():
    assert spread([]).mean == spread([]).total == 0.0


@given(samples=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_resolved_sample(samples, data):
    resolved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    subsets = list(itertools.combinations([True] * resolved + [False] * (samples - resolved), k))
    assert pass_at_k(samples, resolved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(
    ("table", "low", "high"),
    # The first case is in Newcombe's table of examples. The others were computed by hand with his formula.
    [((20, 12, 2, 16), 0.0562, 0.3292), ((54, 0, 0, 0), -0.0664, 0.0664), ((0, 30, 0, 20), 0.4445, 0.7239)],
)
def test_newcombes_interval_of_paired_proportions(table, low, high):
    both, one, other, neither = table
    found = newcombe(both, other, one, neither, 0.95)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.tuples(*[st.integers(0, 200)] * 4).filter(any), st.floats(0.5, 0.999))
def test_newcombes_interval_holds_the_difference_and_mirrors(table, confidence):
    both, only_a, only_b, neither = table
    found, difference = newcombe(*table, confidence), (only_b - only_a) / sum(table)
    assert -1 - 1e-9 <= found.low <= difference + 1e-9
    assert difference - 1e-9 <= found.high <= 1 + 1e-9
    assert found.low < found.high
    mirrored = newcombe(both, only_b, only_a, neither, confidence)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_a_bootstrap_of_shares_is_near_the_interval_of_the_normal_distribution():
    values = [0.0] * 60 + [1.0] * 40
    found = bootstrap(values, 0.95)
    assert found == bootstrap(values, 0.95)
    margin = 1.96 * math.sqrt(0.4 * 0.6 / 100)
    assert (found.low, found.high) == (pytest.approx(0.4 - margin, abs=0.02), pytest.approx(0.4 + margin, abs=0.02))


# Hundredths, because the interval of floats that are almost equal has the width zero.
@given(st.lists(st.integers(-100, 100).map(lambda hundredths: hundredths / 100), min_size=1, max_size=14))
def test_a_bootstrap_is_within_the_values_and_none_for_few_or_equal_values(values):
    found = bootstrap(values, 0.9)
    if found is not None:
        assert len(values) >= 10
        assert min(values) - 1e-9 <= found.low < found.high <= max(values) + 1e-9
    else:
        assert len(values) < 10 or max(Counter(values).values()) > len(values) / 2


@pytest.mark.parametrize("values", [[0.5] * 50, [0.0, 0.5, 1.0] * 3])
def test_a_bootstrap_of_equal_or_few_values_has_no_interval(values):
    assert bootstrap(values, 0.95) is None


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=50))
def test_the_randomization_test_of_single_samples_is_mcnemars(differences):
    assert randomization_test(differences) == mcnemar(differences.count(1.0), differences.count(-1.0))


@pytest.mark.parametrize("differences", [(0.5, 0.25, 1.0, -0.25, 0.75), (1 / 3, -2 / 3, 1 / 3, 1.0, 1.0, 0.0, 2 / 3)])
def test_the_randomization_test_counts_signs(differences):
    sums = [
        abs(sum(sign * each for sign, each in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    exact = sum(each >= abs(sum(differences)) - 1e-9 for each in sums) / len(sums)
    assert randomization_test(differences) == pytest.approx(exact, abs=0.02)


def test_p_values_are_adjusted_as_holm_does():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
