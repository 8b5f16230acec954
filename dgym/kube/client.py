"""Requests to the API server: verbs on resources, bytes decoded straight into the struct the caller names.

Nothing is repeated that may have been carried out, unless once more does no harm; everything else is the caller's to
decide, who will look at the world again.
"""

from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from dgym.kube.auth import Access
from dgym.kube.calling import Caller, Observe
from dgym.kube.clock import Clock
from dgym.kube.errors import ConnectionLost, Forbidden, ServerUnavailable, TooManyRequests
from dgym.kube.reading import Reader, build, decoded, given
from dgym.kube.resources import Resource
from dgym.kube.throttle import Outcome, SlowStart, TokenBucket
from dgym.kube.transport import Transport

V = TypeVar("V")


class PatchType(StrEnum):
    """How the body of a PATCH is meant."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client(Reader):
    """One session with one API server; an asynchronous context manager.

    Args:
        access: Where it is and who we are.
        qps: Writes a second; reads, leases and Events have their own measure.
        burst: Writes saved up.
        clock: For waits between tries.
        random: For their jitter.
        observe: Told of every request, for metrics.
        timeout: Seconds until an answer must be complete.
        user_agent: As audit logs show it.
    """

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        random: Random,
        qps: float = 50.0,
        burst: int = 100,
        observe: Observe | None = None,
        timeout: float = 30.0,
        user_agent: str = "dgym-operator",
    ) -> None:
        self.namespace = access.namespace
        super().__init__(
            Caller(
                Transport(access, user_agent=user_agent, timeout=timeout),
                bucket=TokenBucket(qps=qps, burst=burst, clock=clock),
                clock=clock,
                random=random,
                observe=observe,
            )
        )
        self._creates = SlowStart()

    async def __aenter__(self) -> Self:
        await self._caller.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._caller.close()

    async def create(
        self,
        resource: Resource,
        body: Any,
        *,
        decode: type[V],
        namespace: str | None = None,
        field_manager: str = "",
        throttle: bool = True,
    ) -> V:
        """Make the object. A field that its schema does not have is refused, never dropped in silence.

        Raises:
            BadRequest: It has such a field.
            AlreadyExists: The name is taken, perhaps by an earlier try of ours: compare the owner.
        """
        parameters = given(fieldManager=field_manager, fieldValidation="Strict")
        request = build("POST", resource.url(namespace), parameters, body=body)
        slot: AbstractAsyncContextManager[Outcome] = nullcontext(Outcome())
        if throttle:
            slot = self._creates.slot((resource, namespace))
        async with slot as outcome:
            try:
                answer = await self._caller.call("create", resource, request, repeatable=False, throttle=throttle)
            except (Forbidden, TooManyRequests, ServerUnavailable, ConnectionLost):
                outcome.refused()
                raise
        return decoded(answer, decode)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        decode: type[V],
        namespace: str | None = None,
        kind: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str = "",
        force: bool = False,
        throttle: bool = True,
    ) -> V:
        """Change the object. ``metadata.resourceVersion`` in a merge patch makes it conditional.

        Raises:
            Conflict: The object has changed since; nothing was written.
        """
        parameters = given(fieldManager=field_manager, force="true" if force else "")
        url = resource.url(namespace, name, subresource)
        request = build("PATCH", url, parameters, body=body, content_type=kind)
        repeatable = kind is not PatchType.JSON
        return decoded(
            await self._caller.call("patch", resource, request, repeatable=repeatable, throttle=throttle), decode
        )

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        decode: type[V],
        namespace: str | None = None,
        subresource: str | None = None,
        throttle: bool = True,
    ) -> V:
        """Put the whole object; with its ``resourceVersion``, only if it has not changed since."""
        request = build("PUT", resource.url(namespace, name, subresource), body=body)
        return decoded(await self._caller.call("update", resource, request, repeatable=True, throttle=throttle), decode)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        decode: type[V],
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
        grace_seconds: int | None = None,
        throttle: bool = True,
    ) -> V | None:
        """Delete the object, given a ``uid`` only that one; what lingers of it, or None if the server shows nothing.

        Raises:
            NotFound: It is gone already.
            Conflict: Another object has the name, or another version: nothing was deleted.
        """
        preconditions = given(uid=uid or "", resourceVersion=resource_version or "")
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        request = build("DELETE", resource.url(namespace, name), body=options)
        answer = await self._caller.call("delete", resource, request, repeatable=uid is not None, throttle=throttle)
        return None if decoded(answer, _Kind).kind == "Status" else decoded(answer, decode)


class _Kind(msgspec.Struct):
    kind: str = ""
