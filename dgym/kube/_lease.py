"""Leases, and leader election with a Lease, as in client-go.

A Lease is a record in the API server. At any time, at most one holder has it and renews it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from dgym.kube._client import Client
from dgym.kube._informer import InformerStore, ObjectChange, Reflector
from dgym.kube._resources import LEASES, AlreadyExists, ApiError, Conflict, NotFound
from dgym.kube._throttle import Clock, micro_time
from dgym.logs import fields

logger = logging.getLogger(__name__)
_NOTE = "dgym.dev/released-with"
"""Annotation of a released Lease. Its value is the holder's ``leaseTransitions``, a colon, and the holder's note."""
_RELEASE_SECONDS = 5.0


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a Lease. Its times are not compared with a clock, but a changed ``renew_time`` shows a renewal."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a Lease."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class Lease(msgspec.Struct, frozen=True):
    """A Lease of ``coordination.k8s.io/v1``."""

    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()

    @property
    def note(self) -> str:
        """The note of the last holder; empty if it did not release the Lease."""
        transitions, _, note = self.metadata.annotations.get(_NOTE, "").partition(":")
        # A process of another version, which does not write notes, may have held the Lease since then.
        is_last = transitions == str(self.spec.lease_transitions or 0)
        return note if is_last and not self.spec.holder_identity else ""


class LeaseRecord:
    """A Lease as one candidate last read it, and whether the candidate holds it.

    Args:
        client: For the API server. Requests for the Lease are not throttled.
        name: Name of the Lease.
        namespace: Namespace of the Lease.
        identity: Identity of the candidate.
        duration: Seconds without a renewal after which another candidate takes over.
        valid: Seconds for which the candidate relies on a renewal, from the time it was sent. Less than ``duration``.
        clock: For durations, and for the times written into the Lease.

    Attributes:
        error: Why the last renewal or release failed; empty if it succeeded.
        handed_over: The note of the previous holder; empty if it did not release the Lease.
    """

    def __init__(
        self, client: Client, *, name: str, namespace: str, identity: str, duration: float, valid: float, clock: Clock
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.error = ""
        self.handed_over = ""
        self._client = client
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
        """Identity of the holder when the Lease was last read; empty if there was none."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    @property
    def is_holder(self) -> bool:
        """True if this candidate held the Lease when it was last read."""
        return self.holder == self._identity

    @property
    def other(self) -> str:
        """Identity of the other candidate that held the Lease when it was last read; empty if there was none."""
        return "" if self.is_holder else self.holder

    @property
    def valid_for(self) -> float:
        """Seconds for which the last renewal is still valid. 0 or less if the candidate does not hold the Lease."""
        return self._renewed_at + self._valid - self._clock.monotonic()

    @property
    def held(self) -> bool:
        """True if the candidate holds the Lease now."""
        return self.valid_for > 0

    async def renew(self, within: float) -> bool:
        """Acquire or renew the Lease, unless another candidate holds it. Gives up after ``within`` seconds.

        Returns:
            True if the Lease was acquired or renewed. On a failure, ``error`` is set and the result is False.
        """
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
        elif not self.is_holder:
            self._renewed_at = float("-inf")
        return taken

    async def release(self, within: float, *, note: str = "") -> None:
        """Release the Lease if this candidate holds it, so that another candidate can acquire it at once.

        Gives up after ``within`` seconds; the Lease then expires. The next holder gets the note only if the release
        succeeds.
        """
        held, self._renewed_at = self.held, float("-inf")
        if not held or self._seen is None or not self.is_holder:
            return
        try:
            async with asyncio.timeout(within):
                try:
                    await self._give_back(self._seen, note)
                except Conflict:
                    # A renewal that was cancelled before its response arrived may have changed the version.
                    await self._read()
                    if self._seen is not None and self.is_holder:
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
        """Acquire or renew the Lease, unless another candidate holds it and it has not expired."""
        if self._seen is None:
            return await self._create()
        if self.holder and not self.is_holder and not self._expired(self._seen.spec):
            return False
        if await self._write(self._seen):
            return True
        if self._seen is None:
            return await self._create()
        # The previous renewal may have been written although its response was lost. Then the version has changed.
        return self.is_holder and await self._write(self._seen)

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


class LeadershipLost(Exception):
    """The Lease could not be renewed in time; the leader's work has been cancelled."""


class LeaderElector:
    """A candidate for leadership.

    The default durations are those of the controllers of Kubernetes.

    Args:
        client: For the API server. Requests for the Lease are not throttled.
        name: Name of the Lease.
        namespace: Namespace of the Lease.
        identity: Unique name of this process. A restarted process in the same pod needs another identity.
        clock: For durations, and for the times written into the Lease.
        random: For jitter.
        duration: Seconds without a renewal after which another candidate takes over.
        renew_deadline: Seconds without a renewal after which the leader stops writing.
        retry_period: Seconds between two tries.
        note: Returns the note that this leader leaves when it releases the Lease.
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
        store: InformerStore[Lease] = InformerStore(clock)
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
        """Identity of the leader when the Lease was last read; empty if there was none."""
        return self._record.holder

    @property
    def handed_over(self) -> str:
        """Note of the previous leader; empty if it did not leave one or did not release the Lease."""
        return self._record.handed_over

    def is_leader(self) -> bool:
        """Return True if this process may write now."""
        return self._record.held

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then run ``lead()`` for as long as it lasts.

        Releases the Lease once ``lead`` has returned or was cancelled, so that another candidate need not wait until
        it expires.

        Raises:
            LeadershipLost: The Lease could not be renewed; ``lead`` was cancelled. Restart the process.
        """
        await self._wait_for_leadership()
        logger.info("%s leads (%s)", self.identity, self._record)
        note = ""
        try:
            await self._lead_while_renewed(lead)
            note = self._note()
        finally:
            await self._record.release(_RELEASE_SECONDS, note=note)

    async def _wait_for_leadership(self) -> None:
        """Wait for leadership. Tries every ``retry_period`` seconds, and at once when the Lease is released."""
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

    def _observe(self, change: ObjectChange[Lease]) -> None:
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
            # Keep renewing the Lease until the work has stopped: another leader must not start while it still writes.
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
                logger.error("%s does not lead any more, %s is held by %r", self.identity, self._record, self.holder)
                return

    async def _pause(self) -> None:
        await self._clock.sleep(self._pause_seconds())

    def _pause_seconds(self) -> float:
        return self._retry_period * self._random.uniform(0.8, 1.2)

    async def _try(self) -> bool:
        """Try once to acquire or renew the Lease. Returns True on success."""
        within = self._renew_deadline / 2
        return await self._record.renew(min(within, self._record.valid_for) if self.is_leader() else within)


async def _stopped(task: "asyncio.Future[None]") -> None:
    """Cancel the task and wait until it has ended. Logs the exception that it raised while it was cancelled."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task failed while it was being stopped", exc_info=error)
