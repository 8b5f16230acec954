"""One leader among the replicas, by a Lease that it keeps renewing.

No clock is compared with another machine's: a candidate takes over once it has itself seen the Lease unchanged for
its duration. The leader stops sooner, ``renew_deadline`` seconds after its last renewal was *sent*, so that for a while
nobody leads rather than two; ``is_leader`` says so by itself even while the loop that renews is stuck.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from dgym.kube.client import Client
from dgym.kube.clock import Clock
from dgym.kube.errors import ApiError
from dgym.kube.lease_record import LeaseRecord

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


_DEFAULTS = LeaseSettings()


class LeaderElector:
    """A candidate.

    Args:
        client: Its requests pass by the throttle of other writes.
        name: Of the Lease.
        namespace: Of the Lease.
        identity: Of this process, unlike that of any other, one before it in the same pod included.
        clock: For everything but the times written into the Lease.
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
        self._record = LeaseRecord(
            client, name=name, namespace=namespace, identity=identity, duration=settings.duration, clock=clock
        )
        self._clock = clock
        self._random = random
        self._settings = settings
        self._renewed_at: float | None = None

    @property
    def holder(self) -> str:
        """Who leads, as far as this candidate has seen; empty: nobody."""
        return self._record.holder

    def is_leader(self) -> bool:
        """Whether this process may write now."""
        return (
            self._renewed_at is not None and self._clock.monotonic() - self._renewed_at < self._settings.renew_deadline
        )

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then ``lead()`` for as long as it lasts.

        Cancelled, or when ``lead`` returns, it gives the Lease back once ``lead`` has ended, so that another candidate
        need not wait until it expires.

        Raises:
            LeadershipLost: The Lease could not be renewed; ``lead`` was cancelled. Start the process anew.
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
            # The Lease is kept for as long as the work takes to stop, and not given up before.
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
        await self._clock.sleep(self._settings.retry_period * self._random.uniform(0.8, 1.2))

    async def _try(self) -> bool:
        """Take or renew the Lease if that can be done now."""
        sent = self._clock.monotonic()
        patience = self._settings.renew_deadline / 2
        if self._renewed_at is not None:
            patience = max(0.0, min(patience, self._renewed_at + self._settings.renew_deadline - sent))
        try:
            async with asyncio.timeout(patience):
                if not self.is_leader():
                    await self._record.look()
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
        """Give the Lease back if it is ours, and do not wait long for that."""
        leads, self._renewed_at = self.is_leader(), None
        if not leads:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._record.give_back()
        except (ApiError, TimeoutError) as error:
            logger.info("%s: %s was not given back and will expire: %s", self.identity, self._record, error)


async def _stopped(task: "asyncio.Future[None]") -> None:
    """Cancel the task if it has not ended by itself, and wait until it has."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task failed while it was being stopped", exc_info=error)
