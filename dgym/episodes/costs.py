"""What the attempts at an episode of this machine have cost, in the currency of the model's prices."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.episodes.job import Job
from dgym.results import Attempt, EpisodeFolder, StoredResult, trajectory_lines
from dgym.wire import read_cost, write_cost


class _Usage(msgspec.Struct, frozen=True):
    price: str | None = None


class _Exchange(msgspec.Struct, frozen=True):
    usage: _Usage = _Usage()


class _Line(msgspec.Struct, frozen=True):
    exchanges: tuple[_Exchange, ...] = ()


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


class SetCosts:
    """What the episodes of each set with a ``costLimit`` have cost.

    Args:
        jobs: All jobs of the sets, also those that do not run again: their results count.
        afresh: Whether all of them run again: earlier results do not count.
    """

    def __init__(self, jobs: Iterable[Job], *, afresh: bool = False) -> None:
        self._spent: defaultdict[str, Decimal] = defaultdict(Decimal)
        self._lost: dict[str, Decimal] = {}
        for job in jobs:
            if job.cost_limit is not None:
                self._lost[job.results_path] = lost = lost_cost(job.folder)
                self._spent[job.group] += lost + (Decimal(0) if afresh else _stored_cost(job.folder))

    def add(self, job: Job, result: StoredResult) -> None:
        """Count a job that is over. Its result includes the attempts before it that were lost."""
        if job.cost_limit is not None:
            self._spent[job.group] += read_cost(result.price) - self._lost.get(job.results_path, Decimal(0))
            self._lost[job.results_path] = Decimal(0)

    def spent(self, job: Job) -> str | None:
        """What the set of the job has cost, if that is its ``costLimit`` or more."""
        spent = self._spent[job.group]
        return write_cost(spent) if job.cost_limit is not None and spent >= read_cost(job.cost_limit) else None


def _stored_cost(folder: EpisodeFolder) -> Decimal:
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
