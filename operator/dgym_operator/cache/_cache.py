"""Stores of watched objects with indexes, and the inputs of decisions that are built from them.

The inputs contain state of Episodes, EpisodeSets and SandboxPools that is not in the API server.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from dgym.kube import (
    Clock,
    InformerStore,
    ObjectChange,
)
from dgym.wire.assignments import AssignmentMode
from dgym_operator.cache._agent_pods import AgentPods
from dgym_operator.controllers import (
    Children,
    CreateFailure,
    EpisodeInput,
    EpisodeSetInput,
    FrozenTasks,
    Policy,
    SandboxPoolInput,
    SidecarView,
    TaskState,
    attempt_of,
    child_index,
    current_attempt,
    is_outdated,
)
from dgym_operator.controllers.episodeset import decode_tasks, tasks_name
from dgym_operator.controllers.sandboxpool import has_failed
from dgym_operator.objects import (
    ConfigMapView,
    EpisodeSetView,
    EpisodeView,
    NetworkPolicyView,
    Pod,
    QuotaView,
    SandboxPoolView,
    TaskView,
    WatchedObject,
)
from dgym_operator.pod_identity import pool_identity, proof_is_valid

_SET = "EpisodeSet"
_EPISODE = "Episode"
_POOL = "SandboxPool"
_CLAIMS = 1000
_UNANSWERED_CREATE = timedelta(seconds=30)
"""How long a create without an answer counts. After this time the watch would have delivered the object."""


class Cache:
    """Stores of watched objects, and indexes over them."""

    def __init__(self, clock: Clock, agent_pods: AgentPods, policy: Policy) -> None:
        self.clock = clock
        self.agent_pods = agent_pods
        self.policy = policy
        self.memory = Memory()
        self.key = b""
        """The cluster's key. Empty until this replica is the leader."""
        self.key_id = ""
        """Identifier of the key."""
        self.episodes: InformerStore[EpisodeView] = InformerStore(clock)
        self.sets: InformerStore[EpisodeSetView] = InformerStore(clock)
        self.sandbox_pools: InformerStore[SandboxPoolView] = InformerStore(clock)
        self.tasks: InformerStore[TaskView] = InformerStore(clock)
        self.pods: InformerStore[Pod] = InformerStore(clock)
        self.agent_pod_objects: InformerStore[Pod] = InformerStore(clock)
        self.config_maps: InformerStore[ConfigMapView] = InformerStore(clock)
        self.network_policies: InformerStore[NetworkPolicyView] = InformerStore(clock)
        self.quotas: InformerStore[QuotaView] = InformerStore(clock)
        self.episodes_by_uid = self.episodes.index(lambda episode: (episode.metadata.uid,))
        self.episodes_by_namespace = self.episodes.index(lambda episode: (episode.metadata.namespace,))
        self.episodes_by_agent_pod = self.episodes.index(_agent_pod_of)
        self.episodes_by_slot = self.episodes.index(_slot_of)
        self.assigned_by_namespace = self.episodes.index(_assigned_in)
        self.episodes_by_task = self.episodes.index(_task_of)
        self.pods_by_owner = self.pods.index(_owner_of)
        self.pods_by_namespace = self.pods.index(lambda pod: (pod.metadata.namespace,))
        self.active_pods = self.pods.index(lambda pod: () if pod.is_over else (pod.metadata.namespace,))
        self.quotas_by_namespace = self.quotas.index(lambda quota: (quota.metadata.namespace,))
        self.idle_pods = self.pods.index(_idle_as)
        self.sandbox_pools_by_namespace = self.sandbox_pools.index(lambda each: (each.metadata.namespace,))
        self.sandbox_pools_by_owner = self.sandbox_pools.index(_owner_of)
        self.children = self.episodes.index(_owner_of)
        self.config_maps_by_owner = self.config_maps.index(_owner_of)
        self.sets_by_namespace = self.sets.index(lambda each: (each.metadata.namespace,))
        self.tasks_by_namespace = self.tasks.index(lambda task: (task.metadata.namespace,))
        self._children: dict[str, Children] = {}
        self._frozen: dict[str, FrozenTasks | None] = {}
        self.episodes.subscribe(self._update_children)
        self.sets.subscribe(self._drop_children)
        self.config_maps.subscribe(self._drop_frozen)

    def episode_of(self, uid: str) -> EpisodeView | None:
        """Return the Episode with this UID, or None."""
        return next(iter(self.episodes_by_uid[uid]), None)

    def set_of(self, episode: EpisodeView) -> EpisodeSetView | None:
        """Return the set that controls the Episode, or None."""
        owner = episode.metadata.controller
        if owner is None or owner.kind != _SET:
            return None
        found = self.sets.get((episode.metadata.namespace, owner.name))
        return found if found is not None and found.metadata.uid == owner.uid else None

    @property
    def namespaces(self) -> set[str]:
        """The namespaces that contain an Episode, an EpisodeSet or a SandboxPool."""
        indexes = (self.episodes_by_namespace, self.sets_by_namespace, self.sandbox_pools_by_namespace)
        return {str(namespace) for index in indexes for namespace in index.values()}

    def episode_input(self, episode: EpisodeView, *, may_create: bool) -> EpisodeInput:
        """Return the input of a decision about the Episode."""
        uid = episode.metadata.uid
        pods, unusable = self._sorted_pods(uid)
        return EpisodeInput(
            episode=episode,
            pods=pods,
            unusable_pods=unusable,
            task=self.task_state(episode),
            may_create=may_create,
            agent_pod=self.agent_pods.view(episode),
            sidecar=self.memory.sidecar(uid, current_attempt(episode.status)),
            absent=self.memory.absent.get(uid, frozenset()),
            create_failure=self.memory.failure(uid, episode.status.attempt + 1),
            disrupted_attempt=self.memory.disrupted.get(uid, 0),
            owned_by_set=bool(_set_uid(episode)),
            counted=self._is_counted(episode),
            key_id=self.key_id,
            policy=self.policy,
        )

    def is_settled(self, episode: EpisodeView) -> bool:
        """True if no action is necessary until the Episode or its pods change."""
        if not episode.is_finished or episode.spec.ttl_seconds_after_finished is not None:
            return False
        if is_outdated(episode.status.observed_generation, episode.metadata.generation):
            return False
        pods, unusable = self._sorted_pods(episode.metadata.uid)
        return all(pod.metadata.deletion_timestamp is not None for pod in (*pods, *unusable))

    def set_input(self, episode_set: EpisodeSetView) -> EpisodeSetInput:
        """Return the input of a decision about the EpisodeSet."""
        uid, namespace = episode_set.metadata.uid, episode_set.metadata.namespace
        lists = (self._frozen_tasks(found) for found in self.config_maps_by_owner[uid])
        frozen = next((tasks for tasks in lists if tasks is not None), None)
        pool = next(iter(self.sandbox_pools_by_owner[uid]), None)
        return EpisodeSetInput(
            episode_set=episode_set,
            frozen=frozen,
            list_absent=tasks_name(episode_set) in self.memory.absent.get(uid, ()),
            tasks=self.tasks_by_namespace[namespace] if frozen is None else (),
            children=self.children_of(episode_set),
            refused=self.memory.refused.get(uid, ""),
            creating=self.memory.creating(uid, self.clock.now()),
            pool=pool,
            pool_changed_at=self.memory.sandbox_pools[pool.metadata.uid].changed_at if pool is not None else None,
            policy=self.policy,
        )

    def sandbox_pool_input(self, pool: SandboxPoolView, template_hash: str, refused: str) -> SandboxPoolInput:
        """Return the input of a decision about the SandboxPool, and record new failures of its pods."""
        uid, now = pool.metadata.uid, self.clock.now()
        owned, known = self.pods_by_owner[uid], self.memory.sandbox_pools[uid]
        pods = tuple(pod for pod in owned if self.is_of_sandbox_pool(pod))
        known.record(pods, self.policy, now)
        known.template_hash = template_hash
        return SandboxPoolInput(
            pool=pool,
            pods=pods,
            unusable_pods=tuple(pod for pod in owned if pod not in pods and pod.metadata.labels.key),
            template_hash=template_hash,
            refused=refused or self.memory.refused.get(uid, ""),
            claims=tuple(known.claims),
            misses=tuple(known.misses),
            claimed=known.claimed,
            failures=known.failures,
            failed_at=known.failed_at,
            policy=self.policy,
        )

    def is_of_sandbox_pool(self, pod: Pod) -> bool:
        """True if the operator created the pod for a sandbox pool, with the template hash of its annotation."""
        metadata = pod.metadata
        owner, made_as = metadata.controller, metadata.annotations.template_hash
        if owner is None or owner.kind != _POOL or not self.key:
            return False
        identity = pool_identity(metadata.namespace, metadata.name, made_as)
        proof = metadata.annotations.proof
        return proof_is_valid(self.key, proof, namespace=metadata.namespace, episode_uid=identity, attempt=0)

    def children_of(self, episode_set: EpisodeSetView) -> Children:
        """Return the children of the set. They are kept up to date from the first call on."""
        uid = episode_set.metadata.uid
        found = self._children.get(uid)
        if found is None:
            found = self._children[uid] = Children(self.children[uid])
        return found

    def _update_children(self, change: ObjectChange[EpisodeView]) -> None:
        before, after = (_set_uid(view) if view is not None else "" for view in (change.old, change.new))
        if before != after and before in self._children:
            self._children[before].remove(change.key)
        if change.new is not None and after in self._children:
            self._children[after].put(change.new)

    def _drop_children(self, change: ObjectChange[EpisodeSetView]) -> None:
        uid = change.old.metadata.uid if change.old is not None else ""
        if change.new is None or change.new.metadata.uid != uid:
            self._children.pop(uid, None)

    def _frozen_tasks(self, found: ConfigMapView) -> FrozenTasks | None:
        """Return the list of tasks in the ConfigMap. It is decoded only once, because it may have a megabyte."""
        uid = found.metadata.uid
        if uid not in self._frozen:
            self._frozen[uid] = decode_tasks(found.data)
        return self._frozen[uid]

    def _drop_frozen(self, change: ObjectChange[ConfigMapView]) -> None:
        if change.old is not None:
            self._frozen.pop(change.old.metadata.uid, None)

    def task_state(self, episode: EpisodeView) -> TaskState:
        """Return the state of the Episode's task."""
        spec = episode.spec
        if spec.task is not None:
            return TaskState(state="inline", entrypoint_timeout_seconds=spec.task.entrypoint_timeout_seconds)
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        if found is None:
            return TaskState(state="missing")
        seconds = found.spec.entrypoint_timeout_seconds
        return TaskState(state="found", uid=found.metadata.uid, entrypoint_timeout_seconds=seconds)

    def image_of(self, episode: EpisodeView) -> str:
        """Return the image of the Episode's task. Empty for the default image or a missing task."""
        spec = episode.spec
        if spec.task is not None:
            return spec.task.image or ""
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        return (found.spec.image if found is not None else None) or ""

    def pods_of(self, uid: str) -> tuple[Pod, ...]:
        """Return the Episode's existing pods that the operator created."""
        return tuple(pod for pod in self.pods_by_owner[uid] if self.owns(pod))

    def owns(self, pod: Pod) -> bool:
        """True if the operator created the pod for the Episode in its owner reference.

        Labels and owner references are not evidence, because tenants can set them. The evidence is the reference in the
        Episode's status, which is written only for pods with a valid proof, or else the proof itself. If this leader
        has created another pod for the attempt, the proof is a copy and is ignored.
        """
        owner = pod.metadata.controller
        if owner is None or owner.kind != _EPISODE:
            return False
        episode = self.episode_of(owner.uid)
        reference = episode.status.pod_ref if episode is not None else None
        if reference is not None and reference.uid == pod.metadata.uid:
            return True
        made_for, made = self.memory.made.get(owner.uid, (0, ""))
        return (made_for != attempt_of(pod) or made == pod.metadata.uid) and self._is_proven(pod, owner.uid)

    def _is_proven(self, pod: Pod, uid: str) -> bool:
        if not self.key:
            return True  # Only the leader has the key. Other replicas do not make decisions.
        metadata = pod.metadata
        return proof_is_valid(
            self.key,
            metadata.annotations.proof,
            namespace=metadata.namespace,
            episode_uid=uid,
            attempt=attempt_of(pod),
        )

    def _sorted_pods(self, uid: str) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
        """Return the Episode's pods, including the last deleted one, and its unusable pods.

        A pod is unusable if it has a key without a valid proof, a former key, or the proof of another pod. Unusable
        pods are deleted, and the rest of their state is ignored.
        """
        pods, unusable = [], []
        for pod in self.pods_by_owner[uid]:
            if self.owns(pod):
                pods.append(pod)
            elif pod.metadata.labels.key or self._is_proven(pod, uid):
                unusable.append(pod)
        last = self.memory.last_pods.get(uid)
        if last is not None and all(pod.metadata.uid != last.metadata.uid for pod in pods):
            pods.append(last)
        return tuple(pods), tuple(unusable)

    def is_of_current_attempt(self, episode: EpisodeView, pod: Pod) -> bool:
        """True if the Episode is unfinished and the pod belongs to its current attempt, or else to its next one."""
        return not episode.is_finished and attempt_of(pod) == current_attempt(episode.status)

    def _is_counted(self, episode: EpisodeView) -> bool:
        if episode.spec.ttl_seconds_after_finished is None or not episode.is_finished:
            return False
        episode_set, index = self.set_of(episode), child_index(episode)
        if episode_set is None or index is None:
            return False
        return index in self.children_of(episode_set).completed(episode_set.status.completed_indexes)


