"""What a week costs the customer.

Work is charged by the quarter of an hour, to the nearest one for each task;
at the weekend it costs half as much again.
"""

from timesheet.entries import read
from timesheet.money import *

QUARTER = 15


def quarters(minutes):
    """Quarters of an hour, to the nearest."""
    return round(minutes / QUARTER)


def by_task(entries):
    """Minutes on working days and at the weekend, by task in the order of their first entry."""
    tasks = {}
    for entry in entries:
        spent = tasks.setdefault(entry.task, [0, 0])
        spent[entry.day in ("sat", "sun")] += entry.minutes
    return tasks


def positions(text, hourly):
    """Each task with its hours and its price."""
    rate = amount(hourly) / 4
    result = []
    for task, (week, weekend) in by_task(read(text)).items():
        charged, extra = quarters(week), quarters(weekend)
        price = amount(rate * charged + rate * extra * 3 / 2)
        result.append((task, (charged + extra) / 4, price))
    return result


def invoice(text, hourly, vat=20):
    """The invoice as lines of text."""
    lines = []
    net = amount(0)
    for task, hours, price in positions(text, hourly):
        lines.append("{:<20}{:>7.2f} h  {}".format(task, hours, show(price)))
        net += price
    lines.append("{:<31}{}".format("net", show(net)))
    lines.append("{:<31}{}".format("with VAT", show(net + share(net, vat))))
    return lines
