"""Applies the plans for Episodes and EpisodeSets. Only this module writes Episodes, their pods and their Secrets.

Actions are applied in order. The rest of the plan is not applied after an action that failed or was deferred. The
answer to every write is put into the cache, so that the next decision sees it. The status of an EpisodeSet is written
first, because the creation of children depends on it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from dgym.api import ConditionType
from dgym.kube import (
    CONFIG_MAPS,
    EPISODE_SETS,
    EPISODES,
    PODS,
    SANDBOX_POOLS,
    AlreadyExists,
    BadRequest,
    Client,
    ConnectionLost,
    EventRecorder,
    Forbidden,
    Invalid,
    NotFound,
    Priority,
    ServerUnavailable,
)
from dgym.logs import fields
from dgym.wire import EndReason, calls
from dgym.wire.http import BindRequest
from dgym_operator.actions._pods import Gone, PodMaker
from dgym_operator.actions._reader import ApiReader, Unmet
from dgym_operator.actions._refusals import inherited
from dgym_operator.actions._secrets import create_driver_secret
from dgym_operator.actions._writes import NotLeading, ProgressBudget, Writes, episode_patch, set_metadata
from dgym_operator.cache import Cache
from dgym_operator.calls import SidecarCall, SidecarCalls
from dgym_operator.controllers import (
    Action,
    BindSidecar,
    CallSidecar,
    CreateDriverSecret,
    CreateEpisode,
    CreateFailure,
    CreatePod,
    CreateSandboxPool,
    DeleteEpisode,
    DeletePod,
    DeleteSandboxPool,
    DeleteSet,
    Emit,
    FreezeTasks,
    LookUpPod,
    LookUpTasks,
    PatchChild,
    PatchSandboxPool,
    PatchSetStatus,
    PatchStatus,
    Plan,
    is_true,
    set_with_readiness,
)
from dgym_operator.controllers.episode import pod_deadline_seconds, still_requires_pod
from dgym_operator.controllers.episodeset import child_manifest, decode_tasks, encode_tasks
from dgym_operator.objects import ConfigMapView, EpisodeSetView, EpisodeView, Pod, SandboxPoolView
from dgym_operator.pod_identity import pool_identity
from dgym_operator.render import token_digests

_log = logging.getLogger(__name__)
DEFER_SECONDS = 2.0
_BLOCKED_SECONDS = 1.0
_LONGEST_BLOCKED = timedelta(seconds=120)
_LARGEST_BATCH = 32


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EpisodeExecutor:
    """Writes Episodes, their pods and Secrets."""

    cache: Cache
    client: Client
    writes: Writes
    reader: ApiReader
    pods: PodMaker
    sidecars: SidecarCalls
    events: EventRecorder
    progress: ProgressBudget
    quota_refused: Callable[[str, str], None]
    """Called with the namespace and the API server's message."""
    pod_created: Callable[[str], None]

    async def apply(self, episode: EpisodeView, plan: Plan) -> float | None:
        """Apply the plan.

        Returns:
            Seconds after which to requeue. None: on the next change.

        Raises:
            ApiError: An action failed. Later actions were not applied.
            NotLeading: This replica has lost its Lease. Later actions were not applied.
        """
        for action in plan.actions:
            wait, episode = await self._act(episode, action)
            if wait is not None:
                # The action was deferred or the view is old. Later actions may depend on it, so they are not applied.
                return wait if plan.requeue_after is None else min(plan.requeue_after, wait)
        return plan.requeue_after

    async def _act(self, episode: EpisodeView, action: Action) -> tuple[float | None, EpisodeView]:
        match action:
            case PatchStatus():
                return await self._patch(episode, action)
            case CreatePod():
                return await self._create_pod(episode, action), episode
            case DeletePod():
                key = (episode.metadata.namespace, action.name)
                last = self._as_deleted
                await self.writes.delete(PODS, self.cache.pods, key, action.uid, decode=Pod, last=last)
            case LookUpPod():
                return await self._look_up(episode, action), episode
            case DeleteEpisode():
                await self.writes.delete(EPISODES, self.cache.episodes, episode.key, action.uid, decode=EpisodeView)
            case CallSidecar():
                call = SidecarCall(action.call, action.url, episode.metadata.uid, action.attempt, action.body)
                self.sidecars.request(call)
            case BindSidecar():
                self._bind(episode, action)
            case CreateDriverSecret():
                await self._create_driver_secret(episode, action)
            case Emit():
                self.events.record(EPISODES, episode, type=action.type, reason=action.reason, message=action.message)
            case _:
                raise TypeError(f"not an action on an Episode: {action!r}")
        return None, episode

    def _as_deleted(self, pod: Pod) -> Pod:
        """Return the pod with a deletion timestamp. The watch delivers its end and its termination message later."""
        if pod.metadata.deletion_timestamp is not None:
            return pod
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=self.cache.clock.now())
        return msgspec.structs.replace(pod, metadata=metadata)

    async def _patch(self, episode: EpisodeView, action: PatchStatus) -> tuple[float | None, EpisodeView]:
        metadata = episode.metadata
        patch = episode_patch(episode, action.status, self.cache.clock.now())
        if patch is None:
            return None, episode
        if action.progress and not self.progress.allows():
            return DEFER_SECONDS + self.progress.until_turn(), episode
        try:
            written = await self.writes.patch_status(EPISODES, episode, patch, priority=_priority(action))
        except NotLeading:
            raise
        except BaseException:
            self.cache.memory.failed_write_at = self.cache.clock.monotonic()
            raise
        self.cache.memory.record_written(written)
        self.cache.episodes.assume(written)
        _log.info(
            "wrote the status",
            extra=fields(
                namespace=metadata.namespace,
                episode=metadata.name,
                attempt=written.status.attempt,
                reason=written.status.reason,
            ),
        )
        return None, written

    async def _create_pod(self, episode: EpisodeView, action: CreatePod) -> float | None:
        metadata, uid = episode.metadata, episode.metadata.uid
        about = {
            "namespace": metadata.namespace,
            "episode": metadata.name,
            "attempt": action.attempt,
            "pod": action.name,
        }
        if self._is_blocked(episode, action.name):
            return _BLOCKED_SECONDS
        try:
            read, full = await self.reader.episode(episode)
            if not still_requires_pod(read, uid, action.attempt):
                return DEFER_SECONDS  # The view is old. The watch will deliver the new Episode.
            seconds = pod_deadline_seconds(episode, self.cache.task_state(episode), self.cache.policy)
            pod = await self.pods.create(full, name=action.name, attempt=action.attempt, deadline_seconds=seconds)
        except (NotFound, Gone):
            _log.info("the Episode does not require the pod any more", extra=fields(**about))
            return None
        except Unmet as error:
            failure = CreateFailure(
                reason=error.reason.value,
                message=error.message,
                since=self.cache.clock.now(),
                is_temporary=error.is_temporary,
                retry_after=error.retry_after or 0.0,
                full=error.reason is EndReason.QUOTA_EXCEEDED,
            )
            self.cache.memory.record_failure(uid, action.attempt, failure)
            if failure.full:
                self.quota_refused(metadata.namespace, error.message)
            _log.info(
                "the pod could not be created: %s",
                error,
                extra=fields(**about, reason=error.reason.value),
            )
            return 0.0
        self.cache.memory.record_created(uid, action.attempt, pod)
        self.cache.pods.assume(pod)
        self.pod_created(metadata.namespace)
        _log.info("created the pod", extra=fields(**about))
        return None

    def _bind(self, episode: EpisodeView, action: BindSidecar) -> None:
        metadata = episode.metadata
        digests = token_digests(self.pods.key, episode_uid=metadata.uid, attempt=action.attempt)
        body = BindRequest(
            episode=f"{metadata.namespace}/{metadata.name}",
            episode_uid=metadata.uid,
            attempt=action.attempt,
            prepare_sha256=digests["prepare"],
            drive_sha256=digests["drive"],
            operate_sha256=digests["operate"],
        )
        identity = pool_identity(metadata.namespace, action.pod_name)
        call = SidecarCall(calls.BIND, action.url, metadata.uid, action.attempt, body, identity)
        self.sidecars.request(call)

    async def _create_driver_secret(self, episode: EpisodeView, action: CreateDriverSecret) -> None:
        uid = episode.metadata.uid
        if self.cache.memory.drivers.get(uid) == action.attempt:
            return
        name = await create_driver_secret(self.writes, self.pods.key, episode, action)
        self.cache.memory.drivers[uid] = action.attempt
        if name is not None:
            message = f"the episode can be driven: Secret {name} has the address and the token"
            self.events.record(EPISODES, episode, type="Normal", reason="DriverReady", message=message)

    def _is_blocked(self, episode: EpisodeView, name: str) -> bool:
        """True if a pod of a deleted Episode with the same name has this name, and will soon be garbage-collected.

        After two minutes it is treated as any other existing pod with this name.
        """
        metadata = episode.metadata
        pod = self.cache.pods.get((metadata.namespace, name))
        owner = pod.metadata.controller if pod is not None else None
        if owner is None or (owner.kind, owner.name) != ("Episode", metadata.name) or owner.uid == metadata.uid:
            return False
        now = self.cache.clock.now()
        return now - self.cache.memory.blocked.setdefault(metadata.uid, now) < _LONGEST_BLOCKED

    async def _look_up(self, episode: EpisodeView, action: LookUpPod) -> float | None:
        uid = episode.metadata.uid
        try:
            pod = await self.client.get(PODS, action.name, decode=Pod, namespace=episode.metadata.namespace)
        except NotFound:
            self.cache.memory.record_absent(uid, action.name)
            return 0.0
        if pod.is_controlled_by(uid) and action.uid in ("", pod.metadata.uid) and self.cache.owns(pod):
            self.cache.pods.assume(pod)
        else:
            self.cache.memory.record_absent(uid, action.name)
        return 0.0


