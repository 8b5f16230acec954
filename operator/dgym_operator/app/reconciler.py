"""The reconcile of each object in the queue."""

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from dgym.kube import (
    EPISODES,
    ApiError,
    Conflict,
    ConnectionLost,
    Forbidden,
    Key,
    NotFound,
    QueueClosed,
    WorkQueue,
)
from dgym.logs import fields
from dgym_operator.actions import EpisodeExecutor, NetworkPolicies, NotLeading, PoolExecutor, SetExecutor
from dgym_operator.app.health import Watchdog
from dgym_operator.app.metrics import Metrics
from dgym_operator.cache import Agent, Cache
from dgym_operator.controllers import MODEL, STORE, CreatePod, EpisodeInput, PatchSetStatus, PatchStatus, Plan, Waits
from dgym_operator.controllers.episode import (
    AgentRequest,
    agent_request,
    assigned_events,
    assigned_status,
    decide,
    retry_at,
)
from dgym_operator.controllers.episodeset import decide_set
from dgym_operator.controllers.sandboxpool import decide_pool
from dgym_operator.dispatch import Deliveries, Dispatcher, candidate_of, pending_pod
from dgym_operator.objects import EpisodeSetView, EpisodeView

_log = logging.getLogger(__name__)
_ALL = sys.maxsize
WAITING_FOR = {
    "QuotaExceeded": "quota",
    "WaitingForSlot": "slot",
    "SchedulingGated": "gate",
    "ImagePullFailed": "image",
    "ResultStoreUnavailable": STORE,
    "ModelError": MODEL,
    "Unschedulable": "node",
    "WaitingForTask": "task",
    "PodNotCreated": "pod",
}
"""What an Episode waits for, by the reason in its status."""
_SETTLED_SECONDS = 1.0
_LONGEST_SETTLED = 60.0


class Kind(StrEnum):
    """Kinds that are reconciled."""

    EPISODE = "Episode"
    EPISODE_SET = "EpisodeSet"
    SANDBOX_POOL = "SandboxPool"
    NETWORK_POLICY = "NetworkPolicy"


