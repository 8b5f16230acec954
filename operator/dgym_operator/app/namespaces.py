"""The namespaces that the leader serves, as they come and go, one installation each.

A namespace of ``watchNamespaces`` may be deleted while the operator runs, and the operator's role in it is deleted with
it: the API server then refuses every list. Such a namespace is left out and reported; the others are served as before.
It is served again once all its objects can be read again. The reflectors keep asking, ever more slowly, with jitter.

A namespace that another installation has claimed is left to it. Where all namespaces are watched, those with Episodes
or EpisodeSets are claimed.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from dgym.kube import EventType
from dgym_operator.app.claims import Claims
from dgym_operator.app.health import Announcer
from dgym_operator.cache import Watches, World
from dgym_operator.objects import OWNER_LEASE
from dgym_operator.settings import Settings


class State(StrEnum):
    """Whether a namespace is served, and if not, what is in the way."""

    SERVED = "served"
    PENDING = "pending"
    ABSENT = "absent"
    HELD = "held"
    REFUSED = "refused"


class _Report(NamedTuple):
    """What is said when a namespace enters a state."""

    type: EventType
    reason: str
    message: str


class Namespaces:
    """The state of each namespace, on the replica that leads.

    Args:
        settings: Its ``watch_namespaces`` are reported even while they hold no Episode.
        world: Whether a namespace holds anything to serve.
        watches: Whether a namespace can be read.
        claims: Whether it is this installation's to serve.
        announcer: Where changes are announced.
        served: Called with a namespace that is served from now on.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        world: World,
        watches: Watches,
        claims: Claims,
        announcer: Announcer,
        served: Callable[[str], None],
    ) -> None:
        self._listed = frozenset(settings.watch_namespaces)
        self._world = world
        self._watches = watches
        self._claims = claims
        self._announcer = announcer
        self._served = served
        self._states: dict[str, State] = dict.fromkeys(settings.watch_namespaces, State.PENDING)
        self._left_out: set[str] = set()
        self._changed = asyncio.Event()
        watches.changed = claims.changed = self._changed.set

    def serves(self, namespace: str) -> bool:
        """Whether the namespace's objects may be decided on now."""
        if namespace not in self._states:
            self._states[namespace] = State.PENDING
            self._update((namespace,))
        return self._states[namespace] is State.SERVED

    def states(self) -> dict[str, State]:
        """The state of every namespace that is to be served."""
        return dict(self._states)

    async def begin(self) -> None:
        """Claim all namespaces that hold anything now: the first decisions see the room that all of them take."""
        known = (*self._world.episodes_by_namespace.values(), *self._world.sets_by_namespace.values())
        self._states |= {str(namespace): State.PENDING for namespace in known if namespace not in self._states}
        await self._claims.take(namespace for namespace in self._states if self._watches.complete(namespace))
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
        world = self._world
        for namespace in tuple(self._states.keys() - self._listed):
            if not world.episodes_by_namespace.count(namespace) and not world.sets_by_namespace.count(namespace):
                del self._states[namespace]
                self._left_out.discard(namespace)
                self._claims.drop(namespace)

    def _update(self, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            before, now = self._states[namespace], self._state(namespace)
            if now is not before:
                self._states[namespace] = now
                self._announce(namespace, now)

    def _state(self, namespace: str) -> State:
        if self._watches.refusal(namespace) is not None:
            return State.ABSENT
        if not self._watches.complete(namespace):
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
        if now is State.SERVED and namespace in self._left_out:
            self._left_out.remove(namespace)
            return _Report("Normal", "NamespaceServed", f"namespace {namespace} is served again")
        if now in (State.SERVED, State.PENDING):
            return None
        self._left_out.add(namespace)
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
            f"{self._watches.refusal(namespace)}"
        )
        return _Report("Warning", "NamespaceAbsent", message)
