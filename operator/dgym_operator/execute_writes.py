"""Writes to the API server, each only while this replica leads.

Two replicas that both believe to lead would make two pods for one attempt; so the lease is looked at before every
single write, not once per decision.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from dgym_operator.kube import Client, PatchType, Resource

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

    async def delete(self, resource: Resource, name: str, *, decode: type[V], namespace: str, uid: str) -> V | None:
        """Delete exactly this object; as it lingers on, or None."""
        self._check()
        return await self._client.delete(resource, name, decode=decode, namespace=namespace, uid=uid)

    def _check(self) -> None:
        if not self._leads():
            raise NotLeading("this replica does not lead")
