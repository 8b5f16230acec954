"""Applies the plans for EpisodeSets. The status is written first, because the creation of children depends on it."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dgym.kube import (
    CONFIG_MAPS,
    EPISODE_SETS,
    EPISODES,
    SANDBOX_POOLS,
    AlreadyExists,
    BadRequest,
    Client,
    ConnectionLost,
    EventRecorder,
    Forbidden,
    Invalid,
    NotFound,
    ServerUnavailable,
)
from dgym.logs import fields
from dgym_operator.actions._refusals import inherited
from dgym_operator.actions._writes import Writes, set_metadata
from dgym_operator.cache import Cache
from dgym_operator.controllers import (
    CreateEpisode,
    CreatePool,
    DeleteEpisode,
    DeletePool,
    DeleteSet,
    Emit,
    FreezeTasks,
    LookUpTasks,
    PatchChild,
    PatchPool,
    PatchSetStatus,
    Plan,
    set_with_readiness,
)
from dgym_operator.controllers.episodeset import child_manifest, decode_tasks, encode_tasks
from dgym_operator.objects import ConfigMapView, EpisodeSetView, EpisodeView, SandboxPoolView

_log = logging.getLogger(__name__)
_LARGEST_BATCH = 32


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
        """Apply the plan.

        Returns:
            Seconds after which to requeue. None: on the next change.

        Raises:
            ApiError: An action failed. Later actions were not applied.
            NotLeading: This replica is no longer the leader. Later actions were not applied.
        """
        creations: list[CreateEpisode] = []
        pools: list[CreatePool | PatchPool | DeletePool] = []
        for action in plan.actions:
            match action:
                case PatchSetStatus():
                    status = set_with_readiness(action.status, self.cache.clock.now())
                    episode_set = await self.writes.replace_status(
                        EPISODE_SETS, self.cache.sets, episode_set, status, decode=EpisodeSetView
                    )
                case FreezeTasks():
                    await self._freeze(episode_set, action)
                case LookUpTasks():
                    await self._look_up(episode_set, action)
                    return 0.0
                case CreateEpisode():
                    creations.append(action)
                case CreatePool() | PatchPool() | DeletePool():
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
            await self._apply_to_pool(episode_set, change)
        return plan.requeue_after

    async def _create_all(self, episode_set: EpisodeSetView, creations: Sequence[CreateEpisode]) -> None:
        """Create the children in batches. The first batch has one child, and each further one twice as many.

        Raises:
            ApiError: A child was not created. Later batches were not tried.
            NotLeading: This replica is no longer the leader. Later batches were not tried.
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

    async def _apply_to_pool(self, episode_set: EpisodeSetView, action: CreatePool | PatchPool | DeletePool) -> None:
        match action:
            case CreatePool():
                await self._create_pool(episode_set, action)
            case PatchPool():
                await self._patch_pool(episode_set, action)
            case DeletePool():
                key = (episode_set.metadata.namespace, action.name)
                await self.writes.delete(
                    SANDBOX_POOLS, self.cache.sandbox_pools, key, action.uid, decode=SandboxPoolView
                )

    async def _create_pool(self, episode_set: EpisodeSetView, action: CreatePool) -> None:
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
                f"the API server refuses the set's SandboxPool, so that episodes start without one: {error.message}"
            )
            self.events.record(EPISODE_SETS, episode_set, type="Warning", reason="PoolRefused", message=message)
            raise
        self.cache.sandbox_pools.assume(made)

    async def _patch_pool(self, episode_set: EpisodeSetView, action: PatchPool) -> None:
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
        self.cache.memory.pools[written.metadata.uid].changed_at = self.cache.clock.now()
        self.cache.sandbox_pools.assume(written)


def _batches(creations: Sequence[CreateEpisode]) -> Iterator[Sequence[CreateEpisode]]:
    """Yield batches of 1, 2, 4 and so on, up to 32 children, so that a refusal does not repeat for a whole batch."""
    begin, size = 0, 1
    while begin < len(creations):
        yield creations[begin : begin + size]
        begin, size = begin + size, min(2 * size, _LARGEST_BATCH)
