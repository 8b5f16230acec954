"""Costs, in the currency of the models' prices: decimal numbers, which travel and are stored as text."""

from decimal import Decimal, InvalidOperation

_LARGEST = Decimal(10**12 - 1)
_SMALLEST = Decimal("1e-12")


def read_cost(text: str | None) -> Decimal:
    """The cost in ``text``; 0 for None and for text that is not a number from 0 to 999,999,999,999."""
    try:
        cost = Decimal(text or 0)
    except InvalidOperation:
        return Decimal(0)
    return cost if cost.is_finite() and 0 < cost <= _LARGEST else Decimal(0)


def write_cost(cost: Decimal) -> str:
    """The cost as text, without exponent and with twelve digits before and after the point at most."""
    return format(min(cost, _LARGEST).quantize(_SMALLEST).normalize(), "f")
