"""Writes to the API server, each only while this replica leads.

Two replicas that both believe to lead would make two pods for one attempt. So leadership is checked before every single
write and not once per decision.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from dgym.api import API_VERSION, SET_LABEL, EpisodeStatus, label_value
from dgym.kube import AlreadyExists, Client, Clock, Conflict, Key, NotFound, Object, Priority, Resource, Store
from dgym_operator.controllers import with_derived
from dgym_operator.objects import MANAGED_BY, EpisodeSetView, EpisodeView, SandboxPoolView, WatchedObject

T = TypeVar("T", bound=Object)
V = TypeVar("V")
C = TypeVar("C", bound=WatchedObject)
W = TypeVar("W", EpisodeSetView, SandboxPoolView)
MANAGER = "dgym-operator"


class NotLeading(Exception):
    """This replica does not hold the Lease; the next leader decides again."""


class Writes:
    """The writes of the leader, by merge patch unless said otherwise."""

    def __init__(self, client: Client, leads: Callable[[], bool]) -> None:
        self._client = client
        self._leads = leads
        self._stopped = False

    def stop(self) -> None:
        """Refuse all writes from now on; those in flight are not affected."""
        self._stopped = True

    async def create(self, resource: Resource, body: Any, *, decode: type[V], namespace: str) -> V:
        """Create an object."""
        self._check()
        return await self._client.create(resource, body, decode=decode, namespace=namespace, field_manager=MANAGER)

    async def create_controlled(
        self, resource: Resource, body: Any, controller: str, *, decode: type[C], namespace: str
    ) -> C:
        """Create an object, or return the one that an earlier call has made for the ``controller`` with this UID.

        Raises:
            AlreadyExists: Another object has its name.
        """
        try:
            return await self.create(resource, body, decode=decode, namespace=namespace)
        except AlreadyExists:
            found = await self._client.get(resource, body["metadata"]["name"], decode=decode, namespace=namespace)
            if not found.is_controlled_by(controller):
                raise
            return found

    async def patch(self, resource: Resource, name: str, body: Any, *, decode: type[V], namespace: str) -> V:
        """Patch an object."""
        self._check()
        return await self._client.patch(resource, name, body, decode=decode, namespace=namespace, field_manager=MANAGER)

    async def patch_status(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        decode: type[V],
        namespace: str,
        priority: Priority = Priority.UPDATE,
    ) -> V:
        """Patch an object's status."""
        self._check()
        return await self._client.patch(
            resource,
            name,
            body,
            decode=decode,
            namespace=namespace,
            subresource="status",
            field_manager=MANAGER,
            priority=priority,
        )

    async def replace_status(
        self, resource: Resource, store: Store[W], item: W, status: msgspec.Struct, *, decode: type[W]
    ) -> W:
        """Write the object's status if it has changed, conditional on its version, and update its store."""
        metadata = item.metadata
        patch = status_patch(item.status, status, metadata.resource_version)
        if patch is None:
            return item
        written = await self.patch_status(resource, metadata.name, patch, decode=decode, namespace=metadata.namespace)
        store.assume(written)
        return written

    async def apply(self, resource: Resource, name: str, body: Any, *, decode: type[V], namespace: str) -> V:
        """Apply an object on the server side, and take over its fields from other managers."""
        self._check()
        applied, _ = await self._client.apply(
            resource, name, body, decode=decode, namespace=namespace, field_manager=MANAGER
        )
        return applied

    async def delete(
        self,
        resource: Resource,
        store: Store[T],
        key: Key,
        uid: str,
        *,
        decode: type[T],
        last: Callable[[T], T] | None = None,
    ) -> None:
        """Delete exactly this object and update its store; an object that is gone is no failure.

        With ``last`` an object that is gone stays in the store, as that makes it, until the watch shows its end.
        """
        self._check()
        namespace, name = key
        try:
            left = await self._client.delete(resource, name, decode=decode, namespace=namespace, uid=uid)
        except NotFound:
            left = None
        except Conflict:
            # Another object has the name by now, unless the conflict is one that passes.
            if await self._exists(resource, key, uid, decode=decode):
                raise
            left = None
        if left is not None:
            store.assume(left)
        elif last is not None:
            store.assume_ended(key, uid, last)
        else:
            store.assume_deleted(key, uid)

    async def _exists(self, resource: Resource, key: Key, uid: str, *, decode: type[T]) -> bool:
        namespace, name = key
        try:
            found = await self._client.get(resource, name, decode=decode, namespace=namespace)
        except NotFound:
            return False
        return found.metadata.uid == uid

    def _check(self) -> None:
        if self._stopped or not self._leads():
            raise NotLeading("this replica does not lead")


def episode_patch(episode: EpisodeView, status: EpisodeStatus, now: datetime) -> dict[str, Any] | None:
    """The patch that sets the Episode's status, with the fields that are derived from it; None: no change."""
    if status == episode.status:
        return None
    return status_patch(episode.status, with_derived(status, now), episode.metadata.resource_version)


def status_patch(old: msgspec.Struct, new: msgspec.Struct, resource_version: str) -> dict[str, Any] | None:
    """The patch from ``old`` to ``new``, conditional on the resourceVersion; None: no change."""
    difference = merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(new))
    if not difference:
        return None
    return {"metadata": {"resourceVersion": resource_version}, "status": difference}


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A JSON merge patch: new and changed fields, and None for removed ones; lists are replaced as a whole."""
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
    """The budget of writes that only show progress, a share of the API server for the whole cluster.

    A write beyond the budget is not awaited but decided again later, by then possibly merged with others.
    """

    def __init__(self, qps: float, clock: Clock) -> None:
        self._qps = qps
        self._clock = clock
        self._saved = max(1.0, qps)
        self._counted = clock.monotonic()
        self._turn = clock.monotonic()

    def allows(self) -> bool:
        """Take one write from the budget; returns whether there was one."""
        now = self._clock.monotonic()
        self._saved = min(max(1.0, self._qps), self._saved + (now - self._counted) * self._qps)
        self._counted = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def until_turn(self) -> float:
        """Seconds until a deferred write may try again: each in a turn of its own, not all at once."""
        now = self._clock.monotonic()
        self._turn = min(max(self._turn, now) + 1.0 / self._qps, now + _LONGEST_SECONDS)
        return self._turn - now


def controller_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """The owner reference of an object that an Episode or EpisodeSet controls, and that is deleted with its owner."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def set_metadata(episode_set: EpisodeSetView, name: str) -> dict[str, Any]:
    """The metadata of an object that the EpisodeSet controls."""
    metadata = episode_set.metadata
    return {
        "name": name,
        "labels": {**MANAGED_BY, SET_LABEL: label_value(metadata.name)},
        "ownerReferences": [controller_reference("EpisodeSet", metadata.name, metadata.uid)],
    }