def _set_uid(episode: EpisodeView) -> str:
    """Return the UID of the set that controls the Episode. Empty if it is not controlled by a set."""
    owner = episode.metadata.controller
    return owner.uid if owner is not None and owner.kind == _SET else ""


def _owner_of(item: WatchedObject) -> Iterable[Hashable]:
    owner = item.metadata.controller
    return (owner.uid,) if owner is not None else ()


def _idle_as(pod: Pod) -> Iterable[tuple[str, str]]:
    """Index function: namespace and template hash of an idle pod."""
    metadata = pod.metadata
    owner, made_as = metadata.controller, metadata.annotations.template_hash
    waits = owner is not None and owner.kind == _POOL and made_as and metadata.deletion_timestamp is None
    return ((metadata.namespace, made_as),) if waits and pod.ready and not pod.is_over else ()


def _agent_pod_of(episode: EpisodeView) -> Iterable[Hashable]:
    assignment = episode.status.assignment
    return (assignment.agent_pod_uid,) if assignment is not None and not episode.is_finished else ()


class Slot(NamedTuple):
    """Index key of the episodes of a namespace that use slots of an agent pod."""

    agent_pod_uid: str
    namespace: str


def _slot_of(episode: EpisodeView) -> Iterable[Slot]:
    assignment = episode.status.assignment
    if assignment is None or episode.is_finished or episode.spec.agent is None:
        return ()
    # After a failure of the model the slot is released, and the search for a stored outcome uses no slot.
    if assignment.failed_time is not None or assignment.mode == AssignmentMode.RECOVER.value:
        return ()
    return (Slot(assignment.agent_pod_uid, episode.metadata.namespace),)


