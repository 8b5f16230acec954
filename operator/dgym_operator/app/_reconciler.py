"""Reconciles the objects in the work queue."""

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
from dgym_operator.actions import EpisodeExecutor, NetworkPolicies, NotLeading, SandboxPoolExecutor, SetExecutor
from dgym_operator.app._health import Watchdog
from dgym_operator.app._metrics import Metrics
from dgym_operator.cache import AgentPod, Cache
from dgym_operator.controllers import MODEL, STORE, EpisodeInput, PatchSetStatus, PatchStatus, Plan, Waits
from dgym_operator.controllers.episode import (
    AgentPodRequest,
    agent_pod_request,
    assigned_events,
    assigned_status,
    decide,
    retry_at,
)
from dgym_operator.controllers.episodeset import decide_set
from dgym_operator.controllers.sandboxpool import decide_sandbox_pool
from dgym_operator.dispatch import Candidate, Deliveries, Dispatcher, candidate_of, pending_pod
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
"""Cause for which an Episode waits, by the reason in its status."""
_SETTLED_SECONDS = 1.0
_LONGEST_SETTLED = 60.0


class Kind(StrEnum):
    """Kinds of objects that are reconciled."""

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
    """Runs the workers of the queue."""

    cache: Cache
    queue: WorkQueue[Item]
    episodes: EpisodeExecutor
    sets: SetExecutor
    sandbox_pools: SandboxPoolExecutor
    policies: NetworkPolicies
    dispatcher: Dispatcher
    deliveries: Deliveries
    metrics: Metrics
    watchdog: Watchdog
    serves: Callable[[str], bool]

    async def work(self, number: int) -> None:
        """Reconcile one object after another until the queue is closed."""
        while True:
            try:
                async with self.queue.take() as item:
                    self.watchdog.begin(number, f"{item.kind} {'/'.join(item.key)}")
                    started = self.cache.clock.monotonic()
                    try:
                        result = await self._reconcile(item)
                        self.metrics.reconciled(item.kind.value, result, self.cache.clock.monotonic() - started)
                    finally:
                        self.watchdog.end(number)
            except QueueClosed:
                return

    async def _reconcile(self, item: Item) -> str:
        about = fields(kind=item.kind.value, namespace=item.key[0], name=item.key[1])
        if not self.serves(item.key[0]):
            # All objects of a namespace are enqueued when it is served again.
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
            # An unexpected exception for one object must not stop the reconciles of all others.
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
                return await self._sandbox_pool(item.key)
            case Kind.NETWORK_POLICY:
                await self.policies.reconcile(item.key[0])
                return None

    async def _refresh(self, item: Item) -> None:
        """Read an Episode after a conflict. The conflict may come from an own write whose answer was lost.

        Without this the watch may deliver the Episode late, and the slot of its assignment would count as free until
        then.
        """
        if item.kind is Kind.EPISODE:
            with contextlib.suppress(ApiError):
                namespace, name = item.key
                read = await self.episodes.client.get(EPISODES, name, decode=EpisodeView, namespace=namespace)
                self.cache.episodes.assume(read)

    def _release_pod(self, item: Item) -> None:
        """Release the grant of a pod that was not created, so that others can use it until the next try.

        Must not be called if the creation was not answered, because the pod may exist.
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
            # The plan only corrects the status after a failed round. It is not a success that resets the back-off.
            return None if requeue_after is None else max(requeue_after, settled_seconds(self.queue.failures(item)))
        self.queue.forget(item)
        return requeue_after

    def _waits(self, episode_set: EpisodeSetView) -> Waits:
        """Count the unfinished children of the set that have a pod, and the causes for which the others wait."""
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
            hold = self.dispatcher.hold(child.key)
            cause = hold.kind if hold is not None else WAITING_FOR.get(child.status.reason, "")
            if cause:
                counts[cause] += 1
                messages.setdefault(cause, (hold.text if hold is not None else "") or child.status.message)
        causes = "; ".join(f"{cause}: {text}" if text else cause for cause, text in messages.items())
        message = f"episodes wait for {causes}" if causes else ""
        return Waits(active=active, total=total, counts=tuple(counts.most_common()), message=message)

    async def _sandbox_pool(self, key: Key) -> float | None:
        pool = self.cache.sandbox_pools.get(key)
        if pool is None:
            return None
        view = self.cache.sandbox_pool_input(pool, *await self.sandbox_pools.hash_of(pool))
        return await self.sandbox_pools.apply(pool, decide_sandbox_pool(view, self.cache.clock.now()))

    async def _episode(self, key: Key) -> float | None:
        episode = self.cache.episodes.get(key)
        if episode is None or self.cache.is_settled(episode):
            self.dispatcher.forget(key)
            return None
        view = self.cache.episode_input(episode, may_create=self.dispatcher.pod_granted(key))
        now = self.cache.clock.now()
        request = agent_pod_request(view, now)
        agent_pod = self._granted_agent_pod(key, view, request)
        if request is not None and agent_pod is not None:
            return await self._assign(key, view, request, agent_pod)
        has_pod = view.pod is not None or episode.status.pod_name is not None
        candidate = None if has_pod else candidate_of(episode, image=self.cache.image_of(episode))
        plan = decide(self._with_hold(view, candidate), now)
        self.dispatcher.request_pod(key, candidate if plan.requests_pod else None)
        self.dispatcher.observe_pod(key, pending_pod(self.cache, episode))
        requeue_after = await self.episodes.apply(episode, plan)
        return _soonest(requeue_after, self._until_retry(view))

    def _granted_agent_pod(self, key: Key, view: EpisodeInput, request: AgentPodRequest | None) -> AgentPod | None:
        """Return the agent pod granted to the Episode. Without a grant update the request and return None."""
        if request is not None and request.cause == "Recover" and view.assignment is not None:
            # A recovery uses no slot.
            self.dispatcher.request_agent_pod(key, None)
            self.dispatcher.release_agent_pod(key)
            return self.cache.agent_pods.recoverer(view.assignment.agent_pod_uid, self.dispatcher.pools.of(key[0]))
        granted = self.dispatcher.granted_agent_pod(key)
        agent_pod = self.cache.agent_pods.get(granted) if request is not None and granted is not None else None
        if agent_pod is not None:
            return agent_pod
        self.dispatcher.release_agent_pod(key)
        candidate = None
        if request is not None:
            previous = view.assignment.agent_pod_uid if view.assignment is not None else None
            candidate = candidate_of(view.episode, previous=previous)
        self.dispatcher.request_agent_pod(key, candidate)
        return None

    async def _assign(self, key: Key, view: EpisodeInput, request: AgentPodRequest, agent_pod: AgentPod) -> float:
        status = assigned_status(view, request, agent_pod.uid, self.cache.clock.now())
        events = assigned_events(view, request, agent_pod.name)
        # If the write raises, it may still have taken effect. So the slot stays granted until the next reconcile.
        await self.episodes.apply(view.episode, Plan(actions=(PatchStatus(status=status), *events)))
        self.dispatcher.release_agent_pod(key)
        self.dispatcher.observe_pod(key, None)
        self.deliveries.deliver(key)
        return 0.0

    def _with_hold(self, view: EpisodeInput, candidate: Candidate | None) -> EpisodeInput:
        """Return the view with the cause why a sandbox pod or an agent pod is not granted."""
        key = view.episode.key
        hold = self.dispatcher.hold(key, candidate)
        return msgspec.structs.replace(
            view,
            held_by=hold.text if hold is not None else "",
            quota_full=hold is not None and hold.kind == "quota",
            quota_room_at=self.dispatcher.quota_room_at(key[0]),
        )

    def _until_retry(self, view: EpisodeInput) -> float | None:
        """Return the seconds until a back-off ends. After that the dispatcher enqueues the Episode with its grant."""
        due, now = retry_at(view), self.cache.clock.now()
        return max(0.1, (due - now).total_seconds()) if due is not None and due > now else None


def settled_seconds(failures: int) -> float:
    """Return the seconds to wait after a write of a set's status. They grow with the failures of later actions."""
    return min(_LONGEST_SETTLED, _SETTLED_SECONDS * 2.0 ** min(failures, 10))


def _soonest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
