"""Tests of the figures that `dgym run`, `dgym get` and `dgym ui` share."""

from datetime import UTC, datetime, timedelta

from dgym.cli.cluster.connection import Meta, SetView, SetViewStatus
from dgym.pace import Pace


def test_a_run_in_its_middle():
    pace = Pace(total=20, resolved=6, unresolved=2, failed=2, active=4, finished_lately=5, seconds=60.0)
    assert (pace.done, pace.left_seconds, pace.resolve_rate) == (10, 120.0, 0.75)
    assert str(pace) == "6 resolved, 2 unresolved, 2 failed · 4 active · 75 % resolved · 5.0/min · ETA 0:02:00"


def test_before_the_first_end_rates_are_unknown():
    pace = Pace(total=3, active=3, seconds=10.0)
    assert (pace.rate, pace.left_seconds, pace.resolve_rate) == (0.0, None, None)
    assert str(pace) == "0 resolved, 0 unresolved, 0 failed · 3 active"


def test_at_the_end_the_remaining_time_is_0():
    pace = Pace(total=2, resolved=2, finished_lately=2, seconds=0.5)
    assert pace.left_seconds == 0.0
    assert str(pace) == "2 resolved, 0 unresolved, 0 failed · 0 active · 100 % resolved"


def test_without_scored_episodes_or_with_negative_time_there_is_no_rate():
    pace = Pace(total=2, failed=1, finished_lately=1, seconds=-5.0)
    assert (pace.resolve_rate, pace.rate, pace.left_seconds) == (None, 0.0, None)


def test_a_set_of_a_cluster_has_the_same_figures():
    began = datetime.now(UTC) - timedelta(minutes=10)
    ended = began + timedelta(minutes=5)
    counts = {"total": 40, "resolved": 9, "unresolved": 3, "failed": 8, "active": 5}
    status = SetViewStatus(**counts, start_time=began, completion_time=ended)
    view = SetView(metadata=Meta(name="nightly"), status=status)
    assert view.pace == Pace(**counts, finished_lately=20, seconds=300.0)
    assert view.message.startswith("20/40 finished: 9 resolved, 3 unresolved, 8 failed · 5 active · 75 % resolved")
