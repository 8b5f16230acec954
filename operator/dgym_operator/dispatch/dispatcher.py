"""The dispatcher: grants requests for sandboxes and agents as slots allow.

Workers request a pod or an agent for an episode; the dispatcher considers all requests together and grants as many as
there are slots. A grant is used by the next reconcile of the episode, so that every episode still has a single writer.
Nothing is stored: slots in use are counted from unfinished Episodes, which a new leader observes as well.

The namespace with the fewest active episodes comes first; in a namespace the highest priority, then the oldest. Agents
with the most free slots come first, so that episodes spread over pods and the loss of one costs the fewest.
"""

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from dgym.kube import Key
from dgym.wire.assignments import AssignmentMode
from dgym_operator.cache import Agents, Cache
from dgym_operator.controllers import EPOCH, attempt_of
from dgym_operator.controllers.episode import Cause, stuck_cause
from dgym_operator.objects import EpisodeView

_ROUND_SECONDS = 0.02
"""Requests that arrive within it are considered together."""
_BUSY = (
    "every slot of the agents is taken, by an episode or for a sandbox that starts; "
    "more agents or agents.slots serve more episodes at a time"
)
_NO_AGENT = "there is no agent pod; see agents.replicas, and the Deployment of the agents"

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


class Enqueue(Protocol):
    """Queues an Episode for a reconcile."""

    def __call__(self, key: Key, *, low_priority: bool = False) -> None:
        """Add the Episode to the queue."""


class PendingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is not assigned to an agent. ``stuck``: why it cannot start for now, so that no slot is reserved."""

    name: str
    needs_slot: bool
    stuck: Cause | None = None

    @property
    def reserves_slot(self) -> bool:
        """Whether a slot is reserved for it."""
        return self.needs_slot and self.stuck is None


class Dispatcher:
    """Requests for pods and agents, and their grants, by the key of the Episode.

    ``stuck_limit`` is how many pods of a namespace may be stuck at a time before the namespace gets no more of them.
    """

    def __init__(self, cache: Cache, *, head_start: int, stuck_limit: int, enqueue: Enqueue) -> None:
        self._cache = cache
        self._head_start = head_start
        self._stuck_limit = stuck_limit
        self._enqueue = enqueue
        self._pod_requests: dict[Key, Candidate] = {}
        self._agent_requests: dict[Key, Candidate] = {}
        self._pods_granted: set[Key] = set()
        self._agents_granted: dict[Key, str] = {}
        self._pending: dict[Key, PendingPod] = {}
        self._holds = Holds()
        self._work = asyncio.Event()

    # Requests and grants

    def request_pod(self, key: Key, candidate: Candidate | None) -> None:
        """Request the Episode's next pod; None: withdraw the request and its grant."""
        self._request(self._pod_requests, key, candidate)
        if candidate is None and key in self._pods_granted:
            self._pods_granted.discard(key)
            self.wake()

    def pod_granted(self, key: Key) -> bool:
        """Whether the Episode's next pod may be created now."""
        return key in self._pods_granted

    def request_agent(self, key: Key, candidate: Candidate | None) -> None:
        """Request an agent for the Episode; None: withdraw the request."""
        self._request(self._agent_requests, key, candidate)

    def granted_agent(self, key: Key) -> str | None:
        """The UID of the agent pod granted to the Episode. Its slot is reserved until ``release_agent``."""
        return self._agents_granted.get(key)

    def release_agent(self, key: Key) -> None:
        """Release the reserved slot: the Episode's status shows the assignment by now, or the grant is not used."""
        if self._agents_granted.pop(key, None) is not None:
            self.wake()

    def observe_pod(self, key: Key, pod: PendingPod | None) -> None:
        """Record the Episode's pod that waits for an agent's slot, ready or not; None: it has none."""
        before = self._pending.pop(key, None)
        if pod is not None:
            self._pending[key] = pod
        if pod != before and (pod is None or pod.stuck is not None):
            self.wake()

    def held_by(self, key: Key) -> str:
        """Why the Episode's request for an agent or a pod is not granted; empty: there is no request."""
        if key in self._agent_requests:
            return self._holds.agents
        return self._holds.of_pod(key[0]) if key in self._pod_requests else ""

    def forget(self, key: Key) -> None:
        """Drop requests, grants and pod of an Episode that is gone or finished."""
        self.observe_pod(key, None)
        self.request_agent(key, None)
        self.request_pod(key, None)
        self.release_agent(key)

    def wake(self) -> None:
        """Start a round soon: slots, agents or requests have changed."""
        self._work.set()

    def _request(self, requests: dict[Key, Candidate], key: Key, candidate: Candidate | None) -> None:
        if candidate is None:
            requests.pop(key, None)
        elif requests.get(key) != candidate:
            requests[key] = candidate
            self.wake()

    # Rounds

    async def run(self) -> None:
        """Grant requests until cancelled."""
        # Workers have not reconciled everything yet: pending pods are found here, once.
        for episode in self._cache.episodes:
            self.observe_pod(episode.key, pending_pod(self._cache, episode))
        self.wake()
        while True:
            await self._work.wait()
            await self._cache.clock.sleep(_ROUND_SECONDS)
            self._work.clear()
            self.round()

    def round(self) -> None:
        """Grant what can be granted."""
        in_use = self._slots_in_use()
        served = sum(in_use.values(), Counter(namespace for namespace, _ in self._agents_granted))
        for key, agent in choose(self._agent_requests, self._free_slots(in_use), served).items():
            del self._agent_requests[key]
            self._agents_granted[key] = agent
            self._enqueue(key)
        holds = find_holds(self._cache.agents, self._stuck(), self._stuck_limit)
        self._grant_pods(sum(self._free_slots(in_use).values()), served, holds)
        self._update_holds(holds)

    def slots(self) -> tuple[int, int]:
        """Used and free slots of the agents that answer."""
        in_use = self._slots_in_use()
        used = sum(in_use[agent.uid].total() for agent in self._cache.agents if agent.report is not None)
        return used, sum(self._free_slots(in_use).values())

    def requests(self) -> tuple[int, int]:
        """Episodes that wait for the grant of a pod, and of an agent."""
        return len(self._pod_requests.keys() - self._pods_granted), len(self._agent_requests)

    def _grant_pods(self, free: int, served: Counter[str], holds: Holds) -> None:
        # A namespace that gets no more pods loses its unused grants.
        self._pods_granted = {key for key in self._pods_granted if key[0] not in holds.namespaces}
        waiting = {
            key: candidate
            for key, candidate in self._pod_requests.items()
            if key not in self._pods_granted and key[0] not in holds.namespaces
        }
        without_slot = [key for key, candidate in waiting.items() if not candidate.needs_slot]
        with_slot = {key: candidate for key, candidate in waiting.items() if candidate.needs_slot}
        reserved = {key for key, pod in self._pending.items() if pod.reserves_slot} | self._pods_granted
        room = free + self._head_start - len(reserved)
        active = served + Counter(namespace for namespace, _ in reserved - self._agents_granted.keys())
        for key in (*without_slot, *first(with_slot, room, active)):
            self._pods_granted.add(key)
            self._enqueue(key)

    def _update_holds(self, holds: Holds) -> None:
        """Queue the episodes whose cause of waiting has changed: their status shows it."""
        before, self._holds = self._holds, holds
        if holds == before:
            return
        for key in self._pod_requests:
            if holds.of_pod(key[0]) != before.of_pod(key[0]):
                self._enqueue(key, low_priority=True)
        if holds.agents != before.agents:
            for key in self._agent_requests:
                self._enqueue(key, low_priority=True)

    def _slots_in_use(self) -> dict[str, Counter[str]]:
        """How many slots of each agent the episodes of each namespace use."""
        return {
            agent.uid: Counter(
                each.metadata.namespace for each in self._cache.episodes_by_agent[agent.uid] if _uses_slot(each)
            )
            for agent in self._cache.agents
        }

    def _free_slots(self, in_use: Mapping[str, Counter[str]]) -> dict[str, int]:
        granted = Counter(self._agents_granted.values())
        return {
            agent.uid: max(0, slots - in_use[agent.uid].total() - granted[agent.uid])
            for agent in self._cache.agents
            if (slots := self._cache.agents.open_slots(agent)) is not None
        }

    def _stuck(self) -> dict[Key, Stuck]:
        return {key: Stuck(pod.name, pod.stuck) for key, pod in self._pending.items() if pod.stuck is not None}


