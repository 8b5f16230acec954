"""A leader without the cluster's key makes no pods, and writes the cause into the episodes that wait for one."""

from collections.abc import Callable

import msgspec

from dgym.kube import EPISODES, ApiError
from dgym_operator.execute_patches import episode_patch
from dgym_operator.execute_world import World
from dgym_operator.execute_writes import NotLeading, Writes
from dgym_operator.reconcile.episode import decide
from dgym_operator.reconcile.plan import PatchStatus
from dgym_operator.reconcile.views import EpisodeView

_AT_A_TIME = 1000
"""Episodes for each try to get the key; the others are written with the next try."""


async def show_waiting(world: World, writes: Writes, serves: Callable[[str], bool], held_by: str) -> None:
    """Write ``held_by`` into the status of the episodes that wait for a sandbox."""
    written = 0
    for episode in world.episodes:
        if episode.status.pod_name is None and serves(episode.metadata.namespace) and written < _AT_A_TIME:
            written += await _show(world, writes, episode, held_by)


async def _show(world: World, writes: Writes, episode: EpisodeView, held_by: str) -> bool:
    view = world.episode_input(episode, may_create=False)
    plan = decide(msgspec.structs.replace(view, held_by=held_by), world.clock.now())
    metadata = episode.metadata
    for action in plan.actions:
        if not isinstance(action, PatchStatus) or not action.progress:
            continue
        patch = episode_patch(episode, action.status)
        if patch is None:
            continue
        try:
            written = await writes.patch_status(
                EPISODES, metadata.name, patch, decode=EpisodeView, namespace=metadata.namespace
            )
        except (ApiError, NotLeading):
            return False
        world.episodes.assume(written)
        return True
    return False