def _assigned_in(episode: EpisodeView) -> Iterable[str]:
    return (episode.metadata.namespace,) if episode.status.pod_name is not None and not episode.is_finished else ()


def _task_of(episode: EpisodeView) -> Iterable[tuple[str, str]]:
    task = episode.spec.task_ref
    return ((episode.metadata.namespace, task.name),) if task is not None and not episode.is_finished else ()


class SandboxPoolMemory:
    """Claims of a SandboxPool's pods, and their consecutive failures.

    Attributes:
        template_hash: Current template hash of new pods.
        claims: Times of the last claims.
        misses: Times at which an attempt that could have claimed a pod found none.
        claimed: Total number of claims.
        failures: Number of consecutive pods that failed before they were ready.
        failed_at: When the last of these pods failed.
        changed_at: When the spec of a set's pool was last written.
    """

    def __init__(self) -> None:
        self.template_hash = ""
        self.claims: deque[datetime] = deque(maxlen=_CLAIMS)
        self.misses: deque[datetime] = deque(maxlen=_CLAIMS)
        self.claimed = 0
        self.failures = 0
        self.failed_at: datetime | None = None
        self.changed_at: datetime | None = None
        self._failed: deque[str] = deque(maxlen=_CLAIMS)

    def record_claim(self, at: datetime, counted: int) -> None:
        """Record a claim. ``counted`` is the number of claims in the pool's status."""
        self.claims.append(at)
        self.claimed = max(self.claimed, counted) + 1

    def record_failure(self, name: str, at: datetime) -> None:
        """Record the failure of this pod. Repeated calls for the same pod count once."""
        if name not in self._failed:
            self._failed.append(name)
            self.failures, self.failed_at = self.failures + 1, at

    def record(self, pods: Iterable[Pod], policy: Policy, now: datetime) -> None:
        """Record the failures of ``pods``. A pod that became ready after the last failure resets the count."""
        for pod in pods:
            if has_failed(pod, policy, now):
                self.record_failure(pod.metadata.name, now)
        ready = [each.last_transition_time for pod in pods if pod.ready and (each := pod.condition("Ready"))]
        if self.failed_at is not None and any(since is not None and since > self.failed_at for since in ready):
            self.failures, self.failed_at = 0, None


