"""Requests to the API server: verbs on resources, responses decoded into the struct that the caller names.

``decode`` names that struct; ``bytes`` returns the body as it came. A request that may have taken effect is repeated
only where a second time does no harm. Everything else is left to the caller, who reconciles from the observed state.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.kube.auth import Access
from dgym.kube.errors import ConnectionLost, Forbidden, ServerUnavailable, TooManyRequests, UnreadableAnswer
from dgym.kube.resources import PODS, Page, PageDecoder, Resource
from dgym.kube.throttle import Clock, Outcome, Priority, SlowStart, TokenBucket
from dgym.kube.transport import Answer, Observe, Request, Socket, Stream, Transport

V = TypeVar("V")
PAGE_SIZE = 500
_FIRST_PAGE = 50
_PAGE_BYTES = 8 * 1024**2
"""Pages are made as large as fits, after the mean size of the objects of the page before."""

_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"


class Client:
    """One session with one API server; an asynchronous context manager.

    Reads are not throttled. Writes are, in the order of their ``priority``, unless that is None: leases and Events have
    a rate of their own.

    Args:
        access: The API server and the credentials for it.
        clock: For waits between tries.
        random: For their jitter.
        qps: Writes a second.
        burst: Writes saved up.
        resend: Whether requests that got no response, or that an overloaded server refused, are sent again where that
            does no harm. Requests refused with 429 (TooManyRequests) always are.
        observe: Called for every request, for metrics.
        timeout: Seconds until a response must be complete.
        user_agent: As audit logs show it.
        transport: Makes the transport; tests without a network pass their own.
    """

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        random: Random,
        qps: float = 50.0,
        burst: int = 100,
        resend: bool = True,
        observe: Observe | None = None,
        timeout: float = 30.0,
        user_agent: str = "dgym-operator",
        transport: Callable[..., Transport] = Transport,
    ) -> None:
        self.access = access
        self.namespace = access.namespace
        self._bucket = TokenBucket(qps=qps, burst=burst, clock=clock)
        self._transport = transport(
            access,
            bucket=self._bucket,
            clock=clock,
            random=random,
            resend=resend,
            observe=observe,
            user_agent=user_agent,
            timeout=timeout,
        )
        self._creates = SlowStart()

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    @property
    def throttle_seconds(self) -> float:
        """Seconds that writes have waited for ``qps``, added up."""
        return self._bucket.waited_seconds

    # Reads

    async def get(self, resource: Resource, name: str, *, decode: type[V], namespace: str | None = None) -> V:
        """Return the object as it is now."""
        request = _build("GET", resource.url(namespace, name))
        return _decoded(await self._transport.call("get", resource, request, repeatable=True), decode)

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
            query = parameters | _given(limit=str(size), **{"continue": token})
            answer = await self._transport.call(
                "list", resource, _build("GET", resource.url(namespace), query), repeatable=True
            )
            try:
                page = decoder.decode(answer.body)
            except DECODE_ERRORS as error:
                raise UnreadableAnswer(str(error), status=answer.status) from error
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
        """Return all objects that fit the struct."""
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
        field_selector: str = "",
        timeout_seconds: int,
        silence_seconds: float,
    ) -> AsyncIterator[Stream]:
        """Events from that version on, a line each, undecoded. Entered once the server has agreed to send them."""
        parameters = _given(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        # The server ends the stream at the time agreed; a server that does not is cut off.
        request = _build("GET", resource.url(namespace), parameters, timeout=timeout_seconds + silence_seconds)
        async with self._transport.stream("watch", resource, request, silence=silence_seconds) as stream:
            yield stream

    async def pod_log(
        self, name: str, *, namespace: str, container: str, follow: bool, silence_seconds: float
    ) -> AsyncIterator[bytes]:
        """The log of a container in pieces; with ``follow``, until the container ends."""
        parameters = _given(container=container, follow="true" if follow else "")
        request = _build("GET", PODS.url(namespace, name, "log"), parameters)
        async with self._transport.stream("get", PODS, request, silence=silence_seconds) as stream:
            while piece := await stream.read():
                yield piece

    @asynccontextmanager
    async def websocket(
        self, resource: Resource, name: str, subresource: str, *, namespace: str, protocol: str, **parameters: str
    ) -> AsyncIterator[Socket]:
        """A WebSocket to a subresource."""
        request = _build("GET", resource.url(namespace, name, subresource), parameters)
        async with self._transport.websocket("connect", resource, request, protocol) as socket:
            yield socket

    # Writes

    async def create(
        self,
        resource: Resource,
        body: Any,
        *,
        decode: type[V],
        namespace: str | None = None,
        field_manager: str = "",
        priority: Priority | None = Priority.CREATE,
    ) -> V:
        """Create the object. A field that its schema does not have is refused, never dropped in silence.

        Raises:
            BadRequest: It has such a field.
            AlreadyExists: The name is taken, perhaps by an earlier try of ours: compare the owner.
        """
        parameters = _given(fieldManager=field_manager, fieldValidation="Strict")
        request = _build("POST", resource.url(namespace), parameters, body=body)
        slot: AbstractAsyncContextManager[Outcome] = nullcontext(Outcome())
        if priority is not None:
            slot = self._creates.slot((resource, namespace))
        async with slot as outcome:
            try:
                answer = await self._transport.call("create", resource, request, repeatable=False, priority=priority)
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
        subresource: str | None = None,
        field_manager: str = "",
        priority: Priority | None = Priority.UPDATE,
    ) -> V:
        """Change the object by a JSON merge patch; ``metadata.resourceVersion`` in it makes the change conditional.

        Raises:
            Conflict: The object has changed since; nothing was written.
        """
        url = resource.url(namespace, name, subresource)
        request = _build("PATCH", url, _given(fieldManager=field_manager), body=body, content_type=_MERGE_PATCH)
        return _decoded(
            await self._transport.call("patch", resource, request, repeatable=True, priority=priority), decode
        )

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        decode: type[V],
        field_manager: str,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> tuple[V, bool]:
        """Apply the object on the server, taking over fields that others own; returns it, and whether it was created.

        Raises:
            BadRequest: It has a field that its schema does not have.
        """
        parameters = {"fieldManager": field_manager, "fieldValidation": "Strict", "force": "true"}
        parameters |= {"dryRun": "All"} if dry_run else {}
        request = _build("PATCH", resource.url(namespace, name), parameters, body=body, content_type=_APPLY_PATCH)
        answer = await self._transport.call("patch", resource, request, repeatable=True, priority=Priority.UPDATE)
        return _decoded(answer, decode), answer.status == 201

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        decode: type[V],
        namespace: str | None = None,
        uid: str | None = None,
        priority: Priority | None = Priority.DELETE,
    ) -> V | None:
        """Delete the object; given a ``uid``, only the object of that UID.

        Returns the object while finalizers or its grace period hold it, else None.

        Raises:
            NotFound: It is gone already.
            Conflict: Another object has the name: nothing was deleted.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        request = _build("DELETE", resource.url(namespace, name), body=options)
        answer = await self._transport.call("delete", resource, request, repeatable=uid is not None, priority=priority)
        return None if _decoded(answer, _Kind).kind == "Status" else _decoded(answer, decode)


class _Kind(msgspec.Struct):
    kind: str = ""


def _build(
    method: str,
    path: str,
    parameters: dict[str, str] | None = None,
    *,
    body: Any = None,
    content_type: str = "application/json",
    timeout: float | None = None,
) -> Request:
    return Request(
        method=method,
        path=path,
        parameters=parameters or {},
        body=None if body is None else msgspec.json.encode(body),
        content_type=content_type,
        timeout=timeout,
    )


def _decoded(answer: Answer, kind: type[V]) -> V:
    if kind is bytes:
        return answer.body  # type: ignore[return-value]
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except DECODE_ERRORS as error:
        raise UnreadableAnswer(str(error), status=answer.status) from error


def _given(**parameters: str) -> dict[str, str]:
    """Those parameters that are not empty."""
    return {name: value for name, value in parameters.items() if value}
