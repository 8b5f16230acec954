"""Reads: one object, all of them in pages, and what becomes of them.

``decode`` names the struct that the bytes go into; ``bytes`` hands out the answer as it came.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from dgym.kube.calling import Caller
from dgym.kube.errors import UnreadableAnswer
from dgym.kube.listing import Page, PageDecoder
from dgym.kube.resources import Resource
from dgym.kube.transport import Answer, Lines, Request

V = TypeVar("V")
PAGE_SIZE = 500
_FIRST_PAGE = 50
_PAGE_BYTES = 8 * 1024**2
"""Pages are made as large as fits, after the mean size of the objects of the page before."""


class Reader:
    """The verbs that change nothing. They are not throttled, and repeated as often as helps."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

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
        request = build("GET", resource.url(namespace, name, subresource))
        return decoded(await self._caller.call("get", resource, request, repeatable=True), decode)

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
        parameters = given(labelSelector=label_selector, fieldSelector=field_selector)
        size, token = min(limit, _FIRST_PAGE), ""
        while True:
            asked = parameters | given(limit=str(size), **{"continue": token})
            answer = await self._caller.call(
                "list", resource, build("GET", resource.url(namespace), asked), repeatable=True
            )
            try:
                page = decoder.decode(answer.body)
            except msgspec.DecodeError as error:
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
        parameters = given(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds),
            labelSelector=label_selector,
        )
        # The server ends the stream; one that forgets is ended by us.
        request = build("GET", resource.url(namespace), parameters, timeout=timeout_seconds + silence_seconds)
        async with self._caller.stream("watch", resource, request, silence=silence_seconds) as lines:
            yield lines


def build(
    method: str,
    path: str,
    parameters: dict[str, str] | None = None,
    *,
    body: Any = None,
    content_type: str = "application/json",
    timeout: float | None = None,
) -> Request:
    """A request; whatever is not bytes yet becomes JSON."""
    if body is not None and not isinstance(body, bytes):
        body = msgspec.json.encode(body)
    return Request(
        method=method,
        path=path,
        parameters=parameters or {},
        body=body,
        content_type=content_type,
        timeout=timeout,
    )


def decoded(answer: Answer, kind: type[V]) -> V:
    """The body as that struct, or as it is."""
    if kind is bytes:
        return answer.body  # type: ignore[return-value]
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise UnreadableAnswer(str(error), status=answer.status) from error


def given(**parameters: str) -> dict[str, str]:
    """Those parameters that are not empty."""
    return {name: value for name, value in parameters.items() if value}
