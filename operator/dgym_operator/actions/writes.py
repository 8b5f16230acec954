"""Writes to the API server, each only while this replica leads.

Two replicas that both believe to lead would make two pods for one attempt. So leadership is checked before every single
write and not once per decision.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dgym.api import EpisodeStatus
from dgym.kube import Client, Clock, Conflict, Key, NotFound, Object, Resource, Store
from dgym_operator.controllers import state_of
from dgym_operator.objects import EpisodeView

T = TypeVar("T", bound=Object)
V = TypeVar("V")
MANAGER = "dgym-operator"


class NotLeading(Exception):
    """The lease is held by another, or by nobody; whoever leads next decides anew."""


class Writes:
    """What may be written, and nothing more."""

    def __init__(self, client: Client, leads: Callable[[], bool]) -> None:
        self._client = client
        self._leads = leads

    async def create(self, resource: Resource, body: Any, *, decode: type[V], namespace: str) -> V:
        """Make an object."""
        self._check()
        return await self._client.create(resource, body, decode=decode, namespace=namespace, field_manager=MANAGER)

    async def patch(self, resource: Resource, name: str, body: Any, *, decode: type[V], namespace: str) -> V:
        """Change an object by a merge patch."""
        self._check()
        return await self._client.patch(resource, name, body, decode=decode, namespace=namespace, field_manager=MANAGER)

    async def patch_status(self, resource: Resource, name: str, body: Any, *, decode: type[V], namespace: str) -> V:
        """Change an object's status by a merge patch."""
        self._check()
        return await self._client.patch(
            resource, name, body, decode=decode, namespace=namespace, subresource="status", field_manager=MANAGER
        )

    async def apply(self, resource: Resource, name: str, body: Any, *, namespace: str) -> None:
        """Make an object be so, whatever somebody else made of our fields."""
        self._check()
        await self._client.apply(resource, name, body, namespace=namespace, field_manager=MANAGER)

    async def delete(self, resource: Resource, store: Store[T], key: Key, uid: str, *, decode: type[T]) -> None:
        """Delete exactly this object, and have its store know; one that is gone is no failure."""
        self._check()
        namespace, name = key
        try:
            left = await self._client.delete(resource, name, decode=decode, namespace=namespace, uid=uid)
        except (NotFound, Conflict):
            left = None
        if left is None:
            store.assume_deleted(key, uid)
        else:
            store.assume(left)

    def _check(self) -> None:
        if not self._leads():
            raise NotLeading("this replica does not lead")


def episode_patch(episode: EpisodeView, status: EpisodeStatus) -> dict[str, Any] | None:
    """What gives the Episode that status, with the ``state`` that follows from it; None: the status is the same."""
    if status == episode.status:
        return None
    status = msgspec.structs.replace(status, state=state_of(status).value)
    return status_patch(episode.status, status, episode.metadata.resource_version)


def status_patch(old: msgspec.Struct, new: msgspec.Struct, resource_version: str) -> dict[str, Any] | None:
    """What turns ``old`` into ``new``, on condition that nothing has changed since; None: they are the same."""
    difference = merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(new))
    if not difference:
        return None
    return {"metadata": {"resourceVersion": resource_version}, "status": difference}


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Fields that are new or other; those that are gone as None; lists are replaced as a whole."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


_LONGEST_SECONDS = 60.0


class ProgressBudget:
    """So many writes a second, and those of one second saved up."""

    def __init__(self, qps: float, clock: Clock) -> None:
        self._qps = qps
        self._clock = clock
        self._saved = max(1.0, qps)
        self._counted = clock.monotonic()
        self._turn = clock.monotonic()

    def allows(self) -> bool:
        """Whether one may be made now; it counts as made."""
        now = self._clock.monotonic()
        self._saved = min(max(1.0, self._qps), self._saved + (now - self._counted) * self._qps)
        self._counted = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def until_turn(self) -> float:
        """In how many seconds one that was refused may ask again: each in a turn of its own, not all at once."""
        now = self._clock.monotonic()
        self._turn = min(max(self._turn, now) + 1.0 / self._qps, now + _LONGEST_SECONDS)
        return self._turn - now
