"""Leader election: one leader among the replicas, which keeps renewing a Lease.

The leader stops some time before its Lease expires, ``renew_deadline`` seconds after its last renewal was *sent*, so
that for a while there is no leader rather than two; ``is_leader`` turns false even while the loop that renews is stuck.
A leader that stops by itself releases the Lease and leaves a note in it. The others watch the Lease, and one of them
takes over at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from dgym.kube.client import Client
from dgym.kube.lease import Lease, LeaseRecord
from dgym.kube.reflector import Reflector
from dgym.kube.resources import LEASES
from dgym.kube.store import Change, Store
from dgym.kube.throttle import Clock

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
        note: The note that this leader leaves as it releases the Lease.
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
        note: Callable[[], str] = str,
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
        self._note = note
        self._released = asyncio.Event()
        store: Store[Lease] = Store(clock)
        store.subscribe(self._observe)
        self._watch = Reflector(
            client,
            LEASES,
            decode=Lease,
            store=store,
            clock=clock,
            random=random,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
        )

    @property
    def holder(self) -> str:
        """The identity of the leader when the Lease was last read; empty: there is none."""
        return self._record.holder

    @property
    def handed_over(self) -> str:
        """The note of the leader before this one; empty: it left none, or did not release the Lease."""
        return self._record.handed_over

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
        await self._stand_by()
        logger.info("%s leads (%s)", self.identity, self._record)
        note = ""
        try:
            await self._lead_while_renewed(lead)
            note = self._note()
        finally:
            await self._record.release(_RELEASE_SECONDS, note=note)

    async def _stand_by(self) -> None:
        """Wait for leadership: try from time to time, and whenever the Lease is released."""
        if await self._try():
            return
        watch = asyncio.ensure_future(self._watch.run())
        try:
            while True:
                timer = self._clock.call_later(self._pause_seconds(), self._released.set)
                await self._released.wait()
                timer.cancel()
                self._released.clear()
                if await self._try():
                    return
        finally:
            await _stopped(watch)

    def _observe(self, change: Change[Lease]) -> None:
        is_ours = change.last.metadata.name == self._record.name
        if is_ours and (change.new is None or not change.new.spec.holder_identity):
            self._released.set()

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
        await self._clock.sleep(self._pause_seconds())

    def _pause_seconds(self) -> float:
        return self._retry_period * self._random.uniform(0.8, 1.2)

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
