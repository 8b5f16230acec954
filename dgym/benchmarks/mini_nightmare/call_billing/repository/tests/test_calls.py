import pytest

from calls.clock import parse
from calls.invoice import by_day, total
from calls.records import read

LOG = [
    "555-1; 2024-03-05T10:00:00+01:00; 2024-03-05T10:00:30+01:00",
    "555-2; 2024-03-05T09:30:00Z; 2024-03-05T09:35:00Z",
    "",
]


def test_moments_of_different_zones_compare():
    assert parse("2024-03-05T10:00:00+05:30") == parse("2024-03-05T04:30:00Z")
    assert parse("2024-03-05T10:00:00-05:00") == parse("2024-03-05T15:00:00Z")


def test_nonsense_is_refused():
    with pytest.raises(ValueError):
        parse("2024-03-05 10:00")


def test_calls_come_in_the_order_of_their_beginning():
    assert [call.number for call in read(reversed(LOG))] == ["555-1", "555-2"]


def test_day_and_night_rates():
    assert total(LOG, "+01:00") == 12 + 5 * 12
    assert total(LOG, "-05:00") == 5 + 5 * 5


def test_a_day_begins_at_local_midnight():
    late = ["555-1; 2024-03-05T23:45:00-03:30; 2024-03-05T23:46:00-03:30"]
    assert list(by_day(late, "-03:30")) == ["2024-03-05"]
    assert list(by_day(late, "Z")) == ["2024-03-06"]


def test_a_call_between_zones_lasts_as_long_as_it_lasts():
    (call,) = read(["555-1; 2024-03-05T12:00:00-03:30; 2024-03-05T15:31:00Z"])
    assert call.seconds == 60


def test_calls_in_newfoundland_are_dearer_by_day():
    log = ["555-1; 2024-03-05T10:15:00Z; 2024-03-05T10:16:00Z", "555-1; 2024-03-05T10:45:00Z; 2024-03-05T10:46:00Z"]
    assert total(log, "-03:30") == 5 + 12
