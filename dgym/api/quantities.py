"""Kubernetes quantities ("500m", "1Gi") as numbers. Grammar: the API conventions' resource.Quantity."""

import re
from decimal import Decimal

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([KMGTPE]i)|[eE]([0-9]+)|([numkMGTPE]?))")


def parse_quantity(text: str) -> Decimal:
    """The value of a quantity in its base unit (bytes, cores).

    Raises:
        ValueError: It is not a quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as '500m', '2' or '1Gi'")
    number, binary, exponent, suffix = match.groups()
    if binary:
        return Decimal(number) * Decimal(1024) ** _BINARY[binary]
    return Decimal(number).scaleb(int(exponent) if exponent else _DECIMAL[suffix or ""])
