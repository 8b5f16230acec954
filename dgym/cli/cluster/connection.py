"""Requests to the API server, and nothing of what they mean."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from dgym.cli.cluster.access import Access, load_access
from dgym.cli.cluster.errors import ApiStatus, ClusterError, refusal

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 240
_PAGE = 500
_PAUSES = 5
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


T = TypeVar("T")


class WatchEnded(Exception):
    """A watch ended, as all do; list and watch again."""


class Cluster:
    """One session with one cluster; ``namespace`` is the one that commands work in."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True, limit=32),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=CONNECT_SECONDS),
        )
        self._header: str | None = None
        self.namespace = access.namespace
        self.context = access.context

    @classmethod
    async def connect(cls, context: str | None = None, namespace: str | None = None) -> Self:
        """The cluster that the kubeconfig names."""
        cluster = cls(await load_access(context, namespace))
        cluster._header = await cluster._access.authorization()
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **params: str) -> bytes:
        """The body of one object, or of whatever is there."""
        return (await self._call("GET", path, params=params))[1]

    async def list(self, path: str, **params: str) -> tuple[list[msgspec.Raw], str]:
        """All objects of a collection, page by page, and the resourceVersion to watch from."""
        items: list[msgspec.Raw] = []
        more = ""
        while True:
            token = {"continue": more} if more else {}
            page = self.decode(await self.get(path, limit=str(_PAGE), **params, **token), _Page)
            items += page.items or []
            more = page.metadata.more
            if not more:
                return items, page.metadata.resource_version

    async def apply(self, path: str, manifest: Mapping[str, Any], *, dry_run: bool = False) -> tuple[bool, bytes]:
        """Server-side apply, whoever owned the fields before; whether the object is new, and the object."""
        params = {"fieldManager": "dgym", "fieldValidation": "Strict", "force": "true"}
        params |= {"dryRun": "All"} if dry_run else {}
        body = msgspec.json.encode(manifest)
        status, answer = await self._call("PATCH", path, params=params, body=body, content_type=_APPLY)
        return status == 201, answer

    async def patch(self, path: str, change: Mapping[str, Any]) -> bytes:
        """Change a few fields."""
        body = msgspec.json.encode(change)
        return (await self._call("PATCH", path, params={"fieldManager": "dgym"}, body=body, content_type=_MERGE))[1]

    async def watch(self, path: str, version: str, **params: str) -> AsyncGenerator[tuple[str, msgspec.Raw], None]:
        """Type and object of every change after ``version``.

        Raises:
            WatchEnded: After some minutes, or when the version is too old.
        """
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS), **params}
        async with contextlib.aclosing(self.lines(path, silence=WATCH_SECONDS + 30.0, **params)) as lines:
            async for line in lines:
                event = self.decode(line, _Event)
                if event.type == "ERROR":
                    raise WatchEnded(self.decode(event.object, ApiStatus).message)
                yield event.type, event.object
        raise WatchEnded("in time")

    async def lines(self, path: str, *, silence: float, **params: str) -> AsyncGenerator[bytes, None]:
        """The lines of an answer as they come; nothing for longer than ``silence`` ends it with an error."""
        bounds = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=silence)
        async with self._response("GET", path, params=params, bounds=bounds) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line
            if rest:
                yield rest

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, protocol: str, **params: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a subresource of a pod."""
        try:
            async with self._session.ws_connect(
                self._access.server + path,
                params=params,
                protocols=(protocol,),
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=5.0),
                **self._options(),
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(error.status, b"", method="GET", path=path, context=self.context) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def decode(self, body: bytes | msgspec.Raw, type_: type[T]) -> T:
        """An answer as a struct."""
        try:
            return msgspec.json.decode(body, type=type_)
        except msgspec.MsgspecError as error:
            server = self._access.server
            raise ClusterError(f"{server} answers what no API server does ({error}); see the kubeconfig") from error

    async def _call(
        self, method: str, path: str, *, params: Mapping[str, str], body: bytes | None = None, content_type: str = ""
    ) -> tuple[int, bytes]:
        async with self._response(method, path, params=params, body=body, content_type=content_type) as response:
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: bytes | None = None,
        content_type: str = "",
        bounds: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        options = {**self._options(), **({"timeout": bounds} if bounds is not None else {})}
        if content_type:
            options["headers"] = {**options["headers"], "Content-Type": content_type}
        url = self._access.server + path
        renewed, pauses = False, _PAUSES
        try:
            while True:
                async with self._session.request(method, url, params=params, data=body, **options) as response:
                    if response.status == 401 and not renewed:
                        # Tokens of plugins live for minutes, commands that watch for hours.
                        renewed = True
                        self._header = await self._access.authorization()
                        options["headers"] = {**options["headers"], **self._authorization()}
                    elif response.status == 429 and pauses:
                        # Nothing was done: the server only asks for patience.
                        pauses -= 1
                        await asyncio.sleep(_pause(response.headers.get("Retry-After", "")))
                    elif response.status >= 400:
                        answer = await response.read()
                        raise refusal(response.status, answer, method=method, path=path, context=self.context)
                    else:
                        try:
                            yield response
                        finally:
                            _abandon(response)
                        return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": self._header} if self._header else {}

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"headers": self._authorization(), "proxy": self._access.proxy}
        if self._access.server_hostname:
            options["server_hostname"] = self._access.server_hostname
        return options

    def _unreachable(self, error: Exception) -> ClusterError:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
        return ClusterError(
            f"the cluster of context '{self.context}' cannot be reached at {self._access.server}: {why}; see whether it"
            " runs (kubectl cluster-info), or choose another with --context"
        )


def _abandon(response: aiohttp.ClientResponse) -> None:
    """Drop the connection of an answer that was not read to its end: its polite end would outlive the command."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _pause(text: str) -> float:
    return min(10.0, float(text)) if text.isdecimal() else 1.0


class _ListMeta(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw
