"""One leader among the replicas, by a Lease that it keeps renewing.

No clock is compared with another machine's: a candidate takes over once it has itself seen the Lease unchanged for
``duration`` seconds. The leader stops sooner, ``renew_deadline`` seconds after its last renewal was *sent*, so that for
a while nobody leads rather than two; ``is_leader`` says so by itself even while the loop that renews is stuck.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import Any

import msgspec

from dgym_operator.kube.client import Client
from dgym_operator.kube.clock import Clock
from dgym_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from dgym_operator.kube.resources import LEASES

logger = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


class LeadershipLost(Exception):
    """The Lease could not be renewed in time: whatever was being done as the leader has been stopped."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the Lease is kept; the defaults are those of Kubernetes' own controllers."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline < self.duration:
            raise ValueError("a Lease needs retry_period < renew_deadline < duration")


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


_DEFAULTS = LeaseSettings()


class LeaderElector:
    """A candidate.

    Args:
        client: Its requests pass by the throttle of other writes.
        name: Of the Lease.
        namespace: Of the Lease.
        identity: Of this process, unlike that of any other, one before it in the same pod included.
        clock: For everything but the times written into the Lease, which nobody compares.
        random: For jitter.
        settings: Durations.
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
        settings: LeaseSettings = _DEFAULTS,
    ) -> None:
        self.identity = identity
        self._client = client
        self._name = name
        self._namespace = namespace
        self._clock = clock
        self._random = random
        self._settings = settings
        self._seen: _Lease | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def holder(self) -> str:
        """Who leads, as far as this candidate has seen; empty: nobody."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    def is_leader(self) -> bool:
        """Whether this process may write now."""
        return (
            self._renewed_at is not None and self._clock.monotonic() - self._renewed_at < self._settings.renew_deadline
        )

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then ``lead()`` for as long as it lasts; the Lease is given back at the end.

        Cancelled, or when ``lead`` returns, it gives the Lease up once ``lead`` has finished, so that another
        candidate need not wait until it expires.

        Raises:
            LeadershipLost: The Lease could not be renewed; ``lead`` was cancelled. Start the process anew.
        """
        await self._acquire()
        logger.info("%s leads (lease %s/%s)", self.identity, self._namespace, self._name)
        try:
            await self._lead_while_renewed(lead)
        finally:
            await self._release()

    async def _acquire(self) -> None:
        while not await self._try_once():
            await self._pause()

    async def _lead_while_renewed(self, lead: Callable[[], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(lead())
        renewal = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost = renewal.done()
            # The Lease is kept for as long as the work takes to stop, and not given up before.
            await _stopped(work)
            await _stopped(renewal)
        if lost:
            reason = f"{self.identity}: lease {self._namespace}/{self._name} was not renewed in time"
            raise LeadershipLost(reason) from renewal.exception()
        work.result()

    async def _renew(self) -> None:
        """Return once leadership is lost."""
        while True:
            await self._pause()
            if not await self._try_once() and not self.is_leader():
                logger.error("%s leads no more, lease %s is held by %r", self.identity, self._name, self.holder)
                self._renewed_at = None
                return

    async def _pause(self) -> None:
        await self._clock.sleep(self._settings.retry_period * self._random.uniform(0.8, 1.2))

    async def _try_once(self) -> bool:
        """Take or renew the Lease if that can be done now."""
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._settings.renew_deadline / 2):
                taken = await self._take_or_renew()
        except (ApiError, TimeoutError) as error:
            logger.info("%s: lease %s/%s: %s", self.identity, self._namespace, self._name, error or "no answer in time")
            return False
        if taken:
            self._renewed_at = sent
        return taken

    async def _take_or_renew(self) -> bool:
        if not self.is_leader() or self._seen is None:
            await self._look()
        now = self._clock.monotonic()
        if self._seen is None:
            return await self._create()
        if self.holder not in ("", self.identity) and now - self._seen_at < self._holders_duration(self._seen.spec):
            return False
        # What was sent before may have been written though its answer was lost: then the second try is right.
        return await self._write(self._seen) or (self.holder == self.identity and await self._write(self._seen))

    def _holders_duration(self, spec: _Spec) -> float:
        return float(spec.lease_duration_seconds or self._settings.duration)

    async def _look(self) -> None:
        try:
            found = await self._client.get(LEASES, self._name, namespace=self._namespace, decode=_Lease)
        except NotFound:
            self._seen = None
            return
        self._saw(found)

    def _saw(self, lease: _Lease) -> None:
        if self._seen is None or self._seen.spec != lease.spec:
            self._seen_at = self._clock.monotonic()
        self._seen = lease

    async def _create(self) -> bool:
        spec = self._spec(None)
        body = LEASES.manifest(metadata={"name": self._name, "namespace": self._namespace}, spec=spec)
        try:
            made = await self._client.create(LEASES, body, namespace=self._namespace, decode=_Lease, throttle=False)
        except AlreadyExists:
            return False
        self._saw(made)
        return True

    async def _write(self, known: _Lease) -> bool:
        body = {"metadata": {"resourceVersion": known.metadata.resource_version}, "spec": self._spec(known.spec)}
        try:
            self._saw(await self._patch(body))
        except (Conflict, NotFound):
            # Somebody else was faster, or the Lease was deleted: look before the next try.
            await self._look()
            if self.holder != self.identity:
                self._renewed_at = None
            return False
        return True

    async def _patch(self, body: Any) -> _Lease:
        return await self._client.patch(
            LEASES, self._name, body, namespace=self._namespace, decode=_Lease, throttle=False
        )

    def _spec(self, known: _Spec | None) -> dict[str, Any]:
        now = _micro_time(self._clock.now())
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._settings.duration)),
            "renewTime": now,
        }
        if known is None or known.holder_identity != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = 0 if known is None else (known.lease_transitions or 0) + 1
        return spec

    async def _release(self) -> None:
        """Give the Lease up if it is ours, and do not wait long for that."""
        held, self._renewed_at = self._renewed_at is not None, None
        if not held or self._seen is None or self.holder != self.identity:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time(self._clock.now())}
        body = {"metadata": {"resourceVersion": self._seen.metadata.resource_version}, "spec": spec}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                self._saw(await self._patch(body))
        except (ApiError, TimeoutError) as error:
            logger.info("%s: lease %s was not given back and will expire: %s", self.identity, self._name, error)


async def _stopped(task: "asyncio.Future[None]") -> None:
    """Cancel the task if it has not ended by itself, and wait until it has."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task failed while it was being stopped", exc_info=error)


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
