"""Whose turn it is: which episodes get a sandbox, and which get an agent.

Workers say what each episode wants; the dispatcher looks at all wishes together and grants as many as slots allow. A
grant is carried out by the next decision about that episode, so that every episode still has a single writer. Nothing
here is written down anywhere: slots in use are counted from unfinished Episodes, which a new leader sees as well.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec

from dgym.kube import Key
from dgym_operator.cache import World, is_finished
from dgym_operator.controllers import EPOCH, Cause, attempt_of, stuck_cause
from dgym_operator.dispatch.admission import Candidate, Holds, Stuck, choose, find_holds, first
from dgym_operator.objects import EpisodeView

_ROUND_SECONDS = 0.02
"""Wishes that come in together are looked at together."""


class Enqueue(Protocol):
    """Queues an Episode for a decision."""

    def __call__(self, key: Key, *, low_priority: bool = False) -> None:
        """Add the Episode to the queue."""


class PendingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that no agent serves yet. ``stuck``: why it cannot start for now, so that it takes no room."""

    name: str
    needs_slot: bool
    stuck: Cause | None = None

    @property
    def takes_room(self) -> bool:
        """Whether a slot is to be kept for it."""
        return self.needs_slot and self.stuck is None


class Dispatcher:
    """Requests for pods and agents, and what is granted, by the key of the Episode.

    ``stuck_limit`` is how many pods of a namespace may be unable to start at a time before it gets no more of them.
    """

    def __init__(self, world: World, *, head_start: int, stuck_limit: int, enqueue: Enqueue) -> None:
        self._world = world
        self._head_start = head_start
        self._stuck_limit = stuck_limit
        self._enqueue = enqueue
        self._want_pod: dict[Key, Candidate] = {}
        self._want_agent: dict[Key, Candidate] = {}
        self._pods_granted: set[Key] = set()
        self._agents_granted: dict[Key, str] = {}
        self._pending: dict[Key, PendingPod] = {}
        self._holds = Holds()
        self._work = asyncio.Event()

    # What workers say and ask

    def may_create(self, key: Key) -> bool:
        """Whether the Episode's next pod may be made now."""
        return key in self._pods_granted

    def wants_pod(self, key: Key, candidate: Candidate | None) -> None:
        """The Episode wants a pod; None: not, or not any more."""
        self._note(self._want_pod, key, candidate)
        if candidate is None and key in self._pods_granted:
            self._pods_granted.discard(key)
            self.wake()

    def agent_for(self, key: Key) -> str | None:
        """The UID of the agent pod that the Episode may have. Its slot is kept until ``settle``."""
        return self._agents_granted.get(key)

    def settle(self, key: Key) -> None:
        """The grant was used, which the Episode's status shows by now, or is of no use."""
        if self._agents_granted.pop(key, None) is not None:
            self.wake()

    def wants_agent(self, key: Key, candidate: Candidate | None) -> None:
        """The Episode wants an agent; None: not, or not any more."""
        self._note(self._want_agent, key, candidate)

    def observe_pod(self, key: Key, pod: PendingPod | None) -> None:
        """Record the Episode's pod that waits for a slot of an agent, ready or not; None: it has none."""
        before = self._pending.pop(key, None)
        if pod is not None:
            self._pending[key] = pod
        if pod != before and (pod is None or pod.stuck is not None):
            self.wake()

    def held_by(self, key: Key) -> str:
        """Why the Episode's request for an agent or a pod is not granted; empty: there is no request."""
        if key in self._want_agent:
            return self._holds.agents
        return self._holds.of_pod(key[0]) if key in self._want_pod else ""

    def forget(self, key: Key) -> None:
        """The Episode is gone or finished."""
        self.observe_pod(key, None)
        self.wants_agent(key, None)
        self.wants_pod(key, None)
        self.settle(key)

    def wake(self) -> None:
        """Slots, agents or wishes have changed."""
        self._work.set()

    def _note(self, wishes: dict[Key, Candidate], key: Key, candidate: Candidate | None) -> None:
        if candidate is None:
            wishes.pop(key, None)
        elif wishes.get(key) != candidate:
            wishes[key] = candidate
            self.wake()

    # Rounds

    async def run(self) -> None:
        """Grant until cancelled."""
        # Workers have not looked at everything yet: what they would say of pods is found out here, once.
        for episode in self._world.episodes:
            self.observe_pod(episode.key, pending_pod(self._world, episode))
        self.wake()
        while True:
            await self._work.wait()
            await self._world.clock.sleep(_ROUND_SECONDS)
            self._work.clear()
            self.round()

    def round(self) -> None:
        """Grant what can be granted."""
        in_use = self._slots_in_use()
        served = sum(in_use.values(), Counter(namespace for namespace, _ in self._agents_granted))
        for key, agent in choose(self._want_agent, self._free_slots(in_use), served).items():
            del self._want_agent[key]
            self._agents_granted[key] = agent
            self._enqueue(key)
        holds = find_holds(self._world.agents, self._stuck(), self._stuck_limit)
        self._grant_pods(sum(self._free_slots(in_use).values()), served, holds)
        self._announce(holds)

    def slots(self) -> tuple[int, int]:
        """Used and free slots of the agents that answer."""
        in_use = self._slots_in_use()
        used = sum(in_use[agent.uid].total() for agent in self._world.agents if agent.report is not None)
        return used, sum(self._free_slots(in_use).values())

    def _grant_pods(self, free: int, served: Counter[str], holds: Holds) -> None:
        # A namespace that gets no more pods loses its unused grants.
        self._pods_granted = {key for key in self._pods_granted if key[0] not in holds.namespaces}
        waiting = {
            key: candidate
            for key, candidate in self._want_pod.items()
            if key not in self._pods_granted and key[0] not in holds.namespaces
        }
        outside = [key for key, candidate in waiting.items() if not candidate.needs_slot]
        inside = {key: candidate for key, candidate in waiting.items() if candidate.needs_slot}
        under_way = {key for key, pod in self._pending.items() if pod.takes_room} | self._pods_granted
        room = free + self._head_start - len(under_way)
        active = served + Counter(namespace for namespace, _ in under_way - self._agents_granted.keys())
        for key in (*outside, *first(inside, room, active)):
            self._pods_granted.add(key)
            self._enqueue(key)

    def _announce(self, holds: Holds) -> None:
        """Queue the episodes whose cause of waiting has changed: their status shows it."""
        before, self._holds = self._holds, holds
        if holds == before:
            return
        for key in self._want_pod:
            if holds.of_pod(key[0]) != before.of_pod(key[0]):
                self._enqueue(key, low_priority=True)
        if holds.agents != before.agents:
            for key in self._want_agent:
                self._enqueue(key, low_priority=True)

    def _slots_in_use(self) -> dict[str, Counter[str]]:
        """How many slots of each agent the episodes of each namespace use."""
        return {
            agent.uid: Counter(
                each.metadata.namespace for each in self._world.episodes_by_agent[agent.uid] if _uses(each)
            )
            for agent in self._world.agents
        }

    def _free_slots(self, in_use: Mapping[str, Counter[str]]) -> dict[str, int]:
        granted = Counter(self._agents_granted.values())
        return {
            agent.uid: max(0, slots - in_use[agent.uid].total() - granted[agent.uid])
            for agent in self._world.agents
            if (slots := self._world.agents.open_slots(agent)) is not None
        }

    def _stuck(self) -> dict[Key, Stuck]:
        return {key: Stuck(pod.name, pod.stuck) for key, pod in self._pending.items() if pod.stuck is not None}


