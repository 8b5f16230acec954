"""Requests to the API server: verbs on resources, bytes decoded straight into the struct the caller names.

Nothing is repeated that may have been carried out, unless once more does no harm; everything else is the caller's to
decide, who will look at the world again. ``decode=bytes`` hands out the answer as it came.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from dgym_operator.kube.auth import Access
from dgym_operator.kube.calling import Caller, Observe
from dgym_operator.kube.clock import Clock
from dgym_operator.kube.errors import (
    ApiError,
    ConnectionLost,
    Forbidden,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
)
from dgym_operator.kube.listing import Page, PageDecoder
from dgym_operator.kube.resources import Resource
from dgym_operator.kube.throttle import Outcome, SlowStart, TokenBucket
from dgym_operator.kube.transport import Answer, Lines, Request, Transport

V = TypeVar("V")
PAGE_SIZE = 500
_FIRST_PAGE = 50
_PAGE_BYTES = 8 * 1024**2
"""Pages are made as large as fits, after the mean size of the objects of the page before."""


class PatchType(StrEnum):
    """How the body of a PATCH is meant."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
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
        self._transport = Transport(access, user_agent=user_agent)
        self._clock = clock
        bucket = TokenBucket(qps=qps, burst=burst, clock=clock)
        self._caller = Caller(self._transport, bucket=bucket, clock=clock, random=random, observe=observe)
        self._creates = SlowStart()
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    # Reading

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        decode: type[V],
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> V:
        """The object as it is now."""
        request = self._request("GET", resource.url(namespace, name, subresource))
        return _decoded(await self._caller.call("get", resource, request, repeatable=True), decode)

    async def pages(
        self,
        resource: Resource,
        *,
        decode: type[V],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE_SIZE,
    ) -> AsyncIterator[Page[V]]:
        """All objects, page by page, all as of one moment: ``page.meta.resource_version``, to watch from.

        Raises:
            Expired: It took too long between two pages; begin again.
        """
        decoder = PageDecoder(decode)
        parameters = _given(labelSelector=label_selector, fieldSelector=field_selector)
        size, token = min(limit, _FIRST_PAGE), ""
        while True:
            asked = parameters | _given(limit=str(size), **{"continue": token})
            answer = await self._caller.call(
                "list", resource, self._request("GET", resource.url(namespace), asked), repeatable=True
            )
            page = decoder.decode(answer.body)
            yield page
            token = page.meta.next
            if not token:
                return
            mean = max(1, len(answer.body) // max(1, len(page.items) + len(page.unreadable)))
            size = max(1, min(limit, _PAGE_BYTES // mean))

    async def list(
        self,
        resource: Resource,
        *,
        decode: type[V],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[V]:
        """All objects that fit the struct."""
        found: list[V] = []
        async for page in self.pages(
            resource, decode=decode, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        ):
            found.extend(page.items)
        return found

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str = "",
        timeout_seconds: int,
        silence_seconds: float,
    ) -> AsyncIterator[Lines]:
        """Events from that version on, a line each, undecoded. Entered once the server has agreed to send them."""
        parameters = _given(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds),
            labelSelector=label_selector,
        )
        # The server ends the stream; one that forgets is ended by us.
        request = self._request("GET", resource.url(namespace), parameters, timeout=timeout_seconds + silence_seconds)
        started = self._clock.monotonic()
        stream = self._transport.stream(request, silence=silence_seconds)
        try:
            lines = await stream.__aenter__()
        except ApiError as error:
            self._caller.tell("watch", resource, error.status, started)
            if isinstance(error, Unauthorized):
                self._transport.expire_credentials()
            raise
        self._caller.tell("watch", resource, 200, started)
        try:
            yield lines
        finally:
            await stream.__aexit__(None, None, None)

    # Writing

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
        """Make the object.

        Raises:
            AlreadyExists: The name is taken, perhaps by an earlier try of ours: compare the owner.
        """
        parameters = _given(fieldManager=field_manager)
        request = self._request("POST", resource.url(namespace), parameters, body=body)
        slot: AbstractAsyncContextManager[Outcome] = nullcontext(Outcome())
        if throttle:
            slot = self._creates.slot((resource, namespace))
        async with slot as outcome:
            try:
                answer = await self._caller.call("create", resource, request, repeatable=False, throttle=throttle)
            except (Forbidden, TooManyRequests, ServerUnavailable, ConnectionLost):
                outcome.refused()
                raise
        return _decoded(answer, decode)

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
        parameters = _given(fieldManager=field_manager, force="true" if force else "")
        url = resource.url(namespace, name, subresource)
        request = self._request("PATCH", url, parameters, body=body, content_type=kind)
        repeatable = kind is not PatchType.JSON
        return _decoded(
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
        request = self._request("PUT", resource.url(namespace, name, subresource), body=body)
        return _decoded(
            await self._caller.call("update", resource, request, repeatable=True, throttle=throttle), decode
        )

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
        preconditions = _given(uid=uid or "", resourceVersion=resource_version or "")
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        request = self._request("DELETE", resource.url(namespace, name), body=options)
        answer = await self._caller.call("delete", resource, request, repeatable=uid is not None, throttle=throttle)
        return None if msgspec.json.decode(answer.body, type=_Kind).kind == "Status" else _decoded(answer, decode)

    # How

    def _request(
        self,
        method: str,
        path: str,
        parameters: dict[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Request:
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body)
        return Request(
            method=method,
            path=path,
            parameters=parameters or {},
            body=body,
            content_type=content_type,
            timeout=timeout if timeout is not None else self._timeout,
        )


class _Kind(msgspec.Struct):
    kind: str = ""


def _decoded(answer: Answer, kind: type[V]) -> V:
    if kind is bytes:
        return answer.body  # type: ignore[return-value]
    return msgspec.json.decode(answer.body, type=kind)


def _given(**parameters: str) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}
