"""Claims to namespaces: the holder of the Lease ``dgym-owner`` in a namespace is the one installation that serves it.

Two installations that reconcile the same Episodes would reassign them from each other's agents without end. The Lease
is held by the installation and not by a replica: a new leader keeps its predecessor's claims. A claim is renewed while
its namespace is to be served, and expires with an installation that is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random

from dgym.kube import ApiError, Client, Clock, LeaseRecord
from dgym_operator.logs import fields
from dgym_operator.objects import OWNER_LEASE

_log = logging.getLogger(__name__)
_PARALLEL = 32
_RENEWALS = 4
"""Renewals in the duration of a Lease; a claim that missed two of them is not relied on."""


class Claim:
    """The Lease of one namespace, as this installation sees it."""

    def __init__(self, client: Client, namespace: str, *, identity: str, duration: float, clock: Clock) -> None:
        self.namespace = namespace
        self.error = ""
        """Why the last try to acquire or renew it failed; empty: it did not."""
        self._record = LeaseRecord(
            client, name=OWNER_LEASE, namespace=namespace, identity=identity, duration=duration, clock=clock
        )
        self._duration = duration
        self._clock = clock
        self._renewed_at = float("-inf")

    @property
    def held(self) -> bool:
        """Whether the namespace is this installation's."""
        return self._clock.monotonic() - self._renewed_at < self._duration * (1 - 1 / _RENEWALS)

    @property
    def other(self) -> str:
        """The installation that holds the Lease instead; empty: none."""
        return "" if self._record.ours else self._record.holder

    async def renew(self) -> None:
        """Acquire or renew the Lease, unless another installation holds it."""
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._duration / _RENEWALS):
                if not self.held:
                    await self._record.read()
                taken = await self._record.take()
        except (ApiError, TimeoutError) as error:
            self._failed(str(error) or "no answer in time")
            return
        self.error = ""
        if taken:
            self._renewed_at = sent
        elif not self._record.ours:
            self._renewed_at = float("-inf")

    async def release(self) -> None:
        """Release the Lease, so that another installation can acquire it at once."""
        held, self._renewed_at = self.held, float("-inf")
        if held:
            try:
                async with asyncio.timeout(self._duration / _RENEWALS):
                    await self._record.release()
            except (ApiError, TimeoutError) as error:
                self._failed(str(error) or "no answer in time")

    def _failed(self, error: str) -> None:
        if error != self.error:
            self.error = error
            _log.info("%s: %s", self._record, error, extra=fields(namespace=self.namespace))


class Claims:
    """The claims of the installation, kept by the leader.

    Args:
        client: Its requests for Leases bypass the throttle.
        identity: Of the installation, the same for all its replicas.
        duration_seconds: After so long without a renewal another installation takes over.
        clock: For pauses and ages.
        random: For jitter.
    """

    def __init__(self, client: Client, *, identity: str, duration_seconds: float, clock: Clock, random: Random) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called after each try to acquire or renew a claim."""
        self._client = client
        self._identity = identity
        self._duration = duration_seconds
        self._clock = clock
        self._random = random
        self._claims: dict[str, Claim] = {}
        self._kept: dict[str, Claim] = {}
        self._appeared = asyncio.Event()

    def claim(self, namespace: str) -> Claim:
        """The claim to the namespace, kept from now on, or kept on if it was dropped and not released yet."""
        found = self._claims.get(namespace)
        if found is None:
            found = self._claims[namespace] = self._kept.get(namespace) or Claim(
                self._client, namespace, identity=self._identity, duration=self._duration, clock=self._clock
            )
            self._appeared.set()
        return found

    async def acquire(self, namespaces: Iterable[str]) -> None:
        """Try once to acquire each claim; returns when every try was answered or timed out."""
        limit = asyncio.Semaphore(_PARALLEL)

        async def renew(claim: Claim) -> None:
            async with limit:
                await claim.renew()

        async with asyncio.TaskGroup() as group:
            for namespace in namespaces:
                group.create_task(renew(self.claim(namespace)))

    def drop(self, namespace: str) -> None:
        """Give the claim up; another installation may acquire the namespace."""
        self._claims.pop(namespace, None)

    async def run(self) -> None:
        """Keep the claims until cancelled. They are not released: the next leader keeps them."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._appeared.clear()
                for namespace in self._claims.keys() - self._kept.keys():
                    claim = self._kept[namespace] = self._claims[namespace]
                    group.create_task(self._keep(claim))
                await self._appeared.wait()

    async def _keep(self, claim: Claim) -> None:
        try:
            fresh = claim.held
            while self._claims.get(claim.namespace) is claim:
                if not fresh:
                    await claim.renew()
                fresh = False
                self.changed()
                await self._clock.sleep(self._duration / _RENEWALS * self._random.uniform(0.8, 1.2))
            await claim.release()
        finally:
            del self._kept[claim.namespace]
            # The namespace may have been claimed again meanwhile.
            self._appeared.set()
