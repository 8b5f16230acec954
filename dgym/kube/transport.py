"""One HTTP request to the API server, and nothing cleverer: bytes out, bytes or an ``ApiError`` back.

The only module that imports aiohttp. What is repeated, slowed down or decoded is decided above it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import msgspec
from yarl import URL

from dgym.kube.auth import Access, AccessError
from dgym.kube.errors import ConnectionLost, Unauthorized, error_from_answer

CONNECT_SECONDS = 10.0
LINE_LIMIT = 32 * 1024**2
"""Bytes of one watch event; etcd takes objects of at most 1.5 MB, so a longer line is not a watch."""
_KEEPALIVE_SECONDS = 60.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ``timeout`` is the deadline of the whole answer, None: as usual."""

    method: str
    path: str
    parameters: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    timeout: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """A success."""

    status: int
    body: bytes


class Lines:
    """The lines of a stream as they come. What follows the last newline is not a line: the stream was cut."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._ready: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._held = 0

    def __aiter__(self) -> "Lines":
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            with _told_as_lost():
                chunk = await self._response.content.readany()
            if not chunk:
                raise StopAsyncIteration
            self._take(chunk)
        return self._ready.popleft()

    def _take(self, chunk: bytes) -> None:
        head, newline, tail = chunk.partition(b"\n")
        self._rest.append(head)
        self._held += len(head)
        if self._held > LINE_LIMIT:
            raise ConnectionLost(f"a line of more than {LINE_LIMIT} bytes is not an event of a watch")
        if newline:
            self._ready.append(b"".join(self._rest))
            *lines, rest = tail.split(b"\n")
            self._ready.extend(line for line in lines if line)
            self._rest, self._held = [rest], len(rest)


class Transport:
    """The session. Connections are not limited here: whoever calls has a bounded number of workers."""

    def __init__(self, access: Access, *, user_agent: str, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; the event loop must run."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Compression would cost the API server more than the network within a cluster gains.
            headers={"User-Agent": self._user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def expire_credentials(self) -> None:
        """The last ones were not taken."""
        self._access.credentials.expire()

    async def send(self, request: Request) -> Answer:
        """The answer, complete within the deadline.

        Raises:
            ApiError: The server refused, or there was no complete answer.
        """
        limits = aiohttp.ClientTimeout(total=request.timeout or self._timeout, sock_connect=CONNECT_SECONDS)
        with _told_as_lost():
            async with await self._respond(request, limits) as response:
                body = await response.read()
                if response.status >= 300:
                    raise error_from_answer(response.status, body, response.headers)
                return Answer(response.status, body)

    @asynccontextmanager
    async def stream(self, request: Request, *, silence: float) -> AsyncIterator[Lines]:
        """The lines of an answer that goes on; silent for longer than ``silence`` seconds, it is lost."""
        limits = aiohttp.ClientTimeout(
            total=request.timeout or self._timeout, sock_connect=CONNECT_SECONDS, sock_read=silence
        )
        with _told_as_lost():
            response = await self._respond(request, limits)
        try:
            if response.status >= 300:
                with _told_as_lost():
                    body = await response.read()
                raise error_from_answer(response.status, body, response.headers)
            yield Lines(response)
        finally:
            _abort(response)
            response.close()

    async def _respond(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not open: use it as an asynchronous context manager")
        access = self._access
        headers = {"Content-Type": request.content_type} if request.body is not None else {}
        if authorization := await self._authorization(request.timeout or self._timeout):
            headers["Authorization"] = authorization
        return await self._session.request(
            request.method,
            URL(access.server + request.path, encoded=True).update_query(request.parameters),
            data=request.body,
            headers=headers,
            ssl=access.tls if access.tls is not None else True,
            server_hostname=access.server_hostname,
            proxy=access.proxy,
            timeout=limits,
            allow_redirects=False,
        )

    async def _authorization(self, deadline: float) -> str | None:
        try:
            async with asyncio.timeout(deadline):
                return await self._access.credentials.header()
        except AccessError as error:
            raise Unauthorized(str(error), status=401) from error


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drop a stream's connection: a farewell by TLS would wait for a server that still sends, beyond our own end."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is not None:
        transport.abort()


@contextmanager
def _told_as_lost() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ConnectionLost("no answer, or no sign of life, within the deadline") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error
