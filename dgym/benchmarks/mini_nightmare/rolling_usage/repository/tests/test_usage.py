from datetime import date

import pytest

from usage.bill import compare, month
from usage.meter import Meter
from usage.sums import RunningSums


def year(capacity):
    """A meter read at the end of each month; the usage of a day is the number of its month."""
    meter = Meter(date(2023, 1, 1), 0, capacity)
    reading = 0
    for number in range(1, 13):
        first = date(2023, number, 1)
        after = date(2023, number + 1, 1) if number < 12 else date(2024, 1, 1)
        reading += number * (after - first).days
        meter.read(after, reading)
    return meter


def test_totals_of_ranges():
    sums = RunningSums()
    for value in (5, 0, 2, 7):
        sums.append(value)
    assert sums.total(0, 3) == 14
    assert sums.total(1, 2) == 2
    with pytest.raises(LookupError):
        sums.total(2, 4)


def test_a_reading_is_spread_over_the_days():
    meter = Meter(date(2024, 5, 1), 100)
    meter.read(date(2024, 5, 4), 107)
    assert [meter.used(date(2024, 5, day), date(2024, 5, day)) for day in (1, 2, 3)] == [3, 2, 2]


def test_months_of_a_year():
    meter = year(capacity=1000)
    assert month(meter, 2023, 3, price=10) == 3 * 31 * 10
    assert compare(meter, 2023, [1, 2, 12], price=1) == [(12, 372), (2, 56), (1, 31)]


def test_readings_must_go_forward():
    with pytest.raises(ValueError):
        Meter(date(2024, 5, 1), 100).read(date(2024, 5, 2), 99)


def test_the_last_days_stay_known():
    meter = year(capacity=100)
    assert meter.known()[1] == date(2023, 12, 31)
    assert month(meter, 2023, 12, price=10) == 12 * 31 * 10


def test_dropping_old_values_changes_no_total():
    small, large = RunningSums(capacity=4), RunningSums()
    for value in (1, 2, 3, 4, 5, 6):
        small.append(value)
        large.append(value)
    assert small.end == large.end == 6
    assert small.total(4, 5) == large.total(4, 5) == 11
