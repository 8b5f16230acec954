"""Event handlers. They add the objects that a change affects to the work queue."""

from collections.abc import Iterable

import msgspec

from dgym.kube import ChangeSource, Key, ObjectChange, WorkQueue
from dgym.wire import calls
from dgym.wire.http import AttemptState, TerminatedResponse
from dgym_operator.app._metrics import TransitionObserver
from dgym_operator.app._reconciler import Item, Kind, settled_seconds
from dgym_operator.cache import Cache
from dgym_operator.calls import SidecarAnswer
from dgym_operator.controllers import Indexes, attempt_of, child_index
from dgym_operator.controllers.episode import loss
from dgym_operator.dispatch import Dispatcher
from dgym_operator.objects import (
    POLICY_NAME,
    ConfigMapView,
    EpisodeSetView,
    EpisodeView,
    NetworkPolicyView,
    Pod,
    SandboxPoolView,
    TaskView,
)

_SET_SECONDS = 0.1
"""Delay of a set's reconcile, so that simultaneous changes of many children cause one write."""
_POOL_SECONDS = 0.2
"""Delay of a sandbox pool's reconcile, so that simultaneous claims cause one round."""
_SET_PAUSE = 1.0
"""Minimum interval between two writes of a set's status that are caused by changes of its children."""


