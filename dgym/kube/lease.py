"""Leases: a record in the API server that one holder at a time keeps renewing.

No clock is compared with another machine's: a candidate takes over once it has itself seen the Lease unchanged for
its duration. Every write of the Lease is conditional on the version that was read, so of two candidates at most one
succeeds.
"""

import asyncio
import logging
from typing import Any

import msgspec

from dgym.kube.client import Client
from dgym.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from dgym.kube.resources import LEASES
from dgym.kube.throttle import Clock, micro_time
from dgym.logs import fields

logger = logging.getLogger(__name__)

_NOTE = "dgym.dev/released-with"
"""Annotation of a released Lease: ``leaseTransitions`` of its holder, a colon, and the holder's note."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that candidates write. The times in it are for people."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Lease's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class Lease(msgspec.Struct, frozen=True):
    """A Lease."""

    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()

    @property
    def note(self) -> str:
        """The note of the last holder, if it has released the Lease; else empty."""
        transitions, _, note = self.metadata.annotations.get(_NOTE, "").partition(":")
        # One that does not know notes may have held the Lease since.
        is_last = transitions == str(self.spec.lease_transitions or 0)
        return note if is_last and not self.spec.holder_identity else ""


class LeaseRecord:
    """A Lease as one candidate last read it, and whether the candidate holds it.

    Args:
        client: Requests about the Lease are not throttled.
        name: Of the Lease.
        namespace: Of the Lease.
        identity: The candidate's.
        duration: Seconds without a renewal after which another candidate takes over.
        valid: Seconds after a renewal was sent for which the candidate relies on it; fewer than ``duration``.
        clock: For durations, and for the times written into the Lease.

    Attributes:
        error: Why the last renewal or release failed; empty: it did not.
        handed_over: The note of the holder before, if it has released the Lease; else empty.
    """

    def __init__(
        self, client: Client, *, name: str, namespace: str, identity: str, duration: float, valid: float, clock: Clock
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.error = ""
        self.handed_over = ""
        self._client = client
        self.name = name
        self._identity = identity
        self._duration = duration
        self._valid = valid
        self._clock = clock
        self._seen: Lease | None = None
        self._changed_at = 0.0
        self._renewed_at = float("-inf")

    def __str__(self) -> str:
        return f"lease {self.namespace}/{self.name}"

    @property
    def holder(self) -> str:
        """The holder's identity when last read; empty: there is none."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    @property
    def ours(self) -> bool:
        """Whether this candidate held it when last read."""
        return self.holder == self._identity

    @property
    def other(self) -> str:
        """The identity of another candidate that held it when last read; empty: there is none."""
        return "" if self.ours else self.holder

    @property
    def valid_for(self) -> float:
        """Seconds for which the candidate may still rely on its last renewal; 0 or less: it holds the Lease no more."""
        return self._renewed_at + self._valid - self._clock.monotonic()

    @property
    def held(self) -> bool:
        """Whether the candidate holds the Lease now."""
        return self.valid_for > 0

    async def renew(self, within: float) -> bool:
        """Take or renew the Lease within these seconds, unless another candidate holds it; returns whether it was."""
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(within):
                if not self.held:
                    await self._read()
                taken = await self._take()
        except (ApiError, TimeoutError) as error:
            self._failed(str(error) or "no answer in time")
            return False
        self.error = ""
        if taken:
            self._renewed_at = sent
        elif not self.ours:
            self._renewed_at = float("-inf")
        return taken

    async def release(self, within: float, *, note: str = "") -> None:
        """Let another candidate take the Lease at once, if this one holds it; give up after these seconds.

        The next holder gets the note, unless the Lease expires first.
        """
        held, self._renewed_at = self.held, float("-inf")
        if not held or self._seen is None or not self.ours:
            return
        try:
            async with asyncio.timeout(within):
                try:
                    await self._give_back(self._seen, note)
                except Conflict:
                    # A renewal that was cancelled on its way may have been written all the same.
                    await self._read()
                    if self._seen is not None and self.ours:
                        await self._give_back(self._seen, note)
        except (ApiError, TimeoutError) as error:
            self._failed(f"not released, and expires: {str(error) or 'no answer in time'}")

    async def _give_back(self, known: Lease, note: str) -> None:
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        left = f"{known.spec.lease_transitions or 0}:{note}" if note else None
        self._observe(await self._patch(known, spec, note=left))

    def _failed(self, message: str) -> None:
        if message != self.error:
            self.error = message
            logger.info("%s: %s: %s", self._identity, self, message, extra=fields(namespace=self.namespace))

    async def _read(self) -> None:
        try:
            found = await self._client.get(LEASES, self.name, namespace=self.namespace, decode=Lease)
        except NotFound:
            self._seen = None
        else:
            self._observe(found)

    async def _take(self) -> bool:
        """Take or renew the Lease, unless another candidate holds it and has renewed it within its duration."""
        if self._seen is None:
            return await self._create()
        if self.holder and not self.ours and not self._expired(self._seen.spec):
            return False
        if await self._write(self._seen):
            return True
        if self._seen is None:
            return await self._create()
        # The renewal before may have been written though its answer was lost: then the version has changed.
        return self.ours and await self._write(self._seen)

    def _expired(self, spec: LeaseSpec) -> bool:
        return self._clock.monotonic() - self._changed_at >= (spec.lease_duration_seconds or self._duration)

    def _observe(self, lease: Lease) -> None:
        if self._seen is None or self._seen.spec != lease.spec:
            self._changed_at = self._clock.monotonic()
        self._seen = lease

    async def _create(self) -> bool:
        body = LEASES.manifest(metadata={"name": self.name, "namespace": self.namespace}, spec=self._spec(None))
        try:
            made = await self._client.create(LEASES, body, namespace=self.namespace, decode=Lease, priority=None)
        except AlreadyExists:
            await self._read()
            return False
        self._observe(made)
        return True

    async def _write(self, known: Lease) -> bool:
        note = known.note
        try:
            self._observe(await self._patch(known, self._spec(known.spec)))
            if known.spec.holder_identity != self._identity:
                self.handed_over = note
        except (Conflict, NotFound):
            await self._read()
            return False
        return True

    async def _patch(self, known: Lease, spec: dict[str, Any], *, note: str | None = None) -> Lease:
        metadata: dict[str, Any] = {"resourceVersion": known.metadata.resource_version}
        if note is not None or _NOTE in known.metadata.annotations:
            metadata["annotations"] = {_NOTE: note}
        body = {"metadata": metadata, "spec": spec}
        return await self._client.patch(LEASES, self.name, body, namespace=self.namespace, decode=Lease, priority=None)

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
