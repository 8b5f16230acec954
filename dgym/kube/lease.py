"""Leader election: one leader among the replicas, which keeps renewing a Lease.

No clock is compared with another machine's: a candidate takes over once it has itself seen the Lease unchanged for
its duration. The leader stops sooner, ``renew_deadline`` seconds after its last renewal was *sent*, so that for a while
there is no leader rather than two; ``is_leader`` turns false even while the loop that renews is stuck. Every write of
the Lease is conditional on the version that was read, so of two candidates at most one succeeds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from dgym.kube.client import Client
from dgym.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from dgym.kube.resources import LEASES
from dgym.kube.throttle import Clock, micro_time

logger = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


class LeadershipLost(Exception):
    """The Lease could not be renewed in time; the leader's work has been cancelled."""


class LeaderElector:
    """A candidate.

    Args:
        client: Requests about the Lease are not throttled.
        name: Of the Lease.
        namespace: Of the Lease.
        identity: Of this process; unique, also among the processes that ran before in the same pod.
        clock: For durations, and for the times written into the Lease.
        random: For jitter.
        duration: Seconds without a renewal after which another candidate takes over. The defaults are those of
            Kubernetes' own controllers.
        renew_deadline: Seconds without a renewal after which the leader stops writing.
        retry_period: Seconds between two tries.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str,
        clock: Clock,
        random: Random,
        duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
    ) -> None:
        if not 0 < retry_period < renew_deadline < duration:
            raise ValueError("a Lease needs retry_period < renew_deadline < duration")
        self.identity = identity
        self._record = LeaseRecord(
            client, name=name, namespace=namespace, identity=identity, duration=duration, clock=clock
        )
        self._clock = clock
        self._random = random
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._renewed_at: float | None = None

    @property
    def holder(self) -> str:
        """The identity of the leader when the Lease was last read; empty: there is none."""
        return self._record.holder

    def is_leader(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_at is not None and self._clock.monotonic() - self._renewed_at < self._renew_deadline

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then run ``lead()`` for as long as it lasts.

        Releases the Lease once ``lead`` has returned or was cancelled, so that another candidate need not wait until
        it expires.

        Raises:
            LeadershipLost: The Lease could not be renewed; ``lead`` was cancelled. Restart the process.
        """
        while not await self._try():
            await self._pause()
        logger.info("%s leads (%s)", self.identity, self._record)
        try:
            await self._lead_while_renewed(lead)
        finally:
            await self._release()

    async def _lead_while_renewed(self, lead: Callable[[], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(lead())
        renewal = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost = renewal.done()
            # The Lease is kept until the work has stopped.
            await _stopped(work)
            await _stopped(renewal)
        if lost:
            raise LeadershipLost(f"{self.identity}: {self._record} was not renewed") from renewal.exception()
        work.result()

    async def _renew(self) -> None:
        """Return once leadership is lost."""
        while True:
            await self._pause()
            if not (self.is_leader() and await self._try()) and not self.is_leader():
                logger.error("%s leads no more, %s is held by %r", self.identity, self._record, self.holder)
                return

    async def _pause(self) -> None:
        await self._clock.sleep(self._retry_period * self._random.uniform(0.8, 1.2))

    async def _try(self) -> bool:
        """Take or renew the Lease if that can be done now."""
        sent = self._clock.monotonic()
        patience = self._renew_deadline / 2
        if self._renewed_at is not None:
            patience = max(0.0, min(patience, self._renewed_at + self._renew_deadline - sent))
        try:
            async with asyncio.timeout(patience):
                if not self.is_leader():
                    await self._record.read()
                taken = await self._record.take()
        except (ApiError, TimeoutError) as error:
            logger.info("%s: %s: %s", self.identity, self._record, error or "no answer in time")
            return False
        if taken:
            self._renewed_at = sent
        elif not self._record.ours:
            self._renewed_at = None
        return taken

    async def _release(self) -> None:
        """Release the Lease if this process holds it; give up after some seconds."""
        leads, self._renewed_at = self.is_leader(), None
        if not leads:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._record.release()
        except (ApiError, TimeoutError) as error:
            logger.info("%s: %s was not released and will expire: %s", self.identity, self._record, error)


async def _stopped(task: "asyncio.Future[None]") -> None:
    """Cancel the task if it has not ended by itself, and wait until it has."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task failed while it was being stopped", exc_info=error)


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that candidates write. The times in it are for people."""

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
    """The Lease as one candidate last read it."""

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
        """The holder's identity when last read; empty: there is none."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    @property
    def ours(self) -> bool:
        """Whether this candidate held it when last read."""
        return self.holder == self._identity

    async def read(self) -> None:
        """Read the Lease."""
        try:
            found = await self._client.get(LEASES, self._name, namespace=self._namespace, decode=_Lease)
        except NotFound:
            self._seen = None
        else:
            self._observe(found)

    async def take(self) -> bool:
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

    async def release(self) -> None:
        """Let another candidate take the Lease at once."""
        if self._seen is not None and self.ours:
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
            self._observe(await self._patch(self._seen, spec))

    def _expired(self, spec: LeaseSpec) -> bool:
        return self._clock.monotonic() - self._changed_at >= (spec.lease_duration_seconds or self._duration)

    def _observe(self, lease: _Lease) -> None:
        if self._seen is None or self._seen.spec != lease.spec:
            self._changed_at = self._clock.monotonic()
        self._seen = lease

    async def _create(self) -> bool:
        body = LEASES.manifest(metadata={"name": self._name, "namespace": self._namespace}, spec=self._spec(None))
        try:
            made = await self._client.create(LEASES, body, namespace=self._namespace, decode=_Lease, throttle=False)
        except AlreadyExists:
            await self.read()
            return False
        self._observe(made)
        return True

    async def _write(self, known: _Lease) -> bool:
        try:
            self._observe(await self._patch(known, self._spec(known.spec)))
        except (Conflict, NotFound):
            await self.read()
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
