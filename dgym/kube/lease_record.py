"""The Lease object itself: who holds it, when that was last seen to change, and how it is taken and given back.

Every write is conditional on the version that was seen, so of two candidates at most one succeeds.
"""

from typing import Any

import msgspec

from dgym.kube.client import Client
from dgym.kube.clock import Clock, micro_time
from dgym.kube.errors import AlreadyExists, Conflict, NotFound
from dgym.kube.resources import LEASES


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What candidates write. Nobody compares the times in it."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: LeaseSpec = LeaseSpec()


class LeaseRecord:
    """The Lease as one candidate has last seen it."""

    def __init__(
        self, client: Client, *, name: str, namespace: str, identity: str, duration: float, clock: Clock
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._seen: _Lease | None = None
        self._changed_at = 0.0

    def __str__(self) -> str:
        return f"lease {self._namespace}/{self._name}"

    @property
    def holder(self) -> str:
        """Who held it when last seen; empty: nobody."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    @property
    def ours(self) -> bool:
        """Whether this candidate held it when last seen."""
        return self.holder == self._identity

    async def look(self) -> None:
        """See it as it is now."""
        try:
            found = await self._client.get(LEASES, self._name, namespace=self._namespace, decode=_Lease)
        except NotFound:
            self._seen = None
        else:
            self._saw(found)

    async def take(self) -> bool:
        """Take or renew it, if it is ours, free, or was not renewed for as long as its holder promised."""
        if self._seen is None:
            return await self._create()
        if self.holder and not self.ours and not self._expired(self._seen.spec):
            return False
        if await self._write(self._seen):
            return True
        if self._seen is None:
            return await self._create()
        # What was sent before may have been written though its answer was lost: then the second try is right.
        return self.ours and await self._write(self._seen)

    async def give_back(self) -> None:
        """Let another candidate take it at once."""
        if self._seen is not None and self.ours:
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            self._saw(await self._patch(self._seen, spec))

    def _expired(self, spec: LeaseSpec) -> bool:
        return self._clock.monotonic() - self._changed_at >= (spec.lease_duration_seconds or self._duration)

    def _saw(self, lease: _Lease) -> None:
        if self._seen is None or self._seen.spec != lease.spec:
            self._changed_at = self._clock.monotonic()
        self._seen = lease

    async def _create(self) -> bool:
        body = LEASES.manifest(metadata={"name": self._name, "namespace": self._namespace}, spec=self._spec(None))
        try:
            made = await self._client.create(LEASES, body, namespace=self._namespace, decode=_Lease, throttle=False)
        except AlreadyExists:
            await self.look()
            return False
        self._saw(made)
        return True

    async def _write(self, known: _Lease) -> bool:
        try:
            self._saw(await self._patch(known, self._spec(known.spec)))
        except (Conflict, NotFound):
            await self.look()
            return False
        return True

    async def _patch(self, known: _Lease, spec: dict[str, Any]) -> _Lease:
        body = {"metadata": {"resourceVersion": known.metadata.resource_version}, "spec": spec}
        return await self._client.patch(
            LEASES, self._name, body, namespace=self._namespace, decode=_Lease, throttle=False
        )

    def _spec(self, known: LeaseSpec | None) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": self._now(),
        }
        if known is None or known.holder_identity != self._identity:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = 0 if known is None else (known.lease_transitions or 0) + 1
        return spec

    def _now(self) -> str:
        return micro_time(self._clock.now())
