"""Invoices by subscriber."""

from collections import OrderedDict

from calls.clock import parse_offset
from calls.records import read
from calls.tariff import price


def by_day(lines, offset):
    """What each local day cost, oldest first."""
    zone = parse_offset(offset)
    days = OrderedDict()
    for call in read(lines):
        day = call.start.astimezone(zone).date().isoformat()
        days[day] = days.get(day, 0) + price(call, zone)
    return days


def total(lines, offset):
    """Everything together."""
    return sum(by_day(lines, offset).values())