def _priority(action: PatchStatus) -> Priority:
    """Return the priority of the write: the final status has the highest, progress the lowest."""
    if action.progress:
        return Priority.PROGRESS
    return Priority.OUTCOME if is_true(action.status.conditions, ConditionType.FINISHED) else Priority.UPDATE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SetExecutor:
    """Writes EpisodeSets, their lists of tasks, their children and their SandboxPools."""

    cache: Cache
    client: Client
    writes: Writes
    events: EventRecorder
    inherited_annotations: tuple[str, ...] = ()
    """Patterns of the set's annotations that are copied to its Episodes."""

    async def apply(self, episode_set: EpisodeSetView, plan: Plan) -> float | None:
        """Apply the plan, as ``EpisodeExecutor.apply`` does. The children are created last."""
        creations: list[CreateEpisode] = []
        pools: list[CreateSandboxPool | PatchSandboxPool | DeleteSandboxPool] = []
        for action in plan.actions:
            match action:
                case PatchSetStatus():
                    status = set_with_readiness(action.status, self.cache.clock.now())
                    episode_set = await self.writes.replace_status(EPISODE_SETS, self.cache.sets, episode_set, status)
                case FreezeTasks():
                    await self._freeze(episode_set, action)
                case LookUpTasks():
                    await self._look_up(episode_set, action)
                    return 0.0
                case CreateEpisode():
                    creations.append(action)
                case CreateSandboxPool() | PatchSandboxPool() | DeleteSandboxPool():
                    pools.append(action)
                case PatchChild():
                    await self._patch_child(episode_set, action)
                case DeleteEpisode():
                    key = (episode_set.metadata.namespace, action.name)
                    await self.writes.delete(EPISODES, self.cache.episodes, key, action.uid, decode=EpisodeView)
                case DeleteSet():
                    await self.writes.delete(
                        EPISODE_SETS, self.cache.sets, episode_set.key, action.uid, decode=EpisodeSetView
                    )
                case Emit():
                    self.events.record(
                        EPISODE_SETS, episode_set, type=action.type, reason=action.reason, message=action.message
                    )
                case _:
                    raise TypeError(f"not an action on an EpisodeSet: {action!r}")
        await self._create_all(episode_set, creations)
        for change in pools:
            await self._apply_to_sandbox_pool(episode_set, change)
        return plan.requeue_after

    async def _create_all(self, episode_set: EpisodeSetView, creations: Sequence[CreateEpisode]) -> None:
        """Create the children in batches. The first batch has one child, and each further batch twice as many.

        The first error is raised after its batch. Later batches are not tried.
        """
        for batch in _batches(creations):
            ends = await asyncio.gather(
                *(self._create(episode_set, action) for action in batch), return_exceptions=True
            )
            for end in ends:
                if end is not None:
                    raise end
            self.cache.memory.refused[episode_set.metadata.uid] = ""

    async def _freeze(self, episode_set: EpisodeSetView, action: FreezeTasks) -> None:
        metadata = episode_set.metadata
        manifest = CONFIG_MAPS.manifest(
            metadata=set_metadata(episode_set, action.name), immutable=True, data=encode_tasks(action.tasks)
        )
        made = await self.writes.create_controlled(
            CONFIG_MAPS, manifest, metadata.uid, decode=ConfigMapView, namespace=metadata.namespace
        )
        self.cache.config_maps.assume(made)
        about = fields(namespace=metadata.namespace, episodeset=metadata.name, tasks=len(action.tasks))
        _log.info("froze the tasks", extra=about)

    async def _look_up(self, episode_set: EpisodeSetView, action: LookUpTasks) -> None:
        metadata = episode_set.metadata
        try:
            found = await self.client.get(CONFIG_MAPS, action.name, decode=ConfigMapView, namespace=metadata.namespace)
        except NotFound:
            self.cache.memory.record_absent(metadata.uid, action.name)
            return
        if found.is_controlled_by(metadata.uid) and decode_tasks(found.data) is not None:
            self.cache.config_maps.assume(found)
        else:
            self.cache.memory.record_absent(metadata.uid, action.name)

    async def _create(self, episode_set: EpisodeSetView, action: CreateEpisode) -> None:
        metadata = episode_set.metadata
        child = msgspec.to_builtins(child_manifest(episode_set, action))
        child.pop("status", None)
        annotations = inherited(metadata.annotations, self.inherited_annotations)
        if annotations:
            child["metadata"]["annotations"] = annotations
        try:
            made = await self.writes.create(EPISODES, child, decode=EpisodeView, namespace=metadata.namespace)
            self.cache.memory.record_written(made)
        except AlreadyExists:
            made = await self.client.get(EPISODES, action.name, decode=EpisodeView, namespace=metadata.namespace)
            if not made.is_controlled_by(metadata.uid):
                message = (
                    f"an Episode {action.name} already exists and does not belong to this set; delete or rename it"
                )
                self.cache.memory.refused[metadata.uid] = message
                raise
        except (ConnectionLost, ServerUnavailable):
            self.cache.memory.record_creating(metadata.uid, action.index, self.cache.clock.now())
            raise
        except (Forbidden, Invalid, BadRequest) as error:
            self.cache.memory.refused[metadata.uid] = error.message
            raise
        self.cache.episodes.assume(made)

    async def _patch_child(self, episode_set: EpisodeSetView, action: PatchChild) -> None:
        given = {"suspend": action.suspend, "cancel": action.cancel}
        spec = {name: value for name, value in given.items() if value is not None}
        try:
            written = await self.writes.patch(
                EPISODES, action.name, {"spec": spec}, decode=EpisodeView, namespace=episode_set.metadata.namespace
            )
        except NotFound:
            return
        self.cache.episodes.assume(written)

    async def _apply_to_sandbox_pool(
        self, episode_set: EpisodeSetView, action: CreateSandboxPool | PatchSandboxPool | DeleteSandboxPool
    ) -> None:
        match action:
            case CreateSandboxPool():
                await self._create_sandbox_pool(episode_set, action)
            case PatchSandboxPool():
                await self._patch_sandbox_pool(episode_set, action)
            case DeleteSandboxPool():
                key = (episode_set.metadata.namespace, action.name)
                await self.writes.delete(
                    SANDBOX_POOLS, self.cache.sandbox_pools, key, action.uid, decode=SandboxPoolView
                )

    async def _create_sandbox_pool(self, episode_set: EpisodeSetView, action: CreateSandboxPool) -> None:
        metadata = episode_set.metadata
        manifest = SANDBOX_POOLS.manifest(
            metadata=set_metadata(episode_set, action.name), spec=msgspec.to_builtins(action.spec)
        )
        try:
            made = await self.writes.create_controlled(
                SANDBOX_POOLS, manifest, metadata.uid, decode=SandboxPoolView, namespace=metadata.namespace
            )
        except (Forbidden, Invalid, BadRequest) as error:
            message = (
                "the API server refuses the set's SandboxPool, so that episodes start without a sandbox pool: "
                f"{error.message}"
            )
            self.events.record(EPISODE_SETS, episode_set, type="Warning", reason="PoolRefused", message=message)
            raise
        self.cache.sandbox_pools.assume(made)

    async def _patch_sandbox_pool(self, episode_set: EpisodeSetView, action: PatchSandboxPool) -> None:
        wanted = msgspec.to_builtins(action.spec)
        spec = {name: wanted[name] for name in ("taskRef", "minIdle", "maxIdle")}
        try:
            written = await self.writes.patch(
                SANDBOX_POOLS,
                action.name,
                {"spec": spec},
                decode=SandboxPoolView,
                namespace=episode_set.metadata.namespace,
            )
        except NotFound:
            return
        self.cache.memory.sandbox_pools[written.metadata.uid].changed_at = self.cache.clock.now()
        self.cache.sandbox_pools.assume(written)


def _batches(creations: Sequence[CreateEpisode]) -> Iterator[Sequence[CreateEpisode]]:
    """Yield batches of 1, 2, 4 and so on, up to 32 children, so that a refusal does not repeat for a whole batch."""
    begin, size = 0, 1
    while begin < len(creations):
        yield creations[begin : begin + size]
        begin, size = begin + size, min(2 * size, _LARGEST_BATCH)
