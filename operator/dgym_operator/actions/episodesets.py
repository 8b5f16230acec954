"""Carries out what was decided about an EpisodeSet: its status first, then its children, which rest on it."""

import logging

import msgspec

from dgym.api import API_VERSION
from dgym.api.labels import SET
from dgym.kube import (
    CONFIG_MAPS,
    EPISODE_SETS,
    EPISODES,
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
from dgym_operator.actions.writes import Writes, status_patch
from dgym_operator.cache import World
from dgym_operator.controllers import (
    CreateEpisode,
    DeleteEpisode,
    DeleteSet,
    Emit,
    FreezeTasks,
    LookUpTasks,
    PatchChild,
    PatchSetStatus,
    Plan,
    child_manifest,
    decode_tasks,
    encode_tasks,
)
from dgym_operator.logs import fields
from dgym_operator.objects import MANAGED_BY, ConfigMapView, EpisodeSetView, EpisodeView
from dgym_operator.render import label_value

_log = logging.getLogger(__name__)


class SetExecutor:
    """Writes EpisodeSets, their lists of tasks and their children."""

    def __init__(self, world: World, *, client: Client, writes: Writes, events: EventRecorder) -> None:
        self._world = world
        self._client = client
        self._writes = writes
        self._events = events

    async def carry_out(self, episode_set: EpisodeSetView, plan: Plan) -> float | None:
        """Do it; when to look again at the latest, in seconds.

        Raises:
            ApiError: An action failed; those behind it were not carried out.
            NotLeading: As above, since another leads.
        """
        for action in plan.actions:
            match action:
                case PatchSetStatus():
                    episode_set = await self._patch(episode_set, action)
                case FreezeTasks():
                    await self._freeze(episode_set, action)
                case LookUpTasks():
                    await self._look_up(episode_set, action)
                    return 0.0
                case CreateEpisode():
                    await self._create(episode_set, action)
                case PatchChild():
                    await self._tell(episode_set, action)
                case DeleteEpisode():
                    key = (episode_set.metadata.namespace, action.name)
                    await self._writes.delete(EPISODES, self._world.episodes, key, action.uid, decode=EpisodeView)
                case DeleteSet():
                    await self._writes.delete(
                        EPISODE_SETS, self._world.sets, episode_set.key, action.uid, decode=EpisodeSetView
                    )
                case Emit():
                    self._events.record(
                        EPISODE_SETS, episode_set, type=action.type, reason=action.reason, message=action.message
                    )
                case _:
                    raise TypeError(f"not an action on an EpisodeSet: {action!r}")
        return plan.requeue_after

    async def _patch(self, episode_set: EpisodeSetView, action: PatchSetStatus) -> EpisodeSetView:
        metadata = episode_set.metadata
        patch = status_patch(episode_set.status, action.status, metadata.resource_version)
        if patch is None:
            return episode_set
        written = await self._writes.patch_status(
            EPISODE_SETS, metadata.name, patch, decode=EpisodeSetView, namespace=metadata.namespace
        )
        self._world.sets.assume(written)
        return written

    async def _freeze(self, episode_set: EpisodeSetView, action: FreezeTasks) -> None:
        metadata = episode_set.metadata
        owner = {"apiVersion": API_VERSION, "kind": "EpisodeSet", "name": metadata.name, "uid": metadata.uid}
        manifest = CONFIG_MAPS.manifest(
            metadata={
                "name": action.name,
                "labels": {**MANAGED_BY, SET: label_value(metadata.name)},
                "ownerReferences": [{**owner, "controller": True}],
            },
            immutable=True,
            data=encode_tasks(action.tasks),
        )
        try:
            made = await self._writes.create(CONFIG_MAPS, manifest, decode=ConfigMapView, namespace=metadata.namespace)
        except AlreadyExists:
            made = await self._client.get(CONFIG_MAPS, action.name, decode=ConfigMapView, namespace=metadata.namespace)
            if _owner(made) != metadata.uid:
                raise
        self._world.config_maps.assume(made)
        _log.info("froze the tasks", extra=self._about(episode_set, tasks=len(action.tasks)))

    async def _look_up(self, episode_set: EpisodeSetView, action: LookUpTasks) -> None:
        metadata = episode_set.metadata
        try:
            found = await self._client.get(CONFIG_MAPS, action.name, decode=ConfigMapView, namespace=metadata.namespace)
        except NotFound:
            self._world.memory.is_absent(metadata.uid, action.name)
            return
        if _owner(found) == metadata.uid and decode_tasks(found.data) is not None:
            self._world.config_maps.assume(found)
        else:
            self._world.memory.is_absent(metadata.uid, action.name)

    async def _create(self, episode_set: EpisodeSetView, action: CreateEpisode) -> None:
        metadata = episode_set.metadata
        child = msgspec.to_builtins(child_manifest(episode_set, action))
        child.pop("status", None)
        try:
            made = await self._writes.create(EPISODES, child, decode=EpisodeView, namespace=metadata.namespace)
        except AlreadyExists:
            made = await self._client.get(EPISODES, action.name, decode=EpisodeView, namespace=metadata.namespace)
            if _owner(made) != metadata.uid:
                message = f"an Episode {action.name} is there already and is not of this set; delete or rename it"
                self._world.memory.refused(metadata.uid, message)
                raise
        except (ConnectionLost, ServerUnavailable):
            self._world.memory.may_have_created(metadata.uid, action.index, self._world.clock.now())
            raise
        except (Forbidden, Invalid, BadRequest) as error:
            self._world.memory.refused(metadata.uid, error.message)
            raise
        self._world.memory.refused(metadata.uid, "")
        self._world.episodes.assume(made)

    async def _tell(self, episode_set: EpisodeSetView, action: PatchChild) -> None:
        given = {"suspend": action.suspend, "cancel": action.cancel}
        spec = {name: value for name, value in given.items() if value is not None}
        try:
            written = await self._writes.patch(
                EPISODES, action.name, {"spec": spec}, decode=EpisodeView, namespace=episode_set.metadata.namespace
            )
        except NotFound:
            return
        self._world.episodes.assume(written)

    def _about(self, episode_set: EpisodeSetView, **more: object) -> dict[str, object]:
        return fields(namespace=episode_set.metadata.namespace, episodeset=episode_set.metadata.name, **more)


def _owner(item: EpisodeView | ConfigMapView) -> str | None:
    owner = item.metadata.controller
    return owner.uid if owner is not None else None
