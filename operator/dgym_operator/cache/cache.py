"""The watched objects in stores, indexed for the look-ups of decisions, and the inputs of decisions made of them.

Objects are narrow structs: ten thousand episodes with their pods take some tens of megabytes. The answer to every write
is put into its store at once, so that no decision is made without the writes before it.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from dgym.kube import (
    Change,
    Clock,
    Store,
)
from dgym.wire.assignments import AssignmentMode
from dgym_operator.cache.agents import Agents
from dgym_operator.cache.memory import Memory
from dgym_operator.controllers import (
    EpisodeInput,
    EpisodeSetInput,
    FrozenTasks,
    Policy,
    SandboxPoolInput,
    TaskState,
    attempt_of,
    current_attempt,
    is_outdated,
)
from dgym_operator.controllers.episodeset import Children, child_index, decode_tasks, tasks_name
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
from dgym_operator.pooled import pool_identity
from dgym_operator.proof import proof_is_valid

_SET = "EpisodeSet"
_EPISODE = "Episode"
_POOL = "SandboxPool"


class Cache:
    """Stores of watched objects, and indexes over them."""

    def __init__(self, clock: Clock, agents: Agents, policy: Policy) -> None:
        self.clock = clock
        self.agents = agents
        self.policy = policy
        self.memory = Memory()
        self.key = b""
        """The cluster's key, once this replica leads."""
        self.key_id = ""
        """Its name."""
        self.episodes: Store[EpisodeView] = Store(clock)
        self.sets: Store[EpisodeSetView] = Store(clock)
        self.sandbox_pools: Store[SandboxPoolView] = Store(clock)
        self.tasks: Store[TaskView] = Store(clock)
        self.pods: Store[Pod] = Store(clock)
        self.agent_pods: Store[Pod] = Store(clock)
        self.config_maps: Store[ConfigMapView] = Store(clock)
        self.network_policies: Store[NetworkPolicyView] = Store(clock)
        self.quotas: Store[QuotaView] = Store(clock)
        self.episodes_by_uid = self.episodes.index(lambda episode: (episode.metadata.uid,))
        self.episodes_by_namespace = self.episodes.index(lambda episode: (episode.metadata.namespace,))
        self.episodes_by_agent = self.episodes.index(_agent_of)
        self.episodes_by_slot = self.episodes.index(_slot_of)
        self.assigned_by_namespace = self.episodes.index(_assigned_in)
        self.episodes_by_task = self.episodes.index(_task_of)
        self.pods_by_owner = self.pods.index(_owner_of)
        self.pods_by_namespace = self.pods.index(lambda pod: (pod.metadata.namespace,))
        self.active_pods = self.pods.index(lambda pod: () if pod.is_over else (pod.metadata.namespace,))
        self.quotas_by_namespace = self.quotas.index(lambda quota: (quota.metadata.namespace,))
        self.idle_pods = self.pods.index(_idle_as)
        self.pools_by_namespace = self.sandbox_pools.index(lambda each: (each.metadata.namespace,))
        self.pools_by_owner = self.sandbox_pools.index(_owner_of)
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
        """The Episode of that UID."""
        return next(iter(self.episodes_by_uid[uid]), None)

    def set_of(self, episode: EpisodeView) -> EpisodeSetView | None:
        """The set that controls the Episode."""
        owner = episode.metadata.controller
        if owner is None or owner.kind != _SET:
            return None
        found = self.sets.get((episode.metadata.namespace, owner.name))
        return found if found is not None and found.metadata.uid == owner.uid else None

    @property
    def namespaces(self) -> set[str]:
        """Those that hold an Episode, an EpisodeSet or a SandboxPool."""
        indexes = (self.episodes_by_namespace, self.sets_by_namespace, self.pools_by_namespace)
        return {str(namespace) for index in indexes for namespace in index.values()}

    def episode_input(self, episode: EpisodeView, *, may_create: bool) -> EpisodeInput:
        """The input of a decision about the Episode."""
        uid = episode.metadata.uid
        pods, unusable = self._sorted_pods(uid)
        return EpisodeInput(
            episode=episode,
            pods=pods,
            unusable_pods=unusable,
            task=self.task_state(episode),
            may_create=may_create,
            agent=self.agents.view(episode),
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
        """Whether nothing is left to do about the Episode, until it or its pods change."""
        if not episode.is_finished or episode.spec.ttl_seconds_after_finished is not None:
            return False
        if is_outdated(episode.status.observed_generation, episode.metadata.generation):
            return False
        pods, unusable = self._sorted_pods(episode.metadata.uid)
        return all(pod.metadata.deletion_timestamp is not None for pod in (*pods, *unusable))

    def set_input(self, episode_set: EpisodeSetView) -> EpisodeSetInput:
        """The input of a decision about the EpisodeSet."""
        uid, namespace = episode_set.metadata.uid, episode_set.metadata.namespace
        lists = (self._frozen_tasks(found) for found in self.config_maps_by_owner[uid])
        frozen = next((tasks for tasks in lists if tasks is not None), None)
        pool = next(iter(self.pools_by_owner[uid]), None)
        return EpisodeSetInput(
            episode_set=episode_set,
            frozen=frozen,
            list_absent=tasks_name(episode_set) in self.memory.absent.get(uid, ()),
            tasks=self.tasks_by_namespace[namespace] if frozen is None else (),
            children=self.children_of(episode_set),
            refused=self.memory.refused.get(uid, ""),
            creating=self.memory.creating(uid, self.clock.now()),
            pool=pool,
            pool_changed_at=self.memory.pools[pool.metadata.uid].changed_at if pool is not None else None,
            policy=self.policy,
        )

    def pool_input(self, pool: SandboxPoolView, template_hash: str, refused: str) -> SandboxPoolInput:
        """The input of a decision about the SandboxPool; the failures of its pods are recorded."""
        uid, now = pool.metadata.uid, self.clock.now()
        owned, known = self.pods_by_owner[uid], self.memory.pools[uid]
        pods = tuple(pod for pod in owned if self.is_of_pool(pod))
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

    def is_of_pool(self, pod: Pod) -> bool:
        """Whether the operator has made the pod for a pool, with the template hash of its annotation."""
        metadata = pod.metadata
        owner, made_as = metadata.controller, metadata.annotations.template_hash
        if owner is None or owner.kind != _POOL or not self.key:
            return False
        identity = pool_identity(metadata.namespace, metadata.name, made_as)
        proof = metadata.annotations.proof
        return proof_is_valid(self.key, proof, namespace=metadata.namespace, episode_uid=identity, attempt=0)

    def children_of(self, episode_set: EpisodeSetView) -> Children:
        """The children of the set, kept from the first call on."""
        uid = episode_set.metadata.uid
        found = self._children.get(uid)
        if found is None:
            found = self._children[uid] = Children(self.children[uid])
        return found

    def _update_children(self, change: Change[EpisodeView]) -> None:
        before, after = (_set_uid(view) if view is not None else "" for view in (change.old, change.new))
        if before != after and before in self._children:
            self._children[before].remove(change.key)
        if change.new is not None and after in self._children:
            self._children[after].put(change.new)

    def _drop_children(self, change: Change[EpisodeSetView]) -> None:
        uid = change.old.metadata.uid if change.old is not None else ""
        if change.new is None or change.new.metadata.uid != uid:
            self._children.pop(uid, None)

    def _frozen_tasks(self, found: ConfigMapView) -> FrozenTasks | None:
        """The list of tasks in the ConfigMap, which may have a megabyte; decoded once."""
        uid = found.metadata.uid
        if uid not in self._frozen:
            self._frozen[uid] = decode_tasks(found.data)
        return self._frozen[uid]

    def _drop_frozen(self, change: Change[ConfigMapView]) -> None:
        if change.old is not None:
            self._frozen.pop(change.old.metadata.uid, None)

    def task_state(self, episode: EpisodeView) -> TaskState:
        """The state of the Episode's task."""
        spec = episode.spec
        if spec.task is not None:
            return TaskState(state="inline", entrypoint_timeout_seconds=spec.task.entrypoint_timeout_seconds)
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        if found is None:
            return TaskState(state="missing")
        seconds = found.spec.entrypoint_timeout_seconds
        return TaskState(state="found", uid=found.metadata.uid, entrypoint_timeout_seconds=seconds)

    def image_of(self, episode: EpisodeView) -> str:
        """The image of the Episode's task; empty: the default one, or there is no task."""
        spec = episode.spec
        if spec.task is not None:
            return spec.task.image or ""
        found = self.tasks.get((episode.metadata.namespace, spec.task_ref.name)) if spec.task_ref is not None else None
        return (found.spec.image if found is not None else None) or ""

    def pods_of(self, uid: str) -> tuple[Pod, ...]:
        """The Episode's pods that exist and that the operator has made."""
        return tuple(pod for pod in self.pods_by_owner[uid] if self.owns(pod))

    def owns(self, pod: Pod) -> bool:
        """Whether the operator has made the pod for the Episode that its owner reference names.

        Tenants can set a pod's labels and owner references. The evidence is the reference in the Episode's status,
        which is written for proven pods only, or else the proof. A proof is a copy, and no evidence, on a pod other
        than the one that this leader has made for the attempt.
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
            return True  # Another replica than the leader decides nothing.
        metadata = pod.metadata
        return proof_is_valid(
            self.key,
            metadata.annotations.proof,
            namespace=metadata.namespace,
            episode_uid=uid,
            attempt=attempt_of(pod),
        )

    def _sorted_pods(self, uid: str) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
        """The Episode's pods, the last one that was deleted included; and its unusable ones.

        Unusable are pods that name a key without its proof, those of a former key or of a version without proofs, and
        pods with the proof of another pod. Nothing else is believed of them: they are deleted.
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
        """Whether the pod is of the current attempt, or else of the next one, of an unfinished Episode."""
        return not episode.is_finished and attempt_of(pod) == current_attempt(episode.status)

    def _is_counted(self, episode: EpisodeView) -> bool:
        if episode.spec.ttl_seconds_after_finished is None or not episode.is_finished:
            return False
        episode_set, index = self.set_of(episode), child_index(episode)
        if episode_set is None or index is None:
            return False
        return index in self.children_of(episode_set).completed(episode_set.status.completed_indexes)


def _set_uid(episode: EpisodeView) -> str:
    """UID of the set that controls the Episode; empty: none does."""
    owner = episode.metadata.controller
    return owner.uid if owner is not None and owner.kind == _SET else ""


def _owner_of(item: WatchedObject) -> Iterable[Hashable]:
    owner = item.metadata.controller
    return (owner.uid,) if owner is not None else ()


def _idle_as(pod: Pod) -> Iterable[tuple[str, str]]:
    """Namespace and template hash of an idle pod."""
    metadata = pod.metadata
    owner, made_as = metadata.controller, metadata.annotations.template_hash
    waits = owner is not None and owner.kind == _POOL and made_as and metadata.deletion_timestamp is None
    return ((metadata.namespace, made_as),) if waits and pod.ready and not pod.is_over else ()


def _agent_of(episode: EpisodeView) -> Iterable[Hashable]:
    assignment = episode.status.assignment
    return (assignment.agent_pod_uid,) if assignment is not None and not episode.is_finished else ()


class Slot(NamedTuple):
    """The slots of an agent that episodes of a namespace use."""

    agent_uid: str
    namespace: str


def _slot_of(episode: EpisodeView) -> Iterable[Slot]:
    assignment = episode.status.assignment
    if assignment is None or episode.is_finished or episode.spec.agent is None:
        return ()
    # An agent has released the slot of an episode whose model failed, and takes none to look for a stored verdict.
    if assignment.failed_time is not None or assignment.mode == AssignmentMode.RECOVER.value:
        return ()
    return (Slot(assignment.agent_pod_uid, episode.metadata.namespace),)


def _assigned_in(episode: EpisodeView) -> Iterable[str]:
    return (episode.metadata.namespace,) if episode.status.pod_name is not None and not episode.is_finished else ()


def _task_of(episode: EpisodeView) -> Iterable[tuple[str, str]]:
    task = episode.spec.task_ref
    return ((episode.metadata.namespace, task.name),) if task is not None and not episode.is_finished else ()
