"""Decides which namespaces the leader serves. Namespaces may appear and disappear at any time.

A namespace in ``watchNamespaces`` may be deleted while the operator runs. The operator's role in it is deleted too, so
the API server refuses every list. Such a namespace is reported and not served, and the others are still served. The
reflectors retry with a growing back-off and jitter. The namespace is served again when all its objects were read.

The operator claims a namespace with the Lease ``dgym-owner`` in it, and does not serve a namespace that another
installation holds: two installations with the same Episodes would reassign each other's assignments forever. The holder
of the Lease is the installation and not a replica, so a new leader keeps the claims of its predecessor. The Lease is
renewed as long as the namespace should be served, and expires if the installation is gone. If all namespaces are
watched, the operator claims those that contain Episodes, EpisodeSets or SandboxPools.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from dgym.kube import Client, Clock, EventType, LeaseRecord
from dgym_operator.app._health import Announcer
from dgym_operator.cache import Cache, Informers
from dgym_operator.objects import OWNER_LEASE
from dgym_operator.settings import Settings

_PARALLEL = 32
_RENEWALS = 4
"""Number of renewals in the duration of a Lease. A claim is valid for all but one of these intervals."""


class Claims:
    """The claims of the installation. The leader renews them.

    Args:
        client: Its requests for Leases bypass the throttle.
        identity: Identity of the installation. All its replicas use the same one.
        duration_seconds: Time without a renewal after which another installation may take over.
        clock: Clock for pauses and ages.
        random: Source of jitter.
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
        """Return the claim to the namespace and renew it from now on. An unreleased dropped claim is reused."""
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
        """Try once to acquire each claim. Returns when every try was answered or timed out."""
        limit = asyncio.Semaphore(_PARALLEL)

        async def renew(claim: LeaseRecord) -> None:
            async with limit:
                await claim.renew(self._interval)

        async with asyncio.TaskGroup() as group:
            for namespace in namespaces:
                group.create_task(renew(self.claim(namespace)))

    def drop(self, namespace: str) -> None:
        """Give up the claim, so that another installation may acquire the namespace."""
        self._claims.pop(namespace, None)

    async def run(self) -> None:
        """Renew the claims until cancelled. They are not released, because the next leader continues them."""
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
    """The state of a namespace: served, or the cause why it is not served."""

    SERVED = "served"
    PENDING = "pending"
    ABSENT = "absent"
    HELD = "held"
    REFUSED = "refused"


class _Report(NamedTuple):
    """The Event about a state."""

    type: EventType
    reason: str
    message: str


class Namespaces:
    """The state of each namespace, on the leader.

    Args:
        settings: Namespaces in ``watch_namespaces`` are reported even if they are empty.
        cache: Contains the namespaces that have objects of dgym.
        informers: Report which namespaces can be read.
        claims: The claims of this installation.
        announcer: Reports changes.
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
        """True if the namespace's objects may be reconciled now."""
        if namespace not in self._states:
            self._states[namespace] = State.PENDING
            self._update((namespace,))
        return self._states[namespace] is State.SERVED

    def states(self) -> dict[str, State]:
        """Return the state of every namespace that should be served."""
        return dict(self._states)

    async def begin(self) -> None:
        """Claim all namespaces that contain objects now, because the first decisions depend on all used slots."""
        known = self._cache.namespaces - self._states.keys()
        self._states |= dict.fromkeys(sorted(known), State.PENDING)
        await self._claims.acquire(namespace for namespace in self._states if self._informers.complete(namespace))
        self._update(tuple(self._states))

    async def run(self) -> None:
        """Claim the namespaces and update their states until cancelled."""
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
                f"namespace {namespace} is not served: the installation {claim.other} serves it, according to the "
                f"Lease {OWNER_LEASE} in it. Remove the namespace from watchNamespaces of one of the two releases. A "
                f"release that serves all namespaces must be the only one"
            )
            return _Report("Warning", "NamespaceHeld", message)
        if now is State.REFUSED:
            message = (
                f"namespace {namespace} is not served: the operator cannot claim it by the Lease {OWNER_LEASE}. It "
                f"needs rights to create leases there, and to get and patch this lease. Error: {claim.error}"
            )
            return _Report("Warning", "NamespaceUnclaimed", message)
        message = (
            f"namespace {namespace} of watchNamespaces is not served: it does not exist, or the operator has no role "
            f"in it. Create it and run `helm upgrade`, or remove it from watchNamespaces. Error: "
            f"{self._informers.refusal(namespace)}"
        )
        return _Report("Warning", "NamespaceAbsent", message)
