"""Admission: which of the episodes that wait may start, apart from which agent serves them.

Decided by fair share between namespaces, then priority, then age. The share of a namespace is its used slots divided by
its weight; the namespace with the lowest share comes first. So no namespace that waits has a lower share than one that
was granted a slot had before that grant: shares follow the weights within one grant. A namespace with ``maxActive``
active episodes starts no others. Episodes whose image must be pulled wait for their share of ``PullBudget``, and do not
delay others meanwhile.

Pure: no cache, no clock. A grant costs a few comparisons for every namespace that waits, however many episodes do; a
namespace costs one for each image that its episodes wait for.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from dgym.kube import Key
from dgym_operator.policies import NamespacePolicies

Rank = tuple[int, datetime, int, str]
"""Priority, age, index in the set (episodes of a set are created many in a second), and name."""


class _Kind(NamedTuple):
    """What decides whether a candidate may be granted, besides its rank."""

    needs_slot: bool
    active: bool
    image: str
    model: str


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that requests a sandbox or an agent.

    Attributes:
        priority: Higher ones come first within a namespace.
        created: When the Episode was created.
        needs_slot: False for an episode driven from outside.
        active: Whether the episode counts as active already: one that loses its agent keeps its place in ``maxActive``.
        previous: Its last agent; another is preferred.
        image: Of its task, where a sandbox is requested; empty: the default one.
        index: In its set; 0 outside of sets.
        model: Of its agent; empty: the agent asks none.
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
    """Models that are out, by agent: such an agent takes no episode with the model, or one as a probe.

    Attributes:
        probed: UIDs of agents with the models of which they have taken a probe.

    Args:
        due: Whether a probe is due, by the UID of the agent and the model.
    """

    def __init__(self, due: Mapping[tuple[str, str], bool] | None = None) -> None:
        self.probed: set[tuple[str, str]] = set()
        self._due = due or {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def accepts(self, agent: str, model: str) -> bool:
        """Whether the agent takes an episode with the model."""
        return self._due.get((agent, model), True) and (agent, model) not in self.probed

    def is_probe(self, agent: str, model: str) -> bool:
        """Whether an episode with the model would be a probe of the agent."""
        return (agent, model) in self._due

    def take(self, agent: str, model: str) -> None:
        """Record an episode that the agent takes."""
        if (agent, model) in self._due:
            self.probed.add((agent, model))


class PullBudget:
    """How many more images may be pulled.

    Attributes:
        refused: Images that were asked for, and not allowed.

    Args:
        known: Images that some node is known to have; they cost nothing.
        in_flight: Images that are being pulled. Further sandboxes of the same image cost nothing.
        limit: The highest number of images in flight; None: no bound.
    """

    def __init__(self, known: Collection[str] = (), in_flight: Iterable[str] = (), limit: int | None = None) -> None:
        self.refused: set[str] = set()
        self._known = known
        self._in_flight = set(in_flight).difference(known)
        self._limit = limit

    def allows(self, image: str) -> bool:
        """Whether a sandbox of the image may start. What is refused once is refused for good."""
        has_room = self._limit is None or len(self._in_flight) < self._limit
        if has_room or self.is_open(image):
            return True
        self.refused.add(image)
        return False

    def is_open(self, image: str) -> bool:
        """Whether the image is known or in flight."""
        return image in self._known or image in self._in_flight

    def take(self, image: str) -> None:
        """Count the image as in flight, unless it is known."""
        if image not in self._known:
            self._in_flight.add(image)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What namespaces use: slots, and active episodes."""

    slots: Mapping[str, int] = {}
    active: Mapping[str, int] = {}