class Memory:
    """State by the UID of Episodes, EpisodeSets and SandboxPools that is not in the API server.

    All of it may be lost, because a new leader observes it again. Records are removed with their object.

    Attributes:
        blocked: When a pod of a deleted Episode with the same name first blocked the creation of a pod.
        absent: Names of an Episode's pods, or of a set's list of tasks, for which the API server answered 404.
        refused: Why the API server refused a set's last child. Empty if the last child was created.
        last_pods: The last state of a deleted pod whose termination message was not read by a decision yet.
        disrupted: The last attempt whose pod was observed to be disrupted.
        made: The attempt and the UID of the last pod that this leader created.
        drivers: The attempt whose external driver has its Secret.
        sandbox_pools: Claims and failures of a SandboxPool's pods.
        failed_write_at: Monotonic time of the last failed write of an Episode's status. The write may have taken effect
            and may appear in the cache later.
    """

    def __init__(self) -> None:
        self.blocked: dict[str, datetime] = {}
        self.absent: dict[str, frozenset[str]] = {}
        self.refused: dict[str, str] = {}
        self.last_pods: dict[str, Pod] = {}
        self.disrupted: dict[str, int] = {}
        self.made: dict[str, tuple[int, str]] = {}
        self.drivers: dict[str, int] = {}
        self._sidecars: dict[str, tuple[int, SidecarView]] = {}
        self.sandbox_pools: defaultdict[str, SandboxPoolMemory] = defaultdict(SandboxPoolMemory)
        self.failed_write_at = float("-inf")
        self._written: set[str] = set()
        self._failures: dict[str, tuple[int, CreateFailure]] = {}
        self._creating: defaultdict[str, dict[int, datetime]] = defaultdict(dict)

    def has_written(self, uid: str) -> bool:
        """True if this leader has created the Episode or written its status, so that writes of others are refused."""
        return uid in self._written

    def record_written(self, episode: EpisodeView) -> None:
        """Record that this leader has created the Episode or written its status.

        A resourceVersion that is not a number is ignored: it cannot be compared, so the cache may return to an older
        version.
        """
        if episode.metadata.resource_version.isdecimal():
            self._written.add(episode.metadata.uid)

    def failure(self, uid: str, attempt: int) -> CreateFailure | None:
        """Return why the pod of this attempt could not be created, or None if its creation has not failed."""
        number, failure = self._failures.get(uid, (0, None))
        return failure if number == attempt else None

    def record_failure(self, uid: str, attempt: int, failure: CreateFailure) -> None:
        """Record a failed creation of the attempt's pod."""
        before = self.failure(uid, attempt)
        self._failures[uid] = (attempt, failure if before is None else before.followed_by(failure))

    def sidecar(self, uid: str, attempt: int) -> SidecarView:
        """Return the answers of this attempt's sidecar."""
        number, view = self._sidecars.get(uid, (0, SidecarView()))
        return view if number == attempt else SidecarView()

    def record_sidecar(self, uid: str, attempt: int, view: SidecarView) -> None:
        """Record the answers of this attempt's sidecar."""
        self._sidecars[uid] = (attempt, view)

    def record_created(self, uid: str, attempt: int, pod: Pod) -> None:
        """Record that this pod was created for the attempt."""
        self.made[uid] = (attempt, pod.metadata.uid)
        self._forget_failures(uid)

    def _forget_failures(self, uid: str) -> None:
        for records in (self._failures, self.blocked, self.absent):
            records.pop(uid, None)

    def record_absent(self, uid: str, name: str) -> None:
        """Record that the API server answered 404 for this name."""
        self.absent[uid] = self.absent.get(uid, frozenset()) | {name}

    def creating(self, uid: str, now: datetime) -> frozenset[int]:
        """Return the indexes of a set's children whose creation was not answered."""
        known = self._creating.get(uid, {})
        for index in [index for index, since in known.items() if now - since > _UNANSWERED_CREATE]:
            del known[index]
        return frozenset(known)

    def record_creating(self, uid: str, index: int, now: datetime) -> None:
        """Record that the creation of the child was not answered."""
        self._creating[uid][index] = now

    def record_observed(self, uid: str, index: int) -> None:
        """Record that the child was observed."""
        if uid in self._creating:
            self._creating[uid].pop(index, None)

    def forget(self, uid: str) -> None:
        """Remove all records of an object that is gone."""
        self._forget_failures(uid)
        self._written.discard(uid)
        for records in (
            self.refused,
            self.last_pods,
            self.disrupted,
            self._sidecars,
            self.made,
            self.drivers,
            self._creating,
            self.sandbox_pools,
        ):
            records.pop(uid, None)
