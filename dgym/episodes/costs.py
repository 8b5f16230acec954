"""What the attempts at an episode of this machine have cost, in the currency of the model's prices."""

import contextlib
from decimal import Decimal, InvalidOperation

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.results import Attempt, EpisodeFolder, trajectory_lines


class _Usage(msgspec.Struct, frozen=True):
    price: str | None = None


class _Exchange(msgspec.Struct, frozen=True):
    usage: _Usage = _Usage()


class _Line(msgspec.Struct, frozen=True):
    exchanges: tuple[_Exchange, ...] = ()


def read_cost(text: str | None) -> Decimal:
    """A cost as it is stored; 0 where there is none, or it is not a number that can be added."""
    with contextlib.suppress(InvalidOperation):
        value = Decimal(text or 0)
        if value.is_finite() and value > 0:
            return value
    return Decimal(0)


def lost_cost(folder: EpisodeFolder) -> Decimal:
    """The cost of the newest attempts without a result: their process died, or was interrupted.

    The result of the next attempt includes it.
    """
    total = Decimal(0)
    for attempt in reversed(folder.attempts()):
        if attempt.load() is not None:
            break
        total += _recorded_cost(attempt)
    return total


def stored_cost(folder: EpisodeFolder) -> Decimal:
    """The cost of all attempts that have a result, and of those whose cost is part of one."""
    results = (attempt.load() for attempt in folder.attempts())
    return sum((read_cost(result.price) for result in results if result is not None), Decimal(0))


def _recorded_cost(attempt: Attempt) -> Decimal:
    total = Decimal(0)
    with contextlib.suppress(OSError):
        for line in trajectory_lines(attempt.trajectory):
            with contextlib.suppress(*DECODE_ERRORS):
                exchanges = msgspec.json.decode(line, type=_Line).exchanges
                total += sum((read_cost(each.usage.price) for each in exchanges), Decimal(0))
    return total
