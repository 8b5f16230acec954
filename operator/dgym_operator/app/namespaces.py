"""The namespaces that the leader serves, as they come and go.

A namespace of ``watchNamespaces`` may be deleted while the operator runs, and the operator's role in it is deleted with
it: the API server then refuses every list. Such a namespace is reported and not served; the others are served as
before. The reflectors retry with growing, jittered pauses, and the namespace is served once all its objects are read.

A namespace is claimed by the Lease ``dgym-owner`` in it, and left to another installation that holds it: two that
reconcile the same Episodes would reassign them from each other's agents without end. The Lease is held by the
installation and not by a replica: a new leader keeps its predecessor's claims. It is renewed while the namespace is to
be served, and expires with an installation that is gone. Where all namespaces are watched, those with Episodes or
EpisodeSets are claimed.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from dgym.kube import Client, Clock, EventType, LeaseRecord
from dgym_operator.app.health import Announcer
from dgym_operator.cache import Cache, Informers
from dgym_operator.objects import OWNER_LEASE
from dgym_operator.settings import Settings

_PARALLEL = 32
_RENEWALS = 4
"""Renewals in the duration of a Lease; a claim that missed two of them is not relied on."""


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
        self._interval = duration_seconds / _RENEWALS
        self._clock = clock
        self._random = random
        self._claims: dict[str, LeaseRecord] = {}
        self._kept: dict[str, LeaseRecord] = {}
        self._appeared = asyncio.Event()

    def claim(self, namespace: str) -> LeaseRecord:
        """The claim to the namespace, kept from now on, or kept on if it was dropped and not released yet."""
        found = self._claims.get(namespace)
        if found is None:
            found = self._claims[namespace] = self._kept.get(namespace) or LeaseRecord(
                self._client,
                name=OWNER_LEASE,
                namespace=namespace,
                identity=self._identity,
                duration=self._duration,
                valid=self._duration - self._interval,
                clock=self._clock,
            )
            self._appeared.set()
        return found

    async def acquire(self, namespaces: Iterable[str]) -> None:
        """Try once to acquire each claim; returns when every try was answered or timed out."""
        limit = asyncio.Semaphore(_PARALLEL)

        async def renew(claim: LeaseRecord) -> None:
            async with limit:
                await claim.renew(self._interval)

        async with asyncio.TaskGroup() as group:
            for namespace in namespaces:
                group.create_task(renew(self.claim(namespace)))

    def drop(self, namespace: str) -> None:
        """Drop the claim; another installation may acquire the namespace then."""
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

    async def _keep(self, claim: LeaseRecord) -> None:
        try:
            fresh = claim.held
            while self._claims.get(claim.namespace) is claim:
                if not fresh:
                    await claim.renew(self._interval)
                fresh = False
                self.changed()
                await self._clock.sleep(self._interval * self._random.uniform(0.8, 1.2))
            await claim.release(self._interval)
        finally:
            del self._kept[claim.namespace]
            # The namespace may have been claimed again meanwhile.
            self._appeared.set()


class State(StrEnum):
    """Whether a namespace is served, and if not, why."""

    SERVED = "served"
    PENDING = "pending"
    ABSENT = "absent"
    HELD = "held"
    REFUSED = "refused"


class _Report(NamedTuple):
    """The announcement of a state."""

    type: EventType
    reason: str
    message: str


class Namespaces:
    """The state of each namespace, on the replica that leads.

    Args:
        settings: Its ``watch_namespaces`` are reported even while they hold nothing.
        cache: Shows which namespaces hold objects of dgym.
        informers: Show which namespaces can be read.
        claims: Show which namespaces this installation has claimed.
        announcer: Announces changes.
        served: Called with a namespace that is served from now on.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cache: Cache,
        informers: Informers,
        claims: Claims,
        announcer: Announcer,
        served: Callable[[str], None],
    ) -> None:
        self._listed = frozenset(settings.watch_namespaces)
        self._cache = cache
        self._informers = informers
        self._claims = claims
        self._announcer = announcer
        self._served = served
        self._states: dict[str, State] = dict.fromkeys(settings.watch_namespaces, State.PENDING)
        self._unserved: set[str] = set()
        self._changed = asyncio.Event()
        informers.changed = claims.changed = self._changed.set

    def serves(self, namespace: str) -> bool:
        """Whether the namespace's objects may be reconciled now."""
        if namespace not in self._states:
            self._states[namespace] = State.PENDING
            self._update((namespace,))
        return self._states[namespace] is State.SERVED

    def states(self) -> dict[str, State]:
        """The state of every namespace to be served."""
        return dict(self._states)

    async def begin(self) -> None:
        """Claim all namespaces that hold objects now: the first decisions must know the slots used in all of them."""
        known = self._cache.namespaces - self._states.keys()
        self._states |= dict.fromkeys(sorted(known), State.PENDING)
        await self._claims.acquire(namespace for namespace in self._states if self._informers.complete(namespace))
        self._update(tuple(self._states))

    async def run(self) -> None:
        """Claim and follow the namespaces until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run())
            while True:
                self._changed.clear()
                self._drop_empty()
                self._update(tuple(self._states))
                await self._changed.wait()

    def _drop_empty(self) -> None:
        for namespace in sorted(self._states.keys() - self._listed - self._cache.namespaces):
            del self._states[namespace]
            self._unserved.discard(namespace)
            self._claims.drop(namespace)

    def _update(self, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            before, now = self._states[namespace], self._state(namespace)
            if now is not before:
                self._states[namespace] = now
                self._announce(namespace, now)

    def _state(self, namespace: str) -> State:
        if self._informers.refusal(namespace) is not None:
            return State.ABSENT
        if not self._informers.complete(namespace):
            return State.PENDING
        claim = self._claims.claim(namespace)
        if claim.held:
            return State.SERVED
        if claim.error:
            return State.REFUSED
        return State.HELD if claim.other else State.PENDING

    def _announce(self, namespace: str, now: State) -> None:
        report = self._report(namespace, now)
        if report is not None:
            self._announcer.announce(*report, namespace=namespace)
        if now is State.SERVED:
            self._served(namespace)

    def _report(self, namespace: str, now: State) -> _Report | None:
        if now is State.SERVED and namespace in self._unserved:
            self._unserved.remove(namespace)
            return _Report("Normal", "NamespaceServed", f"namespace {namespace} is served again")
        if now in (State.SERVED, State.PENDING):
            return None
        self._unserved.add(namespace)
        claim = self._claims.claim(namespace)
        if now is State.HELD:
            message = (
                f"namespace {namespace} is not served: the installation {claim.other} serves it, as the Lease "
                f"{OWNER_LEASE} in it says. Take the namespace out of watchNamespaces of one of the two releases; one "
                f"that serves all namespaces cannot stand beside another"
            )
            return _Report("Warning", "NamespaceHeld", message)
        if now is State.REFUSED:
            message = (
                f"namespace {namespace} is not served: the operator cannot claim it by the Lease {OWNER_LEASE}. It "
                f"needs to create leases there, and to get and patch this one. The API server says: {claim.error}"
            )
            return _Report("Warning", "NamespaceUnclaimed", message)
        message = (
            f"namespace {namespace} of watchNamespaces is not served: it is gone, or the operator has no role in it. "
            f"Make it and run `helm upgrade`, or take it out of watchNamespaces. The API server says: "
            f"{self._informers.refusal(namespace)}"
        )
        return _Report("Warning", "NamespaceAbsent", message)
