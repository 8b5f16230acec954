"""Creates, changes and deletes the SandboxPools of sets."""

from dataclasses import dataclass

import msgspec

from dgym.kube import EPISODE_SETS, SANDBOX_POOLS, BadRequest, EventRecorder, Forbidden, Invalid, NotFound
from dgym_operator.actions.writes import Writes, set_metadata
from dgym_operator.cache import Cache
from dgym_operator.controllers import CreatePool, DeletePool, PatchPool
from dgym_operator.objects import EpisodeSetView, SandboxPoolView


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SetPools:
    """Writes the SandboxPools of sets."""

    cache: Cache
    writes: Writes
    events: EventRecorder

    async def apply(self, episode_set: EpisodeSetView, action: CreatePool | PatchPool | DeletePool) -> None:
        """Apply the action.

        Raises:
            ApiError: It failed.
            NotLeading: This replica does not lead any more.
        """
        match action:
            case CreatePool():
                await self._create(episode_set, action)
            case PatchPool():
                await self._patch(episode_set, action)
            case DeletePool():
                key = (episode_set.metadata.namespace, action.name)
                await self.writes.delete(
                    SANDBOX_POOLS, self.cache.sandbox_pools, key, action.uid, decode=SandboxPoolView
                )

    async def _create(self, episode_set: EpisodeSetView, action: CreatePool) -> None:
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

    async def _patch(self, episode_set: EpisodeSetView, action: PatchPool) -> None:
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