def pending_pod(world: World, episode: EpisodeView) -> PendingPod | None:
    """The Episode's pod that no agent serves: of its next attempt, or one whose model failed."""
    status, needs_slot = episode.status, episode.spec.agent is not None
    if is_finished(episode):
        return None
    if status.pod_name is not None:
        return PendingPod(name=status.pod_name, needs_slot=needs_slot) if _has_failed(episode) else None
    for pod in world.pods_by_owner[episode.metadata.uid]:
        if attempt_of(pod) == status.attempt + 1:
            stuck = stuck_cause(pod, world.clock.now(), world.policy.slow_start_seconds)
            return PendingPod(name=pod.metadata.name, needs_slot=needs_slot, stuck=stuck)
    return None


def _uses(episode: EpisodeView) -> bool:
    """Whether the assigned Episode takes one of its agent's slots."""
    return episode.spec.agent is not None and not _has_failed(episode)


def _has_failed(episode: EpisodeView) -> bool:
    """Whether the agent has given the slot back, since its model failed, and another try is to follow."""
    assignment = episode.status.assignment
    return assignment is not None and assignment.failed_time is not None


def candidate_of(episode: EpisodeView, *, needs_slot: bool = True, previous: str | None = None) -> Candidate:
    """The Episode's place in the order."""
    created = episode.metadata.creation_timestamp or EPOCH
    return Candidate(
        namespace=episode.metadata.namespace,
        priority=episode.spec.priority,
        created=created,
        needs_slot=needs_slot,
        previous=previous,
    )
