"""Whose turn it is: which episodes get a sandbox, and which get an agent.

Workers say what each episode wants; the dispatcher looks at all wishes together and grants as many as slots allow. A
grant is carried out by the next decision about that episode, so that every episode still has a single writer. Nothing
here is written down anywhere: slots in use are counted from unfinished Episodes, which a new leader sees as well.
"""

import asyncio
from collections.abc import Callable

from dgym_operator.agents import Agent
from dgym_operator.dispatch_choice import Candidate, choose, first
from dgym_operator.execute_world import World, is_finished
from dgym_operator.kube import Key
from dgym_operator.reconcile.inputs import attempt_of
from dgym_operator.reconcile.views import EpisodeView
from dgym_operator.reconcile.waiting import EPOCH

_ROUND_SECONDS = 0.02
"""Wishes that come in together are looked at together."""


class Dispatcher:
    """Wishes and grants, by the key of the Episode."""

    def __init__(self, world: World, *, head_start: int, enqueue: Callable[[Key], None]) -> None:
        self._world = world
        self._head_start = head_start
        self._enqueue = enqueue
        self._want_pod: dict[Key, Candidate] = {}
        self._want_agent: dict[Key, Candidate] = {}
        self._pods_granted: set[Key] = set()
        self._agents_granted: dict[Key, str] = {}
        self._idle: set[Key] = set()
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

    def has_idle_pod(self, key: Key, idle: bool) -> None:
        """Whether the Episode has a pod, ready or not, that waits for a slot of an agent."""
        if idle:
            self._idle.add(key)
        elif key in self._idle:
            self._idle.discard(key)
            self.wake()

    def forget(self, key: Key) -> None:
        """The Episode is gone or finished."""
        self.has_idle_pod(key, False)
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
        self._idle = {episode.key for episode in self._world.episodes if has_idle_pod(self._world, episode)}
        self.wake()
        while True:
            await self._work.wait()
            await self._world.clock.sleep(_ROUND_SECONDS)
            self._work.clear()
            self.round()

    def round(self) -> None:
        """Grant what can be granted."""
        for key, agent in choose(self._want_agent, self._free_slots()).items():
            del self._want_agent[key]
            self._agents_granted[key] = agent
            self._enqueue(key)
        waiting = {key: wish for key, wish in self._want_pod.items() if key not in self._pods_granted}
        outside = [key for key, wish in waiting.items() if not wish.needs_slot]
        inside = {key: wish for key, wish in waiting.items() if wish.needs_slot}
        for key in (*outside, *first(inside, self._room())):
            self._pods_granted.add(key)
            self._enqueue(key)

    def slots(self) -> tuple[int, int]:
        """Used and free slots of the agents that answer."""
        used = sum(self._used(agent) for agent in self._world.agents if agent.report is not None)
        return used, sum(self._free_slots().values())

    def _free_slots(self) -> dict[str, int]:
        granted = list(self._agents_granted.values())
        return {
            agent.uid: max(0, slots - self._used(agent) - granted.count(agent.uid))
            for agent in self._world.agents
            if (slots := self._world.agents.open_slots(agent)) is not None
        }

    def _used(self, agent: Agent) -> int:
        served = self._world.episodes_by_agent[agent.uid]
        return sum(episode.spec.agent is not None and not _has_failed(episode) for episode in served)

    def _room(self) -> int:
        """How many pods may be made: those that agents have slots for, some ahead, less those already on their way."""
        under_way = len(self._idle | self._pods_granted)
        return sum(self._free_slots().values()) + self._head_start - under_way


def has_idle_pod(world: World, episode: EpisodeView) -> bool:
    """Whether the Episode has a pod that will take a slot: of its next attempt, or one whose model failed."""
    status = episode.status
    if episode.spec.agent is None or is_finished(episode):
        return False
    if status.pod_name is not None:
        return _has_failed(episode)
    return any(attempt_of(pod) == status.attempt + 1 for pod in world.pods_by_owner[episode.metadata.uid])


def _has_failed(episode: EpisodeView) -> bool:
    """Whether the agent has given the slot back, since its model failed, and another try is to follow."""
    assignment = episode.status.assignment
    return assignment is not None and assignment.failed_time is not None


def candidate_of(episode: EpisodeView, *, needs_slot: bool = True, previous: str | None = None) -> Candidate:
    """The Episode's place in the order."""
    created = episode.metadata.creation_timestamp or EPOCH
    return Candidate(priority=episode.spec.priority, created=created, needs_slot=needs_slot, previous=previous)
