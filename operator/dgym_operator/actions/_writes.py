"""Writes to the API server while this replica is the leader.

Leadership is checked before every write, and not once per decision. Otherwise two replicas could both act as the leader
for a while and create two pods for one attempt.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from dgym.api import API_VERSION, SET_LABEL, EpisodeStatus, label_value
from dgym.kube import AlreadyExists, Client, Clock, Conflict, InformerStore, Key, NotFound, Object, Priority, Resource
from dgym_operator.controllers import with_derived
from dgym_operator.objects import MANAGED_BY, EpisodeSetView, EpisodeView, SandboxPoolView, WatchedObject

T = TypeVar("T", bound=Object)
V = TypeVar("V")
C = TypeVar("C", bound=WatchedObject)
W = TypeVar("W", EpisodeSetView, SandboxPoolView)
MANAGER = "dgym-operator"
_PROGRESS_QPS = 20.0
_LONGEST_SECONDS = 60.0


class NotLeading(Exception):
    """This replica is not the holder of the Lease. The next leader makes the decision again."""


class Writes:
    """The writes of the leader. Patches are JSON merge patches."""

    def __init__(self, client: Client, leads: Callable[[], bool]) -> None:
        self._client = client
        self._leads = leads
        self._stopped = False

    def stop(self) -> None:
        """Refuse all writes from now on. Writes in flight are not affected."""
        self._stopped = True

    async def create(self, resource: Resource, body: Any, *, decode: type[V], namespace: str) -> V:
        """Create an object."""
        self._check()
        return await self._client.create(resource, body, decode=decode, namespace=namespace, field_manager=MANAGER)

    async def create_controlled(
        self, resource: Resource, body: Any, controller: str, *, decode: type[C], namespace: str
    ) -> C:
        """Create an object, or return the existing one if its controller has the UID ``controller``.

        Raises:
            AlreadyExists: An object of another controller has this name.
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

    async def patch_status(self, resource: Resource, item: C, body: Any, *, priority: Priority = Priority.UPDATE) -> C:
        """Patch the status of ``item``. Returns the new object."""
        self._check()
        return await self._client.patch(
            resource,
            item.metadata.name,
            body,
            decode=type(item),
            namespace=item.metadata.namespace,
            subresource="status",
            field_manager=MANAGER,
            priority=priority,
        )

    async def replace_status(self, resource: Resource, store: InformerStore[W], item: W, status: msgspec.Struct) -> W:
        """Write the object's status if it has changed, and update the store. Returns the object.

        The write fails if the object was changed since ``item`` was read.
        """
        patch = status_patch(item.status, status, item.metadata.resource_version)
        if patch is None:
            return item
        written = await self.patch_status(resource, item, patch)
        store.assume(written)
        return written

    async def apply(self, resource: Resource, name: str, body: Any, *, decode: type[V], namespace: str) -> V:
        """Apply an object with server-side apply, and take over its fields from other managers."""
        self._check()
        applied, _ = await self._client.apply(
            resource, name, body, decode=decode, namespace=namespace, field_manager=MANAGER
        )
        return applied

    async def delete(
        self,
        resource: Resource,
        store: InformerStore[T],
        key: Key,
        uid: str,
        *,
        decode: type[T],
        last: Callable[[T], T] | None = None,
    ) -> None:
        """Delete the object with this key and UID, and update its store. Succeeds if the object is already gone.

        With ``last`` an object that is gone stays in the store until the watch reports its deletion. ``last`` returns
        its state for this time.
        """
        self._check()
        namespace, name = key
        try:
            left = await self._client.delete(resource, name, decode=decode, namespace=namespace, uid=uid)
        except NotFound:
            left = None
        except Conflict:
            # Usually another object has the name now. If this object still exists, the conflict is temporary.
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
    """Return the patch that sets the Episode's status including its derived fields, or None without a change."""
    if status == episode.status:
        return None
    return status_patch(episode.status, with_derived(status, now), episode.metadata.resource_version)


def status_patch(old: msgspec.Struct, new: msgspec.Struct, resource_version: str) -> dict[str, Any] | None:
    """Return the patch from ``old`` to ``new``, conditional on the resourceVersion, or None without a change."""
    difference = merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(new))
    if not difference:
        return None
    return {"metadata": {"resourceVersion": resource_version}, "status": difference}


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON merge patch: new and changed fields, and None for removed fields. Lists are replaced as a whole."""
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


class ProgressBudget:
    """Rate limit for writes that only show progress, for the whole cluster.

    A write that exceeds the limit does not wait. It is decided again later and may then be merged with newer progress.
    """

    def __init__(self, clock: Clock, qps: float = _PROGRESS_QPS) -> None:
        self._qps = qps
        self._clock = clock
        self._saved = max(1.0, qps)
        self._counted = clock.monotonic()
        self._turn = clock.monotonic()

    def allows(self) -> bool:
        """Take one write from the budget. Returns False if the budget is used up."""
        now = self._clock.monotonic()
        self._saved = min(max(1.0, self._qps), self._saved + (now - self._counted) * self._qps)
        self._counted = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def until_turn(self) -> float:
        """Return the seconds until a deferred write may be tried again. Each caller gets a different time."""
        now = self._clock.monotonic()
        self._turn = min(max(self._turn, now) + 1.0 / self._qps, now + _LONGEST_SECONDS)
        return self._turn - now


def controller_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return the owner reference of an object that is controlled by this owner and deleted with it."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def set_metadata(episode_set: EpisodeSetView, name: str) -> dict[str, Any]:
    """Return the metadata of an object that the EpisodeSet controls."""
    metadata = episode_set.metadata
    return {
        "name": name,
        "labels": {**MANAGED_BY, SET_LABEL: label_value(metadata.name)},
        "ownerReferences": [controller_reference("EpisodeSet", metadata.name, metadata.uid)],
    }
