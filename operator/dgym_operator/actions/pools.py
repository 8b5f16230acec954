"""Applies the plans for SandboxPools: creates and deletes their idle pods, and writes their status."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dgym.kube import PODS, SANDBOX_POOLS, AlreadyExists
from dgym.logs import fields
from dgym_operator.actions.pods import Gone, PodMaker
from dgym_operator.actions.reader import Unmet
from dgym_operator.actions.writes import Writes
from dgym_operator.cache import Cache
from dgym_operator.controllers import Action, CreatePooledPod, DeletePod, PatchPoolStatus, Plan
from dgym_operator.objects import Pod, SandboxPoolView

_log = logging.getLogger(__name__)
_SUFFIX_BYTES = 4
_LONGEST_PREFIX = 50


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PoolExecutor:
    """Writes SandboxPools and their pods."""

    cache: Cache
    writes: Writes
    pods: PodMaker
    random_bytes: Callable[[int], bytes]

    async def hash_of(self, pool: SandboxPoolView) -> tuple[str, str]:
        """The template hash of the pool's pods, or why there can be none."""
        try:
            return await self.pods.hash_of(pool), ""
        except Unmet as unmet:
            return "", unmet.message

    async def apply(self, pool: SandboxPoolView, plan: Plan) -> float | None:
        """Apply the plan; returns the seconds after which to requeue.

        Raises:
            ApiError: An action failed; the actions behind it were not applied.
            NotLeading: Likewise, since this replica does not lead any more.
        """
        for action in plan.actions:
            await self._act(pool, action)
        return plan.requeue_after

    async def _act(self, pool: SandboxPoolView, action: Action) -> None:
        match action:
            case PatchPoolStatus():
                await self.writes.replace_status(
                    SANDBOX_POOLS, self.cache.sandbox_pools, pool, action.status, decode=SandboxPoolView
                )
            case DeletePod():
                key = (pool.metadata.namespace, action.name)
                await self.writes.delete(PODS, self.cache.pods, key, action.uid, decode=Pod)
            case CreatePooledPod():
                await self._create(pool)
            case _:
                raise TypeError(f"not an action on a SandboxPool: {action!r}")

    async def _create(self, pool: SandboxPoolView) -> None:
        metadata = pool.metadata
        name = f"{metadata.name[:_LONGEST_PREFIX].rstrip('-.')}-{self.random_bytes(_SUFFIX_BYTES).hex()}"
        about = fields(namespace=metadata.namespace, sandboxpool=metadata.name, pod=name)
        try:
            pod = await self.pods.create_pooled(pool, name)
        except (AlreadyExists, Gone):
            return  # The next decision, a moment later, takes another name.
        except Unmet as unmet:
            self.cache.memory.pools[metadata.uid].record_failure(name, self.cache.clock.now())
            self.cache.memory.refused[metadata.uid] = unmet.message
            _log.warning("a pod of a pool could not be created: %s", unmet, extra=about)
            return
        self.cache.memory.refused.pop(metadata.uid, None)
        self.cache.pods.assume(pod)
        _log.info("created a pod of a pool", extra=about)
