"""The claim of a pooled pod for an attempt: one patch that is conditional on the pod's resourceVersion.

Of two Episodes, or two leaders, that claim the same pod the second one meets a conflict. An attempt that a former
leader has claimed a pod for may get a second pod from its successor. Decisions read only the pod that this leader has
made or claimed, or that the Episode's status names, and delete the other one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dgym.api import CLAIMED_ANNOTATION, PROOF_ANNOTATION
from dgym.kube import PODS, Conflict, Key, NotFound
from dgym_operator.actions.writes import Writes
from dgym_operator.cache import Cache
from dgym_operator.controllers import sidecar_url
from dgym_operator.objects import Pod
from dgym_operator.pooled import template_hash

POOLED_SECONDS = 7 * 86_400
"""The deadline of a pooled pod beyond its ``ttlSeconds``: a claim may lower the deadline, and may not raise it."""
_TRIES = 3
"""Conflicts of a claim before a pod is created."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PoolClaims:
    """Claims on pods of pools. ``missed`` has a pool decided about, since an attempt found no pod of it."""

    cache: Cache
    writes: Writes
    missed: Callable[[Key], None]

    async def claim(self, manifest: Mapping[str, Any], *, deadline_seconds: int) -> Pod | None:
        """Claim an idle pod that equals the one of ``manifest``; None: there is none.

        Raises:
            ApiError: The API server cannot be asked, or refuses.
        """
        namespace = manifest["metadata"]["namespace"]
        if not self.cache.pools_by_namespace.count(namespace) or deadline_seconds > POOLED_SECONDS:
            return None
        wanted = template_hash(manifest)
        for pod in list(self._candidates(namespace, wanted))[:_TRIES]:
            patch = claim_patch(pod, manifest, now=self.cache.clock.now(), deadline_seconds=deadline_seconds)
            try:
                claimed = await self.writes.patch(PODS, pod.metadata.name, patch, decode=Pod, namespace=namespace)
            except (Conflict, NotFound):
                continue
            self._record(pod)
            return claimed
        self._record_miss(namespace, wanted)
        return None

    def _candidates(self, namespace: str, wanted: str) -> Iterator[Pod]:
        """The idle pods with this hash, the oldest first: it is the next to expire."""
        found = self.cache.idle_pods[namespace, wanted]
        idle = (pod for pod in found if sidecar_url(pod) and self.cache.is_of_pool(pod))
        yield from sorted(idle, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def _record(self, pod: Pod) -> None:
        owner = pod.metadata.controller
        pool = self.cache.sandbox_pools.get((pod.metadata.namespace, owner.name)) if owner is not None else None
        if owner is not None and pool is not None:
            self.cache.memory.pools[owner.uid].record_claim(self.cache.clock.now(), pool.status.claimed)

    def _record_miss(self, namespace: str, wanted: str) -> None:
        """Record the miss of the pools whose pods are such: each may hold too few."""
        for pool in self.cache.pools_by_namespace[namespace]:
            known = self.cache.memory.pools[pool.metadata.uid]
            if known.template_hash == wanted:
                known.misses.append(self.cache.clock.now())
                self.missed(pool.key)


def claim_patch(pod: Pod, manifest: Mapping[str, Any], *, now: datetime, deadline_seconds: int) -> dict[str, Any]:
    """The merge patch that makes ``pod`` what ``manifest`` describes. A pod's deadline counts from its start."""
    metadata, wanted = pod.metadata, manifest["metadata"]
    age = (now - metadata.creation_timestamp).total_seconds() if metadata.creation_timestamp is not None else 0.0
    return {
        "metadata": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "ownerReferences": wanted["ownerReferences"],
            "labels": wanted["labels"],
            "annotations": {
                PROOF_ANNOTATION: wanted["annotations"][PROOF_ANNOTATION],
                CLAIMED_ANNOTATION: now.isoformat(timespec="milliseconds"),
            },
        },
        "spec": {"activeDeadlineSeconds": int(age) + deadline_seconds},
    }
