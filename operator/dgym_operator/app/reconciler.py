"""One look at one object: what there is, what ought to be done, and doing it."""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from dgym.kube import ApiError, Conflict, Forbidden, Key, NotFound, QueueClosed, WorkQueue
from dgym_operator.actions import EpisodeExecutor, NotLeading, SetExecutor
from dgym_operator.app.health import Busy
from dgym_operator.app.metrics import Metrics
from dgym_operator.cache import World
from dgym_operator.controllers import (
    CreatePod,
    Emit,
    EpisodeInput,
    PatchSetStatus,
    PatchStatus,
    Plan,
    Ready,
    assigned_status,
    decide,
    decide_set,
    needs_agent,
    retry_at,
)
from dgym_operator.dispatch import Deliveries, Dispatcher, candidate_of, pending_pod
from dgym_operator.logs import fields

_log = logging.getLogger(__name__)
_SETTLED_SECONDS = 1.0
_LONGEST_SETTLED = 60.0


class Kind(StrEnum):
    """What is looked at."""

    EPISODE = "Episode"
    EPISODE_SET = "EpisodeSet"


class Item(NamedTuple):
    """An object that wants a look."""

    kind: Kind
    key: Key


class Reconciler:
    """What workers do."""

    def __init__(
        self,
        world: World,
        *,
        queue: WorkQueue[Item],
        episodes: EpisodeExecutor,
        sets: SetExecutor,
        dispatcher: Dispatcher,
        deliveries: Deliveries,
        metrics: Metrics,
        busy: Busy,
        serves: Callable[[str], bool],
    ) -> None:
        self._world = world
        self._queue = queue
        self._episodes = episodes
        self._sets = sets
        self._dispatcher = dispatcher
        self._deliveries = deliveries
        self._metrics = metrics
        self._busy = busy
        self._serves = serves

    async def work(self, number: int) -> None:
        """Look at one object after the other until the queue is closed."""
        while True:
            try:
                async with self._queue.take() as item:
                    self._busy.begin(number, f"{item.kind} {'/'.join(item.key)}")
                    try:
                        await self._look(item)
                    finally:
                        self._busy.end(number)
            except QueueClosed:
                return

    async def _look(self, item: Item) -> None:
        started = self._world.clock.monotonic()
        result = await self._try(item)
        self._metrics.reconciles.labels(kind=item.kind.value, result=result).inc()
        self._metrics.reconcile_seconds.labels(kind=item.kind.value).observe(self._world.clock.monotonic() - started)

    async def _try(self, item: Item) -> str:
        about = fields(kind=item.kind.value, namespace=item.key[0], name=item.key[1])
        if not self._serves(item.key[0]):
            # All objects of a namespace are queued again when it is served.
            if item.kind is Kind.EPISODE:
                self._dispatcher.forget(item.key)
            self._queue.forget(item)
            return "not_served"
        try:
            again = await (self._episode(item.key) if item.kind is Kind.EPISODE else self._set(item.key))
        except NotLeading:
            return "not_leading"
        except NotFound:
            return "gone"
        except Conflict:
            self._queue.retry(item)
            return "conflict"
        except ApiError as error:
            if isinstance(error, Forbidden) and error.namespace_terminating:
                return "gone"
            seconds = self._queue.retry(item)
            _log.warning("will be tried again in %.1f s: %s", seconds, error, extra=about)
            return "error"
        except Exception:
            # One object that nobody thought of must not keep all others waiting.
            self._queue.retry(item)
            _log.exception("a defect", extra=about)
            return "defect"
        if item.kind is Kind.EPISODE:
            self._queue.forget(item)
        if again is not None:
            self._queue.add(item, again)
        return "ok"

    async def _set(self, key: Key) -> float | None:
        episode_set = self._world.sets.get(key)
        item = Item(Kind.EPISODE_SET, key)
        if episode_set is None:
            self._queue.forget(item)
            return None
        plan = decide_set(self._world.set_input(episode_set), self._world.clock.now())
        again = await self._sets.carry_out(episode_set, plan)
        if plan.actions and all(isinstance(action, PatchSetStatus) for action in plan.actions):
            # It takes back what a round before has announced, and says nothing of whether that would go well now.
            return None if again is None else max(again, settled_seconds(self._queue.failures(item)))
        self._queue.forget(item)
        return again

    async def _episode(self, key: Key) -> float | None:
        episode = self._world.episodes.get(key)
        if episode is None:
            self._dispatcher.forget(key)
            return None
        given = self._world.episode_input(episode, may_create=True)
        ready = needs_agent(given, self._world.clock.now())
        agent = self._granted_agent(key, given, ready)
        if ready is not None and agent is not None:
            return await self._assign(key, given, ready, agent)
        plan = self._decide(key, given)
        self._dispatcher.observe_pod(key, pending_pod(self._world, episode))
        again = await self._episodes.carry_out(episode, plan)
        return _soonest(again, self._until_retry(given))

    def _granted_agent(self, key: Key, given: EpisodeInput, ready: Ready | None) -> str | None:
        """The agent that the dispatcher has granted, if one is wanted; else a wish."""
        granted = self._dispatcher.agent_for(key)
        if ready is not None and granted is not None and self._world.agents.get(granted) is not None:
            return granted
        self._dispatcher.settle(key)
        wish = None
        if ready is not None:
            previous = given.assignment.agent_pod_uid if given.assignment is not None else None
            wish = candidate_of(given.episode, needs_slot=ready.takes_slot, previous=previous)
        self._dispatcher.wants_agent(key, wish)
        return None

    async def _assign(self, key: Key, given: EpisodeInput, ready: Ready, agent_uid: str) -> float:
        agent = self._world.agents.get(agent_uid)
        name = agent.name if agent is not None else agent_uid
        status = assigned_status(given, ready, agent_uid, self._world.clock.now())
        told = Emit(
            type="Normal" if ready.cause == "SandboxReady" else "Warning",
            reason="Assigned" if ready.cause == "SandboxReady" else ready.cause,
            message=f"agent {name} serves attempt {ready.attempt} (epoch {ready.epoch})",
        )
        try:
            await self._episodes.carry_out(given.episode, Plan(actions=(PatchStatus(status=status), told)))
        finally:
            self._dispatcher.settle(key)
        self._dispatcher.observe_pod(key, None)
        self._deliveries.deliver(key)
        return 0.0

    def _decide(self, key: Key, given: EpisodeInput) -> Plan:
        """What to do, a new pod only if it is this Episode's turn."""
        now = self._world.clock.now()
        given = msgspec.structs.replace(given, held_by=self._dispatcher.held_by(key))
        plan = decide(given, now)
        wants_pod = any(isinstance(action, CreatePod) for action in plan.actions)
        needs_slot = given.episode.spec.agent is not None
        self._dispatcher.wants_pod(key, candidate_of(given.episode, needs_slot=needs_slot) if wants_pod else None)
        if not wants_pod or self._dispatcher.may_create(key):
            return plan
        if given.create_failure is None:
            held_by = self._dispatcher.held_by(key)
            return decide(msgspec.structs.replace(given, may_create=False, held_by=held_by), now)
        # It shows what was in the way the last time, which is worth more than that its turn comes in a moment.
        others = tuple(action for action in plan.actions if not isinstance(action, CreatePod))
        return msgspec.structs.replace(plan, actions=others)

    def _until_retry(self, given: EpisodeInput) -> float | None:
        """When a back-off ends. One that has ended waits for the dispatcher, whose grant brings the next look."""
        due, now = retry_at(given), self._world.clock.now()
        return max(0.1, (due - now).total_seconds()) if due is not None and due > now else None


def settled_seconds(failures: int) -> float:
    """How long a set is left alone after a write of its status: longer if what followed has failed before."""
    return min(_LONGEST_SETTLED, _SETTLED_SECONDS * 2.0 ** min(failures, 10))


def _soonest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
