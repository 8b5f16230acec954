"""Amounts of money: decimal numbers of two places, rounded as merchants do."""

from decimal import ROUND_HALF_UP, Decimal

CENT = Decimal("0.01")


def amount(value):
    """A number or text as an amount."""
    return round(Decimal(str(value)))


def round(value):
    """Half a cent and more is a cent."""
    return Decimal(str(value)).quantize(CENT, rounding=ROUND_HALF_UP)


def share(value, percent):
    """So many percent of an amount."""
    return round(Decimal(value) * Decimal(percent) / 100)


def show(value, currency="EUR"):
    """An amount as it stands on paper."""
    return "{} {:,.2f}".format(currency, value)
