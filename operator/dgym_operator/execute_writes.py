"""Writes to the API server, each only while this replica leads.

Two replicas that both believe to lead would make two pods for one attempt; so the lease is looked at before every
single write, not once per decision.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from dgym.kube import Client, Conflict, Key, NotFound, Object, PatchType, Resource, Store

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
        await self._client.patch(
            resource,
            name,
            body,
            decode=bytes,
            namespace=namespace,
            kind=PatchType.APPLY,
            field_manager=MANAGER,
            force=True,
        )

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