class Item(NamedTuple):
    """An object to reconcile."""

    kind: Kind
    key: Key


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Reconciler:
    """The work of the queue's workers."""

    cache: Cache
    queue: WorkQueue[Item]
    episodes: EpisodeExecutor
    sets: SetExecutor
    pools: PoolExecutor
    policies: NetworkPolicies
    dispatcher: Dispatcher
    deliveries: Deliveries
    metrics: Metrics
    watchdog: Watchdog
    serves: Callable[[str], bool]

    async def work(self, number: int) -> None:
        """Reconcile one object after the other until the queue is closed."""
        while True:
            try:
                async with self.queue.take() as item:
                    self.watchdog.begin(number, f"{item.kind} {'/'.join(item.key)}")
                    try:
                        await self._measure(item)
                    finally:
                        self.watchdog.end(number)
            except QueueClosed:
                return

    async def _measure(self, item: Item) -> None:
        started = self.cache.clock.monotonic()
        result = await self._reconcile(item)
        self.metrics.reconciled(item.kind.value, result, self.cache.clock.monotonic() - started)

    async def _reconcile(self, item: Item) -> str:
        about = fields(kind=item.kind.value, namespace=item.key[0], name=item.key[1])
        if not self.serves(item.key[0]):
            # All objects of a namespace are queued when it is served.
            if item.kind is Kind.EPISODE:
                self.dispatcher.forget(item.key)
            self.queue.forget(item)
            return "not_served"
        try:
            requeue_after = await self._work_of(item)
        except NotLeading:
            return "not_leading"
        except NotFound:
            self._release_pod(item)
            return "gone"
        except Conflict:
            await self._refresh(item)
            self.queue.retry(item)
            return "conflict"
        except ApiError as error:
            if not (isinstance(error, ConnectionLost) and error.method == "POST"):
                self._release_pod(item)
            if isinstance(error, Forbidden) and error.namespace_terminating:
                return "gone"
            seconds = self.queue.retry(item)
            _log.warning("reconcile failed, retried in %.1f s: %s", seconds, error, extra=about)
            return "error"
        except Exception:
            # An unforeseen object must not keep all others waiting.
            self._release_pod(item)
            self.queue.retry(item)
            _log.exception("reconcile raised an exception, a defect", extra=about)
            return "defect"
        if item.kind is not Kind.EPISODE_SET:
            self.queue.forget(item)
        if requeue_after is not None:
            self.queue.add(item, requeue_after)
        return "ok"

    async def _work_of(self, item: Item) -> float | None:
        match item.kind:
            case Kind.EPISODE:
                return await self._episode(item.key)
            case Kind.EPISODE_SET:
                return await self._set(item.key)
            case Kind.SANDBOX_POOL:
                return await self._pool(item.key)
            case Kind.NETWORK_POLICY:
                await self.policies.reconcile(item.key[0])
                return None

    async def _refresh(self, item: Item) -> None:
        """Read an Episode that has changed under a write, perhaps by that very write, whose answer was lost.

        The watch may show it late, and meanwhile the slot of an assignment would count as free.
        """
        if item.kind is Kind.EPISODE:
            with contextlib.suppress(ApiError):
                namespace, name = item.key
                read = await self.episodes.client.get(EPISODES, name, decode=EpisodeView, namespace=namespace)
                self.cache.episodes.assume(read)

    def _release_pod(self, item: Item) -> None:
        """Release the grant of a pod that was not made: until the next try it would take others' room.

        A pod whose creation was not answered may exist. It keeps its grant.
        """
        if item.kind is Kind.EPISODE and self.dispatcher.pod_granted(item.key):
            self.dispatcher.request_pod(item.key, None)

    async def _set(self, key: Key) -> float | None:
        episode_set = self.cache.sets.get(key)
        item = Item(Kind.EPISODE_SET, key)
        if episode_set is None:
            self.queue.forget(item)
            return None
        view = msgspec.structs.replace(self.cache.set_input(episode_set), waits=self._waits(episode_set))
        plan = decide_set(view, self.cache.clock.now())
        requeue_after = await self.sets.apply(episode_set, plan)
        if plan.actions and all(isinstance(action, PatchSetStatus) for action in plan.actions):
            # The plan corrects the status of a failed round, and does not show whether a round would succeed now.
            return None if requeue_after is None else max(requeue_after, settled_seconds(self.queue.failures(item)))
        self.queue.forget(item)
        return requeue_after

    def _waits(self, episode_set: EpisodeSetView) -> Waits:
        """How many unfinished children of the set have a pod, and what the others wait for."""
        active, total, counts = 0, 0, Counter[str]()
        messages: dict[str, str] = {}
        for child in self.cache.children_of(episode_set).unfinished(_ALL):
            if child.spec.suspend:
                continue
            has_pod = child.status.pod_name is not None or self.cache.pods_by_owner.count(child.metadata.uid) > 0
            active += has_pod
            if child.status.pod_name is not None:
                cause = WAITING_FOR.get(child.status.reason, "")
                if cause in (MODEL, STORE):
                    counts[cause] += 1
                    messages.setdefault(cause, child.status.message)
                continue
            total += 1
            cause = self.dispatcher.waits_for(child.key) or WAITING_FOR.get(child.status.reason, "")
            if cause:
                counts[cause] += 1
                if cause not in messages:
                    messages[cause] = self.dispatcher.held_by(child.key) or child.status.message
        causes = "; ".join(f"{cause}: {text}" if text else cause for cause, text in messages.items())
        message = f"episodes wait for {causes}" if causes else ""
        return Waits(active=active, total=total, counts=tuple(counts.most_common()), message=message)

    async def _pool(self, key: Key) -> float | None:
        pool = self.cache.sandbox_pools.get(key)
        if pool is None:
            return None
        view = self.cache.pool_input(pool, *await self.pools.hash_of(pool))
        return await self.pools.apply(pool, decide_pool(view, self.cache.clock.now()))

    async def _episode(self, key: Key) -> float | None:
        episode = self.cache.episodes.get(key)
        if episode is None or self.cache.is_settled(episode):
            self.dispatcher.forget(key)
            return None
        view = self.cache.episode_input(episode, may_create=True)
        request = agent_request(view, self.cache.clock.now())
        agent = self._granted_agent(key, view, request)
        if request is not None and agent is not None:
            return await self._assign(key, view, request, agent)
        plan = self._decide(key, view)
        self.dispatcher.observe_pod(key, pending_pod(self.cache, episode))
        requeue_after = await self.episodes.apply(episode, plan)
        return _soonest(requeue_after, self._until_retry(view))

    def _granted_agent(self, key: Key, view: EpisodeInput, request: AgentRequest | None) -> Agent | None:
        """The agent granted to the Episode, if one is requested; else update the request."""
        if request is not None and request.cause == "Recover" and view.assignment is not None:
            # It takes no slot.
            self.dispatcher.request_agent(key, None)
            self.dispatcher.release_agent(key)
            return self.cache.agents.recoverer(view.assignment.agent_pod_uid, self.dispatcher.pools.of(key[0]))
        granted = self.dispatcher.granted_agent(key)
        agent = self.cache.agents.get(granted) if request is not None and granted is not None else None
        if agent is not None:
            return agent
        self.dispatcher.release_agent(key)
        candidate = None
        if request is not None:
            previous = view.assignment.agent_pod_uid if view.assignment is not None else None
            candidate = candidate_of(view.episode, previous=previous)
        self.dispatcher.request_agent(key, candidate)
        return None

    async def _assign(self, key: Key, view: EpisodeInput, request: AgentRequest, agent: Agent) -> float:
        status = assigned_status(view, request, agent.uid, self.cache.clock.now())
        events = assigned_events(view, request, agent.name)
        # A write that failed may have taken effect: the slot stays granted until the next reconcile shows it.
        await self.episodes.apply(view.episode, Plan(actions=(PatchStatus(status=status), *events)))
        self.dispatcher.release_agent(key)
        self.dispatcher.observe_pod(key, None)
        self.deliveries.deliver(key)
        return 0.0

    def _decide(self, key: Key, view: EpisodeInput) -> Plan:
        """The plan, with a new pod only if the dispatcher has granted it."""
        now = self.cache.clock.now()
        room_at = self.dispatcher.quota_room_at(key[0])
        view = msgspec.structs.replace(view, held_by=self.dispatcher.held_by(key), quota_room_at=room_at)
        plan = decide(view, now)
        needs_pod = any(isinstance(action, CreatePod) for action in plan.actions)
        candidate = candidate_of(view.episode, image=self.cache.image_of(view.episode)) if needs_pod else None
        self.dispatcher.request_pod(key, candidate)
        if not needs_pod or self.dispatcher.pod_granted(key):
            return plan
        if view.create_failure is None or view.create_failure.full:
            held_by, full = self.dispatcher.held_by(key), self.dispatcher.is_quota_full(key)
            return decide(msgspec.structs.replace(view, may_create=False, held_by=held_by, quota_full=full), now)
        # The status keeps the cause of the last failure, which is worth more than a wait for a slot of a moment.
        others = tuple(action for action in plan.actions if not isinstance(action, CreatePod))
        return msgspec.structs.replace(plan, actions=others)

    def _until_retry(self, view: EpisodeInput) -> float | None:
        """Seconds until a back-off ends. After its end a grant of the dispatcher queues the Episode."""
        due, now = retry_at(view), self.cache.clock.now()
        return max(0.1, (due - now).total_seconds()) if due is not None and due > now else None


def settled_seconds(failures: int) -> float:
    """Pause of a set after a write of its status: longer if the following actions have failed before."""
    return min(_LONGEST_SETTLED, _SETTLED_SECONDS * 2.0 ** min(failures, 10))


def _soonest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