def pending_pod(cache: Cache, episode: EpisodeView) -> PendingPod | None:
    """The Episode's pod that is not assigned: of its next attempt, or one whose model failed."""
    status, needs_slot = episode.status, episode.spec.agent is not None
    if episode.is_finished:
        return None
    if status.pod_name is not None:
        return PendingPod(name=status.pod_name, needs_slot=needs_slot) if _model_failed(episode) else None
    for pod in cache.pods_by_owner[episode.metadata.uid]:
        if attempt_of(pod) == status.attempt + 1:
            stuck = stuck_cause(pod, cache.clock.now(), cache.policy.slow_start_seconds)
            return PendingPod(name=pod.metadata.name, needs_slot=needs_slot, stuck=stuck)
    return None


def candidate_of(episode: EpisodeView, *, previous: str | None = None) -> Candidate:
    """The Episode as a candidate for admission."""
    return Candidate(
        namespace=episode.metadata.namespace,
        priority=episode.spec.priority,
        created=episode.metadata.creation_timestamp or EPOCH,
        needs_slot=episode.spec.agent is not None,
        previous=previous,
    )


def _uses_slot(episode: EpisodeView) -> bool:
    return episode.spec.agent is not None and not _model_failed(episode) and not _recovers(episode)


def _recovers(episode: EpisodeView) -> bool:
    """Whether the agent only looks for a stored verdict, which takes no slot."""
    assignment = episode.status.assignment
    return assignment is not None and assignment.mode == AssignmentMode.RECOVER.value


def _model_failed(episode: EpisodeView) -> bool:
    """Whether the agent has released the slot, since its model failed, and another try is to follow."""
    assignment = episode.status.assignment
    return assignment is not None and assignment.failed_time is not None
