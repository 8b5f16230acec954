"""Requests to the API server, one method per verb, and connections to ports of pods through it."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.kube._resources import (
    PODS,
    ApiError,
    ConnectionLost,
    Forbidden,
    Page,
    PageDecoder,
    PortUnreachable,
    Resource,
    ServerUnavailable,
    TooManyRequests,
    UnreadableAnswer,
)
from dgym.kube._throttle import Clock, CreateOutcome, Priority, SlowStart, TokenBucket
from dgym.kube._transport import ApiRequest, ApiResponse, ClusterAccess, Observe, Socket, Stream, Transport

V = TypeVar("V")
PAGE_SIZE = 500
_FIRST_PAGE = 50
_PAGE_BYTES = 8 * 1024**2
"""Target size of a page. The number of objects to request follows from the mean object size of the previous page."""
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 64 * 1024


class Client:
    """A client of one API server. Use it as an asynchronous context manager.

    Reads are not throttled. Writes are throttled and sent in the order of their ``priority``. A write with the priority
    None is not throttled: Leases must not wait, and Events have their own rate limit.

    Args:
        access: The API server and the credentials for it.
        clock: For waits between tries.
        random: For the jitter of these waits.
        qps: Writes per second.
        burst: Writes that may be sent at once after an idle time.
        resend: Whether idempotent requests are sent again after a lost connection or a 5xx response. Requests that were
            refused with 429 (TooManyRequests) are sent again in any case.
        observe: Called for every request, for metrics.
        timeout: Seconds until a response must be complete.
        user_agent: The User-Agent header, which audit logs show.
        transport: Creates the transport. Tests replace it to run without a network.
    """

    def __init__(
        self,
        access: ClusterAccess,
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
        """Total time in seconds that writes have waited because of ``qps``."""
        return self._bucket.waited_seconds

    # Reads

    async def get(self, resource: Resource, name: str, *, decode: type[V], namespace: str | None = None) -> V:
        """Return the object.

        Raises:
            NotFound: The object does not exist.
        """
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
        """Yield all objects, page by page.

        All pages show the collection at the same version, ``page.meta.resource_version``. A watch can start from it.

        Raises:
            Expired: Too much time passed between two pages. List again from the beginning.
        """
        decoder = PageDecoder(decode)
        parameters = _without_empty(labelSelector=label_selector, fieldSelector=field_selector)
        size, token = min(limit, _FIRST_PAGE), ""
        while True:
            query = parameters | _without_empty(limit=str(size), **{"continue": token})
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
        """Return all objects that can be decoded."""
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
        """Watch from ``resource_version`` on. Yields a stream with one undecoded event per line.

        The context is entered when the server has accepted the request.
        """
        parameters = _without_empty(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        # The server should end the stream after timeout_seconds. The deadline closes the connection if it does not.
        request = _build("GET", resource.url(namespace), parameters, timeout=timeout_seconds + silence_seconds)
        async with self._transport.stream("watch", resource, request, silence=silence_seconds) as stream:
            yield stream

    async def pod_log(
        self, name: str, *, namespace: str, container: str, follow: bool, silence_seconds: float
    ) -> AsyncIterator[bytes]:
        """Yield the log of a container in chunks. With ``follow``, new output is yielded until the container ends."""
        parameters = _without_empty(container=container, follow="true" if follow else "")
        request = _build("GET", PODS.url(namespace, name, "log"), parameters)
        async with self._transport.stream("get", PODS, request, silence=silence_seconds) as stream:
            while piece := await stream.read():
                yield piece

    @asynccontextmanager
    async def websocket(
        self, resource: Resource, name: str, subresource: str, *, namespace: str, protocol: str, **parameters: str
    ) -> AsyncIterator[Socket]:
        """Open a WebSocket to a subresource."""
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
        """Create the object and return it as the server stored it. Unknown fields are an error.

        Raises:
            BadRequest: The object has a field that is not in its schema.
            AlreadyExists: The name is taken. An earlier try may have created the object: compare the owner reference.
        """
        parameters = _without_empty(fieldManager=field_manager, fieldValidation="Strict")
        request = _build("POST", resource.url(namespace), parameters, body=body)
        slot: AbstractAsyncContextManager[CreateOutcome] = nullcontext(CreateOutcome())
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
        """Change the object with a JSON merge patch and return the new object.

        The patch is conditional if it contains ``metadata.resourceVersion``.

        Raises:
            Conflict: The object has another ``resourceVersion``. Nothing was written.
        """
        url = resource.url(namespace, name, subresource)
        request = _build("PATCH", url, _without_empty(fieldManager=field_manager), body=body, content_type=_MERGE_PATCH)
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
        """Apply the object with server-side apply, and take over fields that other managers own.

        Returns:
            The object, and whether it was created.

        Raises:
            BadRequest: The object has a field that is not in its schema.
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
        """Delete the object. If ``uid`` is given, delete it only if it has this UID.

        Returns:
            The object if its finalizers or its grace period delay the deletion, else None.

        Raises:
            NotFound: The object does not exist any more.
            Conflict: The object with this name has another UID. Nothing was deleted.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        request = _build("DELETE", resource.url(namespace, name), body=options)
        answer = await self._transport.call("delete", resource, request, repeatable=uid is not None, priority=priority)
        return None if _decoded(answer, _AnsweredKind).kind == "Status" else _decoded(answer, decode)


class _AnsweredKind(msgspec.Struct):
    kind: str = ""


def _build(
    method: str,
    path: str,
    parameters: dict[str, str] | None = None,
    *,
    body: Any = None,
    content_type: str = "application/json",
    timeout: float | None = None,
) -> ApiRequest:
    return ApiRequest(
        method=method,
        path=path,
        parameters=parameters or {},
        body=None if body is None else msgspec.json.encode(body),
        content_type=content_type,
        timeout=timeout,
    )


def _decoded(answer: ApiResponse, kind: type[V]) -> V:
    if kind is bytes:
        return answer.body  # type: ignore[return-value]
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except DECODE_ERRORS as error:
        raise UnreadableAnswer(str(error), status=answer.status) from error


def _without_empty(**parameters: str) -> dict[str, str]:
    """Return the parameters that are not empty."""
    return {name: value for name, value in parameters.items() if value}


class PortForward:
    """Forwards connections from a Unix socket to a port of a pod.

    Attributes:
        pod: Name of the pod.
        problem: The error of the last connection that failed; None if none has failed.
    """

    def __init__(self, client: Client, namespace: str, pod: str, port: int) -> None:
        self._client = client
        self._namespace = namespace
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.pod = pod
        self.problem: ApiError | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Path]:
        """Listen on a new Unix socket and yield its path. The socket is removed at the end of the context."""
        with tempfile.TemporaryDirectory(prefix="dgym-forward-") as directory:
            path = Path(directory) / "socket"
            server = await asyncio.start_unix_server(self._accept, path)
            try:
                yield path
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = self._client.websocket(
            PODS, self.pod, "portforward", namespace=self._namespace, protocol=_PROTOCOL, ports=str(self._port)
        )
        try:
            async with opening as socket:
                sending = asyncio.create_task(_send(reader, socket))
                try:
                    await self._receive(socket, writer)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except ApiError as error:
            self.problem = error
        finally:
            writer.close()

    async def _receive(self, socket: Socket, writer: asyncio.StreamWriter) -> None:
        begun: set[int] = set()
        async for message in socket.messages():
            if not message:
                continue
            channel, data = message[0], message[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel == _ERROR and data:
                text = data.decode(errors="replace").strip()
                raise PortUnreachable(f"port {self._port} of pod {self.pod} cannot be reached: {text}")
            if channel == _DATA and data:
                writer.write(data)
                await writer.drain()


async def _send(reader: asyncio.StreamReader, socket: Socket) -> None:
    with contextlib.suppress(ConnectionError, ConnectionLost):
        while data := await reader.read(_CHUNK):
            await socket.send(bytes([_DATA]) + data)
