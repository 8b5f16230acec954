"""Bills by the month."""

from calendar import monthrange
from datetime import date


def month(meter, year, number, price):
    """What a month costs, in cents."""
    last = monthrange(year, number)[1]
    return meter.used(date(year, number, 1), date(year, number, last)) * price


def compare(meter, year, numbers, price):
    """Months of a year with their costs, dearest first."""
    costs = [(month(meter, year, number, price), number) for number in numbers]
    return [(number, cost) for cost, number in sorted(costs, key=lambda pair: (-pair[0], pair[1]))]
