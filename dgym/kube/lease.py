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
from dgym.logs import fields

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
            client,
            name=name,
            namespace=namespace,
            identity=identity,
            duration=duration,
            valid=renew_deadline,
            clock=clock,
        )
        self._clock = clock
        self._random = random
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period

    @property
    def holder(self) -> str:
        """The identity of the leader when the Lease was last read; empty: there is none."""
        return self._record.holder

    def is_leader(self) -> bool:
        """Whether this process may write now."""
        return self._record.held

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
            await self._record.release(_RELEASE_SECONDS)

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
        within = self._renew_deadline / 2
        return await self._record.renew(min(within, self._record.valid_for) if self.is_leader() else within)


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
    """

    def __init__(
        self, client: Client, *, name: str, namespace: str, identity: str, duration: float, valid: float, clock: Clock
    ) -> None:
        self.namespace = namespace
        self.error = ""
        self._client = client
        self._name = name
        self._identity = identity
        self._duration = duration
        self._valid = valid
        self._clock = clock
        self._seen: _Lease | None = None
        self._changed_at = 0.0
        self._renewed_at = float("-inf")

    def __str__(self) -> str:
        return f"lease {self.namespace}/{self._name}"

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

    async def release(self, within: float) -> None:
        """Let another candidate take the Lease at once, if this one holds it; give up after these seconds."""
        held, self._renewed_at = self.held, float("-inf")
        if not held or self._seen is None or not self.ours:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            async with asyncio.timeout(within):
                self._observe(await self._patch(self._seen, spec))
        except (ApiError, TimeoutError) as error:
            self._failed(f"not released, and expires: {str(error) or 'no answer in time'}")

    def _failed(self, message: str) -> None:
        if message != self.error:
            self.error = message
            logger.info("%s: %s: %s", self._identity, self, message, extra=fields(namespace=self.namespace))

    async def _read(self) -> None:
        try:
            found = await self._client.get(LEASES, self._name, namespace=self.namespace, decode=_Lease)
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

    def _observe(self, lease: _Lease) -> None:
        if self._seen is None or self._seen.spec != lease.spec:
            self._changed_at = self._clock.monotonic()
        self._seen = lease

    async def _create(self) -> bool:
        body = LEASES.manifest(metadata={"name": self._name, "namespace": self.namespace}, spec=self._spec(None))
        try:
            made = await self._client.create(LEASES, body, namespace=self.namespace, decode=_Lease, priority=None)
        except AlreadyExists:
            await self._read()
            return False
        self._observe(made)
        return True

    async def _write(self, known: _Lease) -> bool:
        try:
            self._observe(await self._patch(known, self._spec(known.spec)))
        except (Conflict, NotFound):
            await self._read()
            return False
        return True

    async def _patch(self, known: _Lease, spec: dict[str, Any]) -> _Lease:
        body = {"metadata": {"resourceVersion": known.metadata.resource_version}, "spec": spec}
        return await self._client.patch(
            LEASES, self._name, body, namespace=self.namespace, decode=_Lease, priority=None
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
