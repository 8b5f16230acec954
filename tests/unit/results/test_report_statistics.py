import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.results.report.statistics import mcnemar, percentile, spread, wilson

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
def test_wilson_holds_the_estimate_within_0_and_1_and_mirrors(trials, data, confidence):
    successes = data.draw(st.integers(min_value=0, max_value=trials))
    interval = wilson(successes, trials, confidence)
    assert 0 <= interval.low <= successes / trials <= interval.high <= 1
    assert interval.low < interval.high
    mirrored = wilson(trials - successes, trials, confidence)
    assert mirrored.low == pytest.approx(1 - interval.high, abs=1e-9)


def test_without_trials_everything_is_possible():
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
def test_a_spread_lies_within_its_values(values):
    found = spread(values)
    smallest, greatest = min(values), max(values)
    slack = 1e-9 * (1 + greatest)
    for one in (found.mean, found.median, found.p95):
        assert smallest - slack <= one <= greatest + slack
    assert found.total == pytest.approx(sum(values))
    assert sum(value <= percentile(values, 0.95) for value in values) >= 0.95 * len(values)


def test_the_spread_of_nothing_is_zero():
    assert spread([]).mean == spread([]).total == 0.0