class Requests:
    """Candidates by the key of their Episode, each namespace's in the order of priority and age."""

    def __init__(self, candidates: Mapping[Key, Candidate] | None = None) -> None:
        self._candidates: dict[Key, Candidate] = {}
        self._queues: dict[str, dict[_Kind, list[Rank]]] = {}
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
        """The Episode's candidate, if it requests anything."""
        return self._candidates.get(key)

    def namespaces(self) -> Collection[str]:
        """Namespaces with candidates."""
        return self._queues.keys()

    def count(self, namespace: str) -> int:
        """Number of the namespace's candidates."""
        return sum(map(len, self._queues.get(namespace, {}).values()))

    def images(self) -> set[str]:
        """The candidates' images."""
        return {kind.image for queues in self._queues.values() for kind in queues}

    def put(self, key: Key, candidate: Candidate) -> None:
        """Add the candidate, in place of the one before."""
        self.discard(key)
        self._candidates[key] = candidate
        queues = self._queues.setdefault(key[0], {})
        insort(queues.setdefault(_kind(candidate), []), _rank(key, candidate))

    def discard(self, key: Key) -> None:
        """Remove the Episode's candidate, if there is one."""
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
        usage: Usage,
        policies: NamespacePolicies,
        closed: Collection[str] = (),
        pulls: PullBudget | None = None,
        rooms: Mapping[str, int] | None = None,
        serves: Callable[[bool, str], bool] | None = None,
    ) -> Iterator[Key]:
        """The candidates to grant, in the order of admission, while ``slots`` last; those without need of one too.

        ``closed`` are namespaces of which none is granted; ``pulls`` is spent as candidates are granted (None: no
        bound); ``rooms`` bounds the grants of the namespaces it names. ``serves``, called with whether a slot is needed
        and the model, excludes candidates; what it excludes it must exclude for the rest of the iteration. The requests
        must not change during the iteration.
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
                # Slots ran out or the namespace had its turn: its head only moves back.
                heapq.heapreplace(heap, (head, namespace, turn))
            else:
                yield (namespace, head[1][-1])
                slots -= turn.take()


class _Turn:
    """A namespace during an iteration: the heads of its queues, and what it uses with all its grants."""

    def __init__(
        self,
        namespace: str,
        queues: Mapping[_Kind, list[Rank]],
        usage: Usage,
        policies: NamespacePolicies,
        pulls: PullBudget,
        room: int | None,
        serves: Callable[[bool, str], bool] | None,
    ) -> None:
        policy = policies.of(namespace)
        self.namespace = namespace
        self._queues = queues
        # Ranks are unique, so that kinds are never compared.
        self._heads = [(queue[0], 0, kind) for kind, queue in queues.items()]
        heapq.heapify(self._heads)
        self._used = usage.slots.get(namespace, 0)
        self._weight = policy.weight
        left = None if policy.max_active is None else policy.max_active - usage.active.get(namespace, 0)
        self._room = min((each for each in (left, room) if each is not None), default=None)
        self._pulls = pulls
        self._serves = serves

    def head(self, slots: int) -> tuple[float, Rank] | None:
        """Share and rank of the next candidate that may be granted."""
        # What may not be granted now may not be later in the iteration: slots, room and pulls only decrease.
        while self._heads and not self._may_grant(self._heads[0][-1], slots):
            heapq.heappop(self._heads)
        # Quotients of integers of this size are equal and in order exactly where the fractions are.
        return (self._used / self._weight, self._heads[0][0]) if self._heads else None

    def take(self) -> bool:
        """Grant the head; returns whether it needs a slot."""
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

    def _may_grant(self, kind: _Kind, slots: int) -> bool:
        has_slot = slots > 0 or not kind.needs_slot
        has_room = self._room is None or self._room > 0 or kind.active
        is_served = self._serves is None or self._serves(kind.needs_slot, kind.model)
        return has_slot and has_room and is_served and self._pulls.allows(kind.image)


def choose(
    requests: Requests,
    free: Mapping[str, int],
    usage: Usage,
    policies: NamespacePolicies,
    closed: Collection[str] = (),
    out: ModelsOut = ModelsOut(),  # noqa: B008 - empty, so that nothing is recorded in it
) -> dict[Key, str]:
    """An agent for each request while slots last; ``free`` has every agent that takes more, full ones too.

    Nothing is chosen for requests of the namespaces ``closed``, and no agent in which the model is ``out`` but for a
    probe, which comes first: nothing else brings the slots of that agent back.

    Agents with the most free slots come first, so that episodes spread over pods and the loss of one costs the fewest.
    """
    left = dict(free)
    chosen: dict[Key, str] = {}

    def open_ones(needs_slot: bool, model: str) -> Iterator[str]:
        return (agent for agent in left if (left[agent] > 0 or not needs_slot) and out.accepts(agent, model))

    def serves(needs_slot: bool, model: str) -> bool:
        return any(True for _ in open_ones(needs_slot, model))

    def rank(agent: str) -> tuple[bool, bool, int, str]:
        return out.is_probe(agent, candidate.model), agent != candidate.previous, left[agent], agent

    turns = requests.in_turn(sum(left.values()), usage, policies, closed, serves=serves if out else None)
    for key in turns if left else ():
        candidate = requests[key]
        agent = chosen[key] = max(open_ones(candidate.needs_slot, candidate.model), key=rank)
        left[agent] -= candidate.needs_slot
        out.take(agent, candidate.model)
    return chosen


def _kind(candidate: Candidate) -> _Kind:
    return _Kind(candidate.needs_slot, candidate.active, candidate.image, candidate.model)


def _rank(key: Key, candidate: Candidate) -> Rank:
    return -candidate.priority, candidate.created, candidate.index, key[1]
