import pytest

from parcels.events import BadEvent, parse, read
from parcels.report import summary
from parcels.tracker import Tracker


def track(text):
    tracker = Tracker()
    tracker.feed(read(text))
    return tracker


def test_lines_are_parsed():
    assert parse("P1 held Saint Etienne ") == ("P1", "held", "Saint Etienne")
    with pytest.raises(BadEvent):
        parse("P1 lost Lyon")


def test_a_plain_journey():
    tracker = track("P1 accepted Lyon\nP1 loaded Lyon\nP1 delivered Nice\n")
    assert tracker.in_state("delivered") == ["P1"]
    assert tracker.rejected == []


def test_a_held_parcel_goes_on_after_release():
    tracker = track("P1 accepted Lyon\nP1 loaded Lyon\nP1 held Nice\nP1 released Nice\nP1 delivered Nice\n")
    assert tracker.in_state("delivered") == ["P1"]


def test_a_held_parcel_cannot_be_loaded():
    tracker = track("P1 accepted Lyon\nP1 held Lyon\nP1 loaded Lyon\n")
    assert tracker.in_state("held") == ["P1"]
    assert len(tracker.rejected) == 1


def test_customs_and_depot_may_both_hold_it():
    tracker = track(
        "P1 accepted Lyon\nP1 loaded Lyon\nP1 held Nice customs\nP1 held Nice depot\nP1 released Nice depot\n"
        "P1 delivered Nice\n"
    )
    assert tracker.rejected == []
    assert tracker.in_state("delivered") == ["P1"]


def test_the_morning_report():
    text = """
    # parcel 1 is held twice while it is on the road
    P1 accepted Lyon
    P1 loaded Lyon
    P1 held Nice
    P1 held Nice
    P1 released Nice
    P2 accepted Lyon
    """
    assert summary(text) == "in depot: 1\non the road: 1"
