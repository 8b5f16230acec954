"""Which episodes get a sandbox, and which agent serves which episode. Pure.

The namespace with the fewest active episodes comes first; in a namespace the highest priority, then the oldest. Agents
with the most free slots first, so that episodes spread over pods and the loss of one costs the fewest.
"""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
Rank = tuple[int, datetime]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that wants a sandbox, or an agent.

    ``needs_slot`` is False for one that is driven from outside. ``previous`` is the agent it had; another is better.
    """

    namespace: str
    priority: int
    created: datetime
    needs_slot: bool = True
    previous: str | None = None


def in_turn(candidates: Mapping[K, Candidate], active: Mapping[str, int]) -> Iterator[K]:
    """The candidates in the order of admission; ``active`` are the slots that each namespace uses already.

    Every candidate counts as active for those behind it, so that namespaces that wait take turns.
    """
    queues: defaultdict[str, list[tuple[Rank, int, K]]] = defaultdict(list)
    for number, (key, candidate) in enumerate(candidates.items()):
        queues[candidate.namespace].append((_rank(candidate), number, key))
    turns: list[tuple[int, Rank, str]] = []
    for namespace, queue in queues.items():
        heapq.heapify(queue)
        turns.append((active.get(namespace, 0), queue[0][0], namespace))
    heapq.heapify(turns)
    while turns:
        used, _, namespace = heapq.heappop(turns)
        queue = queues[namespace]
        key = heapq.heappop(queue)[2]
        yield key
        if queue:
            heapq.heappush(turns, (used + candidates[key].needs_slot, queue[0][0], namespace))


def first(candidates: Mapping[K, Candidate], number: int, active: Mapping[str, int]) -> list[K]:
    """The first ``number`` candidates in the order of admission."""
    return list(islice(in_turn(candidates, active), number)) if number > 0 else []


def choose(candidates: Mapping[K, Candidate], free: Mapping[str, int], active: Mapping[str, int]) -> dict[K, str]:
    """An agent for each candidate while slots last; ``free`` holds every agent that takes more, full ones too."""
    left = dict(free)
    chosen: dict[K, str] = {}
    for key in in_turn(candidates, active) if left else ():
        candidate = candidates[key]
        agent = _best(left, candidate)
        if agent is not None:
            chosen[key] = agent
            left[agent] -= candidate.needs_slot
    return chosen


def _best(left: Mapping[str, int], candidate: Candidate) -> str | None:
    open_ones: Iterable[str] = (agent for agent in left if left[agent] > 0 or not candidate.needs_slot)
    return max(open_ones, key=lambda agent: (agent != candidate.previous, left[agent], agent), default=None)


def _rank(candidate: Candidate) -> Rank:
    return (-candidate.priority, candidate.created)
