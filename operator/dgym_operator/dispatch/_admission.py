"""Admission: the order in which waiting episodes start. ``choose`` also selects the agent pod.

ResourceQuota and Kueue limit the pods of a namespace. They cannot decide which episode gets the next slot of an agent
pod, how many sandboxes start before a slot is free, and how many images are pulled at once. This module decides that.
Measured in simulations: 80 episodes on 8 slots end after 402 s without a head start, 298 s with 4 and 293 s with 8. If
60 of 200 episodes on 16 slots pull an image of their own, an episode ends after 1,975 s on average without a limit of
pulls, and after 529 s with a limit of 4.

The order is the fair share between namespaces, then priority, then age. The share of a namespace is its number of used
slots divided by its weight, and the namespace with the lowest share comes first. So the shares deviate from the weights
by at most one grant. A namespace that has reached ``maxActive`` starts no more episodes. Episodes whose image must be
pulled wait for ``PullBudget`` and do not delay other episodes.

The functions are pure: they use no cache and no clock. The cost of a grant depends on the number of waiting namespaces
and of the images that their episodes wait for, and not on the number of episodes.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from dgym.kube import Key
from dgym_operator.chart_values import NamespacePolicies

Rank = tuple[int, datetime, int, str]
"""Negative priority, creation time, index in the set, and name. A set creates many episodes in the same second."""


class _CandidateKind(NamedTuple):
    """The properties of a candidate, other than its rank, that decide if it may be granted."""

    needs_slot: bool
    active: bool
    image: str
    model: str


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that requests a sandbox pod or an agent pod.

    Attributes:
        priority: Higher priorities come first within a namespace.
        created: When the Episode was created.
        needs_slot: False for an episode with an external driver.
        active: True if the episode already counts against ``maxActive``, as one that lost its agent pod does.
        previous: UID of its last agent pod. Another agent pod is preferred.
        image: Image of its task if a sandbox pod is requested. Empty: the default image.
        index: Index in its set. 0 outside of sets.
        model: Model of its agent. Empty if the agent does not use a model.
    """

    priority: int
    created: datetime
    needs_slot: bool = True
    active: bool = False
    previous: str | None = None
    image: str = ""
    index: int = 0
    model: str = ""


