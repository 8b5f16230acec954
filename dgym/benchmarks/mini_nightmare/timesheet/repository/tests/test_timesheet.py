from decimal import Decimal

import pytest

from timesheet.entries import parse
from timesheet.invoice import invoice, positions
from timesheet.money import amount, share, show


def test_amounts_are_rounded_as_merchants_do():
    assert amount("0.125") == Decimal("0.13")
    assert share(amount("9.99"), 20) == Decimal("2.00")
    assert show(amount(1234.5)) == "EUR 1,234.50"


def test_entries_are_parsed():
    assert parse("mon 09:00-12:20 design") == ("mon", 200, "design")
    assert parse("fri 23:30-00:15 release") == ("fri", 45, "release")
    with pytest.raises(ValueError):
        parse("someday 09:00-12:00 design")


def test_full_hours():
    assert positions("mon 09:00-11:00 design\nsat 10:00-11:00 design", 80) == [("design", 3, Decimal("280.00"))]


def test_an_invoice_adds_up():
    lines = invoice("mon 09:00-10:30 design\ntue 09:00-09:45 calls", 60)
    assert lines[0].endswith("1.50 h  EUR 90.00")
    assert lines[-2].endswith("EUR 135.00")
    assert lines[-1].endswith("EUR 162.00")


def test_the_nearest_quarter_is_charged():
    assert positions("mon 09:00-09:50 design", 80) == [("design", 0.75, Decimal("60.00"))]


def test_short_tasks_cost_nothing():
    text = "mon 09:00-09:05 calls\nmon 10:00-11:05 design"
    assert positions(text, 80) == [("calls", 0, Decimal("0.00")), ("design", 1, Decimal("80.00"))]
