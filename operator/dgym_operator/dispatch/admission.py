"""The order in which episodes get sandboxes and agents, and the causes that hold them up. Pure.

The namespace with the fewest active episodes comes first; in a namespace the highest priority, then the oldest. Agents
with the most free slots come first, so that episodes spread over pods and the loss of one costs the fewest.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec

from dgym.kube import Key
from dgym_operator.cache import Agents
from dgym_operator.controllers.episode import Cause

K = TypeVar("K", bound=Hashable)
Rank = tuple[int, datetime]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that requests a sandbox or an agent.

    ``needs_slot`` is False for an episode driven from outside. ``previous`` is its last agent; another is preferred.
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
    """An agent for each candidate while slots last; ``free`` has every agent that takes more, full ones too."""
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


_BUSY = (
    "every slot of the agents is taken, by an episode or for a sandbox that starts; "
    "more agents or agents.slots serve more episodes at a time"
)
_NO_AGENT = "there is no agent pod; see agents.replicas, and the Deployment of the agents"


class Stuck(msgspec.Struct, frozen=True):
    """A pod that cannot start, and why."""

    pod: str
    cause: Cause


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """Why requests are not granted: for lack of agents, and in some namespaces because of stuck pods."""

    agents: str = ""
    namespaces: Mapping[str, str] = {}

    def of_pod(self, namespace: str) -> str:
        """Why the namespace's episodes get no pod."""
        return self.namespaces.get(namespace, self.agents)


def find_holds(agents: Agents, stuck: Mapping[Key, Stuck], limit: int) -> Holds:
    """The present holds. ``limit``: how many pods of a namespace may be stuck at a time.

    The texts change only when the cause does, not with every slot that is taken: each change is a write for every
    episode that waits.
    """
    counts = Counter(namespace for namespace, _ in stuck)
    full = {namespace for namespace, count in counts.items() if count >= limit}
    oldest: dict[str, Stuck] = {}
    for (namespace, _), each in sorted(stuck.items(), key=lambda item: (item[1].cause.since, item[0])):
        if namespace in full:
            oldest.setdefault(namespace, each)
    texts = {namespace: _stuck_text(namespace, each, limit) for namespace, each in oldest.items()}
    return Holds(agents=_agents_text(agents), namespaces=texts)


def _stuck_text(namespace: str, example: Stuck, limit: int) -> str:
    return (
        f"namespace {namespace} has {limit} pods or more that cannot start, such as {example.pod} "
        f"({example.cause.reason}); correct or cancel their episodes, or raise sandboxes.maxStuckPods"
    )


def _agents_text(agents: Agents) -> str:
    known = sorted(agents, key=lambda agent: agent.name)
    if any(agents.open_slots(agent) is not None for agent in known):
        return _BUSY
    if not known:
        return _NO_AGENT
    draining = [agent for agent in known if agent.draining_since is not None and not agents.is_silent(agent)]
    if draining:
        return f"no agent takes new episodes: pod {draining[0].name} drains"
    failing = next((agent for agent in known if agent.ready and agent.failure), None)
    if failing is not None:
        return f"no agent answers: pod {failing.name}: {failing.failure}"
    if any(agent.ready for agent in known):
        return "no agent has answered yet"
    return f"no agent is ready: see pod {known[0].name} in the namespace of the agents"