class ModelsOut:
    """Models that are out, by agent pod. Such an agent pod accepts at most one episode with the model, as a probe.

    Attributes:
        probed: Pairs of the UID of an agent pod and a model for which it has accepted a probe.

    Args:
        due: True if a probe is due, by the UID of the agent pod and the model.
    """

    def __init__(self, due: Mapping[tuple[str, str], bool] | None = None) -> None:
        self.probed: set[tuple[str, str]] = set()
        self._due = due or {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def accepts(self, agent_pod: str, model: str) -> bool:
        """True if the agent pod accepts an episode with the model."""
        return self._due.get((agent_pod, model), True) and (agent_pod, model) not in self.probed

    def is_probe(self, agent_pod: str, model: str) -> bool:
        """True if an episode with the model would be a probe in this agent pod."""
        return (agent_pod, model) in self._due

    def take(self, agent_pod: str, model: str) -> None:
        """Record an episode with the model that the agent pod gets."""
        if (agent_pod, model) in self._due:
            self.probed.add((agent_pod, model))


class PullBudget:
    """Limit on the number of images that are pulled at the same time.

    Attributes:
        refused: Requested images that were not allowed.

    Args:
        known: Images that were observed on a node. They do not count.
        in_flight: Images that are being pulled. Further sandboxes with the same image do not count.
        limit: Maximum number of images in flight. None: no limit.
    """

    def __init__(self, known: Collection[str] = (), in_flight: Iterable[str] = (), limit: int | None = None) -> None:
        self.refused: set[str] = set()
        self._known = known
        self._in_flight = set(in_flight).difference(known)
        self._limit = limit

    def allows(self, image: str) -> bool:
        """True if a sandbox with the image may start. A refused image stays refused for the life of this object."""
        has_room = self._limit is None or len(self._in_flight) < self._limit
        if has_room or self.is_open(image):
            return True
        self.refused.add(image)
        return False

    def is_open(self, image: str) -> bool:
        """True if the image is known or in flight."""
        return image in self._known or image in self._in_flight

    def take(self, image: str) -> None:
        """Count the image as in flight, unless it is known."""
        if image not in self._known:
            self._in_flight.add(image)


class NamespaceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Number of used slots and of active episodes by namespace."""

    slots: Mapping[str, int] = {}
    active: Mapping[str, int] = {}


class Requests:
    """Candidates by the key of their Episode. Those of one namespace are ordered by priority and age."""

    def __init__(self, candidates: Mapping[Key, Candidate] | None = None) -> None:
        self._candidates: dict[Key, Candidate] = {}
        self._queues: dict[str, dict[_CandidateKind, list[Rank]]] = {}
        for key, candidate in (candidates or {}).items():
            self.put(key, candidate)

    def __len__(self) -> int:
        return len(self._candidates)

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._candidates))

    def __contains__(self, key: Key) -> bool:
        return key in self._candidates

    def __getitem__(self, key: Key) -> Candidate:
        return self._candidates[key]

    def get(self, key: Key) -> Candidate | None:
        """Return the Episode's candidate, or None without a request."""
        return self._candidates.get(key)

    def namespaces(self) -> Collection[str]:
        """Return the namespaces that have candidates."""
        return self._queues.keys()

    def count(self, namespace: str) -> int:
        """Return the number of the namespace's candidates."""
        return sum(map(len, self._queues.get(namespace, {}).values()))

    def images(self) -> set[str]:
        """Return the images of all candidates."""
        return {kind.image for queues in self._queues.values() for kind in queues}

    def put(self, key: Key, candidate: Candidate) -> None:
        """Add the candidate, or replace the Episode's previous candidate."""
        self.discard(key)
        self._candidates[key] = candidate
        queues = self._queues.setdefault(key[0], {})
        insort(queues.setdefault(_kind(candidate), []), _rank(key, candidate))

    def discard(self, key: Key) -> None:
        """Remove the Episode's candidate, if it has one."""
        candidate = self._candidates.pop(key, None)
        if candidate is None:
            return
        queues, kind = self._queues[key[0]], _kind(candidate)
        del queues[kind][bisect_left(queues[kind], _rank(key, candidate))]
        if not queues[kind]:
            del queues[kind]
        if not queues:
            del self._queues[key[0]]

    def in_turn(
        self,
        slots: int,
        usage: NamespaceUsage,
        policies: NamespacePolicies,
        closed: Collection[str] = (),
        pulls: PullBudget | None = None,
        rooms: Mapping[str, int] | None = None,
        serves: Callable[[bool, str], bool] | None = None,
    ) -> Iterator[Key]:
        """Yield the candidates to grant, in the order of admission.

        The requests must not change during the iteration.

        Args:
            slots: Number of slots to grant. Candidates that do not need a slot are granted in addition.
            usage: Present use of slots and active episodes. It is not changed.
            policies: Weights and limits of the namespaces.
            closed: Namespaces that get no grants.
            pulls: Budget for image pulls. It is used up by the grants. None: no limit.
            rooms: Maximum number of grants for the namespaces that it contains.
            serves: Called with ``needs_slot`` and the model. False excludes candidates, and must then stay False for
                the rest of the iteration.
        """
        budget = PullBudget() if pulls is None else pulls
        turns = [
            _Turn(name, self._queues[name], usage, policies, budget, (rooms or {}).get(name), serves)
            for name in self._queues
            if name not in closed
        ]
        heap = [(head, turn.namespace, turn) for turn in turns if (head := turn.head(slots)) is not None]
        heapq.heapify(heap)
        while heap:
            expected, namespace, turn = heap[0]
            head = turn.head(slots)
            if head is None:
                heapq.heappop(heap)
            elif head != expected:
                # Slots ran out or the namespace got a grant. Its head can only move back in the order.
                heapq.heapreplace(heap, (head, namespace, turn))
            else:
                yield (namespace, head[1][-1])
                slots -= turn.take()


class _Turn:
    """A namespace during an iteration: the heads of its queues, and its usage including the new grants."""

    def __init__(
        self,
        namespace: str,
        queues: Mapping[_CandidateKind, list[Rank]],
        usage: NamespaceUsage,
        policies: NamespacePolicies,
        pulls: PullBudget,
        room: int | None,
        serves: Callable[[bool, str], bool] | None,
    ) -> None:
        policy = policies.of(namespace)
        self.namespace = namespace
        self._queues = queues
        # Ranks are unique, so the heap never compares kinds.
        self._heads = [(queue[0], 0, kind) for kind, queue in queues.items()]
        heapq.heapify(self._heads)
        self._used = usage.slots.get(namespace, 0)
        self._weight = policy.weight
        left = None if policy.max_active is None else policy.max_active - usage.active.get(namespace, 0)
        self._room = min((each for each in (left, room) if each is not None), default=None)
        self._pulls = pulls
        self._serves = serves

    def head(self, slots: int) -> tuple[float, Rank] | None:
        """Return the share and the rank of the next candidate that may be granted, or None."""
        # A kind that may not be granted now can be dropped: slots, room and pulls only decrease during an iteration.
        while self._heads and not self._may_grant(self._heads[0][-1], slots):
            heapq.heappop(self._heads)
        # Division of integers of this size is exact enough: floats are equal and ordered exactly as the fractions are.
        return (self._used / self._weight, self._heads[0][0]) if self._heads else None

    def take(self) -> bool:
        """Grant the head. Returns True if it needs a slot."""
        _, position, kind = self._heads[0]
        queue, following = self._queues[kind], position + 1
        if following < len(queue):
            heapq.heapreplace(self._heads, (queue[following], following, kind))
        else:
            heapq.heappop(self._heads)
        self._used += kind.needs_slot
        if self._room is not None:
            self._room -= not kind.active
        self._pulls.take(kind.image)
        return kind.needs_slot

    def _may_grant(self, kind: _CandidateKind, slots: int) -> bool:
        has_slot = slots > 0 or not kind.needs_slot
        has_room = self._room is None or self._room > 0 or kind.active
        is_served = self._serves is None or self._serves(kind.needs_slot, kind.model)
        return has_slot and has_room and is_served and self._pulls.allows(kind.image)


def choose(
    requests: Requests,
    free: Mapping[str, int],
    usage: NamespaceUsage,
    policies: NamespacePolicies,
    closed: Collection[str] = (),
    out: ModelsOut = ModelsOut(),  # noqa: B008 - empty, so that nothing is recorded in it
) -> dict[Key, str]:
    """Choose an agent pod for each request while slots last.

    An agent pod in which the model is out gets only a probe. It is preferred for that, because only a successful probe
    makes its slots usable again. Otherwise the agent pod with the most free slots is preferred, so that the loss of an
    agent pod affects few episodes.

    Args:
        requests: The requests.
        free: Free slots of each agent pod that accepts episodes, including those without a free slot.
        usage: Present use of slots and active episodes.
        policies: Weights and limits of the namespaces.
        closed: Namespaces whose requests are ignored.
        out: Models that are out. Chosen probes are recorded in it.

    Returns:
        The UID of the agent pod by the key of the Episode.
    """
    left = dict(free)
    chosen: dict[Key, str] = {}

    def open_agent_pods(needs_slot: bool, model: str) -> Iterator[str]:
        return (
            agent_pod for agent_pod in left if (left[agent_pod] > 0 or not needs_slot) and out.accepts(agent_pod, model)
        )

    def serves(needs_slot: bool, model: str) -> bool:
        return any(True for _ in open_agent_pods(needs_slot, model))

    def rank(agent_pod: str) -> tuple[bool, bool, int, str]:
        return out.is_probe(agent_pod, candidate.model), agent_pod != candidate.previous, left[agent_pod], agent_pod

    turns = requests.in_turn(sum(left.values()), usage, policies, closed, serves=serves if out else None)
    for key in turns if left else ():
        candidate = requests[key]
        agent_pod = chosen[key] = max(open_agent_pods(candidate.needs_slot, candidate.model), key=rank)
        left[agent_pod] -= candidate.needs_slot
        out.take(agent_pod, candidate.model)
    return chosen


def _kind(candidate: Candidate) -> _CandidateKind:
    return _CandidateKind(candidate.needs_slot, candidate.active, candidate.image, candidate.model)


def _rank(key: Key, candidate: Candidate) -> Rank:
    return -candidate.priority, candidate.created, candidate.index, key[1]