class EventHandlers:
    """Subscribes to the stores and fills the work queue on the leader. Other replicas have no workers for the queue."""

    def __init__(
        self, cache: Cache, *, queue: WorkQueue[Item], dispatcher: Dispatcher, observer: TransitionObserver
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._dispatcher = dispatcher
        self._observer = observer
        self._leading = False
        self._sets_written: dict[Key, float] = {}
        cache.episodes.subscribe(self._episode)
        cache.sets.subscribe(self._set)
        cache.pods.subscribe(self._pod)
        cache.sandbox_pools.subscribe(self._sandbox_pool)
        cache.tasks.subscribe(self._task)
        cache.config_maps.subscribe(self._config_map)
        cache.network_policies.subscribe(self._network_policy)
        cache.quotas.subscribe(dispatcher.observe_quota)
        cache.agent_pod_objects.subscribe(self._handle_agent_pod)

    def start(self) -> None:
        """Enqueue all objects now, and every changed object from now on."""
        self._leading = True
        cache = self._cache
        self._enqueue_all(cache.sets, cache.episodes, cache.sandbox_pools)
        for namespace in cache.namespaces | {policy.metadata.namespace for policy in cache.network_policies}:
            self._enqueue_policy(namespace)

    def enqueue_namespace(self, name: str) -> None:
        """Enqueue all objects of a namespace that is served from now on."""
        cache = self._cache
        pools = cache.sandbox_pools_by_namespace[name]
        self._enqueue_all(cache.sets_by_namespace[name], cache.episodes_by_namespace[name], pools)
        self._enqueue_policy(name)

    def enqueue(self, key: Key, after: float = 0.0, *, kind: Kind = Kind.EPISODE, low_priority: bool = False) -> None:
        """Enqueue an object, by default an Episode, in ``after`` seconds. Only the leader enqueues."""
        if self._leading:
            self._queue.add(Item(kind, key), after, low_priority=low_priority)

    def _enqueue_all(
        self, sets: Iterable[EpisodeSetView], episodes: Iterable[EpisodeView], pools: Iterable[SandboxPoolView]
    ) -> None:
        for episode_set in sets:
            self.enqueue(episode_set.key, kind=Kind.EPISODE_SET, low_priority=True)
        for episode in episodes:
            self.enqueue(episode.key, low_priority=True)
        for pool in pools:
            self.enqueue_sandbox_pool(pool.key)

    def _enqueue_set(self, namespace: str, name: str) -> None:
        key = (namespace, name)
        paused = self._sets_written.get(key, float("-inf")) + _SET_PAUSE - self._cache.clock.monotonic()
        self.enqueue(key, max(_SET_SECONDS, paused), kind=Kind.EPISODE_SET)

    def _enqueue_set_of(self, uid: str) -> None:
        """Enqueue the set of the Episode, because the set's status counts the children with a pod."""
        episode = self._cache.episode_of(uid)
        owner = episode.metadata.controller if episode is not None else None
        if episode is not None and owner is not None and owner.kind == Kind.EPISODE_SET:
            self._enqueue_set(episode.metadata.namespace, owner.name)

    def enqueue_sandbox_pool(self, key: Key) -> None:
        """Enqueue a SandboxPool."""
        self.enqueue(key, _POOL_SECONDS, kind=Kind.SANDBOX_POOL)

    def _enqueue_policy(self, namespace: str) -> None:
        self.enqueue((namespace, POLICY_NAME), kind=Kind.NETWORK_POLICY)

    def _network_policy(self, change: ObjectChange[NetworkPolicyView]) -> None:
        if change.source is not ChangeSource.OWN:
            self._enqueue_policy(change.key[0])

    def _episode(self, change: ObjectChange[EpisodeView]) -> None:
        self._observer.episode(change)
        episode, uid = change.last, change.last.metadata.uid
        owner = episode.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE_SET:
            self._enqueue_set(episode.metadata.namespace, owner.name)
            index = child_index(episode)
            if index is not None:
                self._cache.memory.record_observed(owner.uid, index)
        if change.new is None or (change.old is not None and change.old.metadata.uid != uid):
            gone = change.old.metadata.uid if change.old is not None else uid
            self._cache.memory.forget(gone)
            self._cache.agent_pods.forget(gone)
            self._dispatcher.forget(change.key)
        last = self._cache.memory.last_pods.get(uid)
        if last is not None and (change.new is None or not self._cache.is_of_current_attempt(change.new, last)):
            del self._cache.memory.last_pods[uid]
        if _slot_changed(change):
            self._dispatcher.wake()
        self.enqueue(change.key, low_priority=change.source is ChangeSource.LIST)

    def _set(self, change: ObjectChange[EpisodeSetView]) -> None:
        if change.new is None:
            self._cache.memory.forget(change.last.metadata.uid)
            self._sets_written.pop(change.key, None)
            return
        after = 0.0
        if change.source is ChangeSource.OWN:
            self._sets_written[change.key] = self._cache.clock.monotonic()
            # If an action after the write fails repeatedly, this delay is its only back-off.
            after = settled_seconds(self._queue.failures(Item(Kind.EPISODE_SET, change.key)))
        self.enqueue(change.key, after, kind=Kind.EPISODE_SET, low_priority=change.source is ChangeSource.LIST)
        self._enqueue_counted(change.old, change.new)

    def _enqueue_counted(self, old: EpisodeSetView | None, new: EpisodeSetView) -> None:
        """Enqueue children that were just counted, because they may be deleted after their time to live."""
        if not self._leading or old is None or old.status.completed_indexes == new.status.completed_indexes:
            return
        children, before = self._cache.children_of(new), Indexes.parse(old.status.completed_indexes)
        for index in children.completed(new.status.completed_indexes).minus(before):
            child = children.at(index)
            if child is not None and child.spec.ttl_seconds_after_finished is not None:
                self.enqueue(child.key)

    def _pod(self, change: ObjectChange[Pod]) -> None:
        self._observer.pod(change)
        self._pod_of_sandbox_pool(change)
        if change.old is not None and not change.old.is_over and (change.new is None or change.new.is_over):
            self._dispatcher.pod_ended(change.key[0])
        owner = change.last.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE:
            if change.old is None or change.new is None:
                self._enqueue_set_of(owner.uid)
            if not self._cache.owns(change.last):
                # The pod may have blocked the name of an episode's pod, which can be created when this pod is gone.
                self.enqueue((change.key[0], owner.name))
                return
            if change.new is None:
                self._keep_last(owner.uid, change.last)
            if loss(change.last).disruption:
                # The pod and its condition may be gone before the next decision about the Episode.
                disrupted = self._cache.memory.disrupted
                disrupted[owner.uid] = max(attempt_of(change.last), disrupted.get(owner.uid, 0))
            key = (change.key[0], owner.name)
            if not _is_of_no_consequence(change):
                self.enqueue(key, low_priority=change.source is ChangeSource.LIST)

    def _pod_of_sandbox_pool(self, change: ObjectChange[Pod]) -> None:
        """Enqueue the sandbox pools that control the pod now or controlled it before this change."""
        for pod in (change.old, change.new):
            owner = pod.metadata.controller if pod is not None else None
            if owner is not None and owner.kind == Kind.SANDBOX_POOL and not _is_of_no_consequence(change):
                self.enqueue_sandbox_pool((change.key[0], owner.name))

    def _sandbox_pool(self, change: ObjectChange[SandboxPoolView]) -> None:
        if change.new is None:
            self._cache.memory.forget(change.last.metadata.uid)
        elif change.source is not ChangeSource.OWN or change.old is None or change.old.spec != change.new.spec:
            # The operator's own write of a pool's status does not need a decision. Its write of a set's pool spec does.
            self.enqueue_sandbox_pool(change.key)

    def _keep_last(self, uid: str, pod: Pod) -> None:
        """Keep the last state of a deleted pod for the next decision, which reads its outcome or its deletion."""
        episode = self._cache.episode_of(uid)
        if episode is None or not self._cache.is_of_current_attempt(episode, pod):
            return
        if episode.status.pod_name is not None and pod.terminated("sidecar") is None:
            return
        deleted = pod.metadata.deletion_timestamp or self._cache.clock.now()
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=deleted)
        self._cache.memory.last_pods[uid] = msgspec.structs.replace(pod, metadata=metadata)

    def sidecar_answered(self, answer: SidecarAnswer) -> None:
        """Record the answer of a sidecar, and enqueue its Episode if the answer contains news."""
        uid, attempt = answer.call.episode_uid, answer.call.attempt
        view = self._cache.memory.sidecar(uid, attempt)
        match answer.content:
            case TerminatedResponse():
                after = view.after_terminated(answer.content)
            case AttemptState():
                after = view.after_state(answer.content, answer.requested)
            case _ if answer.call.call is calls.CANCEL:
                after = view.after_cancel(answer.requested)
            case _:
                after = view.after_bind() if answer.call.call is calls.BIND else view
        episode = self._cache.episode_of(uid)
        if after != view and episode is not None:
            self._cache.memory.record_sidecar(uid, attempt, after)
            self.enqueue(episode.key)

    def _task(self, change: ObjectChange[TaskView]) -> None:
        for episode in self._cache.episodes_by_task[change.key]:
            if episode.status.pod_name is None:
                self.enqueue(episode.key, low_priority=True)
        for pool in self._cache.sandbox_pools_by_namespace[change.key[0]]:
            if pool.spec.task_ref.name == change.key[1]:
                self.enqueue_sandbox_pool(pool.key)
        for episode_set in self._cache.sets_by_namespace[change.key[0]]:
            if not self._cache.config_maps_by_owner.count(episode_set.metadata.uid):
                self._enqueue_set(*episode_set.key)

    def _config_map(self, change: ObjectChange[ConfigMapView]) -> None:
        owner = change.last.metadata.controller
        if owner is not None and owner.kind == Kind.EPISODE_SET:
            self._enqueue_set(change.key[0], owner.name)

    def _handle_agent_pod(self, change: ObjectChange[Pod]) -> None:
        agent_pods = self._cache.agent_pods
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            agent_pods.remove(change.old.metadata.uid)
        if change.new is not None:
            agent_pods.observe_pod(change.new)
        if agent_pods.get(change.last.metadata.uid) is None:
            for episode in self._cache.episodes_by_agent_pod[change.last.metadata.uid]:
                self.enqueue(episode.key)
        self._dispatcher.wake()


def _is_of_no_consequence(change: ObjectChange[Pod]) -> bool:
    """True if no field that a decision reads has changed. The kubelet and the scheduler also write other fields."""
    old, new = change.old, change.new
    if old is None or new is None or old.status != new.status:
        return False
    versioned = msgspec.structs.replace(new.metadata, resource_version=old.metadata.resource_version)
    return versioned == old.metadata


def _slot_changed(change: ObjectChange[EpisodeView]) -> bool:
    old, new = change.old, change.new
    before = old.status.assignment if old is not None and not old.is_finished else None
    after = new.status.assignment if new is not None and not new.is_finished else None
    return before != after
