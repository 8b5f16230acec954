"""Who gets which agent, and for whom a sandbox is started. Pure.

Highest priority first, then oldest. Agents with the most free slots first, so that episodes spread over pods and the
loss of one costs the fewest.
"""

import heapq
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that wants a sandbox, or an agent.

    ``needs_slot`` is False for one that is driven from outside. ``previous`` is the agent it had; another is better.
    """

    priority: int
    created: datetime
    needs_slot: bool = True
    previous: str | None = None


def in_order(candidates: Mapping[K, Candidate]) -> list[K]:
    """Whose turn it is."""
    return sorted(candidates, key=lambda key: _rank(candidates[key]))


def first(candidates: Mapping[K, Candidate], number: int) -> list[K]:
    """The first few of them."""
    return heapq.nsmallest(max(0, number), candidates, key=lambda key: _rank(candidates[key]))


def choose(candidates: Mapping[K, Candidate], free: Mapping[str, int]) -> dict[K, str]:
    """An agent for each candidate while slots last; ``free`` holds every agent that takes more, full ones too."""
    left = dict(free)
    chosen: dict[K, str] = {}
    for key in in_order(candidates) if left else ():
        candidate = candidates[key]
        agent = _best(left, candidate)
        if agent is not None:
            chosen[key] = agent
            left[agent] -= candidate.needs_slot
    return chosen


def _best(left: Mapping[str, int], candidate: Candidate) -> str | None:
    open_ones: Iterable[str] = (agent for agent in left if left[agent] > 0 or not candidate.needs_slot)
    return max(open_ones, key=lambda agent: (agent != candidate.previous, left[agent], agent), default=None)


def _rank(candidate: Candidate) -> tuple[int, datetime]:
    return (-candidate.priority, candidate.created)
