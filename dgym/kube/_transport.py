"""HTTP requests to the API server: throttling, deadlines, metrics and retries.

Only this module uses aiohttp. The result of a request is bytes or an ``ApiError``.

The address of the API server and the credentials come from a kubeconfig, which is found as kubectl finds it, or from
the pod's service account. Only this module imports the package ``kubernetes``. Its kubeconfig loader supports exec
plugins and OIDC. The import takes a second and 27 MB, so it happens only if there is a kubeconfig. A service account is
three files, which this module reads itself.
"""

import asyncio
import os
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from yarl import URL

from dgym.errors import DgymError, nearest
from dgym.kube._resources import (
    ApiError,
    ConnectionLost,
    Resource,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
    error_from_answer,
)
from dgym.kube._throttle import Backoff, Clock, Priority, TokenBucket

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_SECONDS = 5.0
"""Interval between two reads of a token file. A rotated token stays valid for some minutes."""
_REFRESH_SECONDS = 60.0
"""Interval between two fetches of credentials from a plugin or an identity provider."""


class AccessError(DgymError):
    """The kubeconfig or its context does not exist, or the credentials cannot be read."""


class Credentials:
    """The source of the Authorization header. This base class has a fixed header or None. Subclasses renew it."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    async def header(self) -> str | None:
        """Return the current value of the header, or None without a header (a client certificate may be used)."""
        return self._header

    def expire(self) -> None:
        """Renew the header before the next request, because the server refused the current one."""


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """An API server and the credentials for it.

    Attributes:
        server: URL without a trailing slash.
        credentials: Source of the Authorization header.
        context: Name of the kubeconfig's context; ``in-cluster`` for a service account.
        tls: None for plain HTTP.
        server_hostname: Name to check the server's certificate against, if it differs from the URL's host.
        proxy: URL of an HTTP proxy.
        namespace: Default namespace of the context or of the pod.
        in_cluster: True if the access comes from this pod's service account.
    """

    server: str
    credentials: Credentials
    context: str = ""
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None
    namespace: str = "default"
    in_cluster: bool = False


class TokenFile(Credentials):
    """A token in a file, which the kubelet replaces every hour or so."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._checked = float("-inf")

    async def header(self) -> str | None:
        """Return the header with the newest token."""
        if self._clock() - self._checked >= _REREAD_SECONDS:
            await asyncio.to_thread(self._read)
        return self._header

    def expire(self) -> None:
        """Read the file at the next request, even if its modification time has not changed."""
        self._checked, self._stamp = float("-inf"), None

    def _read(self) -> None:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._header = f"Bearer {self._path.read_text(encoding='ascii').strip()}"
                self._stamp = stamp
        except OSError as error:
            if not self._header:
                raise AccessError(f"the token {self._path} cannot be read: {error.strerror}") from error
        self._checked = self._clock()


class RefreshedCredentials(Credentials):
    """A header that is fetched again every minute, from an exec plugin or an OIDC provider."""

    def __init__(
        self,
        header: str | None,
        fetch: Callable[[], Awaitable[str | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(header)
        self._fetch = fetch
        self._clock = clock
        self._fetched = clock()
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        """Return the header. If it must be fetched again, the first caller fetches it and the others wait."""
        async with self._lock:
            if self._clock() - self._fetched >= _REFRESH_SECONDS:
                self._header = await self._fetch()
                self._fetched = self._clock()
            return self._header

    def expire(self) -> None:
        """Fetch the header again at the next request."""
        self._fetched = float("-inf")


async def load_access(
    kubeconfig: Path | None = None, context: str | None = None, *, service_account: Path = SERVICE_ACCOUNT
) -> ClusterAccess:
    """Return the access from a kubeconfig, or from the pod's service account if a kubeconfig does not exist.

    Args:
        kubeconfig: The file. Default: the files in ``KUBECONFIG``, else ``~/.kube/config``.
        context: A context of the kubeconfig. Default: its current context.
        service_account: Directory of the pod's service account. It is used only without the other two arguments.

    Raises:
        AccessError: Neither exists, or the access cannot be used.
    """
    paths = [kubeconfig] if kubeconfig is not None else _kubeconfigs()
    if any(path.exists() for path in paths):
        return await _from_kubeconfig(os.pathsep.join(map(str, paths)), context)
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return _from_service_account(service_account)
    places = " and ".join(map(str, paths))
    raise AccessError(f"no cluster is configured: {places} not found; set KUBECONFIG to the file of your cluster")


def _kubeconfigs() -> list[Path]:
    variable = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in (variable or "~/.kube/config").split(os.pathsep) if path]


def _from_service_account(directory: Path) -> ClusterAccess:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("the service account of this pod cannot be used: KUBERNETES_SERVICE_HOST and _PORT are unset")
    namespace = directory / "namespace"
    try:
        return ClusterAccess(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            credentials=TokenFile(directory / "token"),
            context="in-cluster",
            in_cluster=True,
            tls=_tls_context(ca_file=str(directory / "ca.crt")),
            namespace=namespace.read_text(encoding="ascii").strip() if namespace.exists() else "default",
        )
    except OSError as error:
        raise AccessError(f"the service account of this pod cannot be used: {error}") from error


async def _from_kubeconfig(path: str, context: str | None) -> ClusterAccess:
    from kubernetes.aio import client, config

    _check_context(path, context)
    settings = client.Configuration()
    try:
        loader: Any = await config.load_kube_config(path, context, settings, persist_config=False)  # type: ignore[no-untyped-call]
        server = str(settings.host).rstrip("/")
        tls = _tls_context(settings.ssl_ca_cert, settings.cert_file, settings.key_file, verify=settings.verify_ssl)
    except Exception as error:  # exec plugins and identity providers may raise any exception
        raise AccessError(f"the kubeconfig {path} cannot be used: {error}") from error
    current = loader.current_context
    return ClusterAccess(
        server=server,
        credentials=_credentials(loader, settings.api_key.get("BearerToken")),
        context=str(current["name"]),
        tls=tls if server.startswith("https") else None,
        server_hostname=settings.tls_server_name,
        proxy=settings.proxy,
        namespace=current["context"].get("namespace") or "default",
    )


def _check_context(path: str, context: str | None) -> None:
    """Raise an AccessError that lists the existing contexts, if ``context`` is not one of them."""
    from kubernetes.aio import config

    try:
        contexts, _ = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        if context is None:
            raise AccessError(f"the kubeconfig {path} cannot be used: {error}; choose one with --context") from error
        return
    except Exception as error:  # a file that is not a kubeconfig may make the loader raise any exception
        raise AccessError(f"{path} is not a readable kubeconfig: {error}") from error
    names = [str(each["name"]) for each in contexts]
    if context is not None and context not in names:
        guess = nearest(context, names)
        remedy = f"did you mean '{guess}'?" if guess else f"its contexts are: {', '.join(names)}"
        raise AccessError(f"--context {context}: no such context in {path}; {remedy}")


def _credentials(loader: Any, header: str | None) -> Credentials:
    user: Any = getattr(loader, "_user", None)
    value: dict[str, Any] = getattr(user, "value", None) or {}
    if value.get("tokenFile") and not value.get("token"):
        base = Path(user.path).parent if getattr(user, "path", None) else Path()
        return TokenFile(base / value["tokenFile"])
    if "exec" not in value and "auth-provider" not in value:
        return Credentials(header)

    async def fetch() -> str | None:
        try:
            await loader._load_authentication()
        except Exception as error:  # exec plugins and identity providers may raise any exception
            name = loader.current_context["name"]
            raise AccessError(f"the credentials of context '{name}' cannot be read: {error}") from error
        return getattr(loader, "token", header)

    return RefreshedCredentials(header, fetch)


def _tls_context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 and newer require an extension that the certificate authorities of Kubernetes do not set.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cert_file:
        context.load_cert_chain(cert_file, keyfile=key_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


V = TypeVar("V")
CONNECT_SECONDS = 10.0
LINE_LIMIT = 32 * 1024**2
"""Maximum size of a watch event in bytes. etcd limits objects to 1.5 MB, so a longer line is not a watch event."""
_KEEPALIVE_SECONDS = 60.0

Observe = Callable[[str, Resource, int, float], None]
"""Called once per try with verb, resource, HTTP status (0 without a response) and duration in seconds."""

_TRIES = 4
_BACKOFF = Backoff(base=0.5, limit=5.0)
_LONGEST_WAIT = 30.0
"""If the server asks for a longer wait, the error is raised, so that the work queue waits and not a worker."""


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. ``timeout`` is the deadline of the whole response in seconds.

    If it is None, the timeout of the client applies, and a stream has no deadline.
    """

    method: str
    path: str
    parameters: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    timeout: float | None = None


class ApiResponse(msgspec.Struct, frozen=True):
    """A response with a status below 300."""

    status: int
    body: bytes


class Stream:
    """The body of a streamed response. ``read`` returns chunks; iteration yields lines."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._ready: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._held = 0

    async def read(self) -> bytes:
        """Return the next chunk; empty at the end."""
        with _as_connection_lost():
            return await self._response.content.readany()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> bytes:
        """Return the next line that is not empty. Text after the last newline is dropped: it is an incomplete event."""
        while not self._ready:
            chunk = await self.read()
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


class Socket:
    """A WebSocket of binary messages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, message: bytes) -> None:
        """Send a binary message."""
        with _as_connection_lost():
            await self._socket.send_bytes(message)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield binary messages until the server closes the connection."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                yield message.data


class Transport:
    """Sends requests and repeats them after temporary failures.

    The number of connections is not limited here. It is bounded by the number of workers.

    Only ``open``, ``close``, ``send_once`` and ``open_stream`` use the network. A simulation overrides these methods.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        bucket: TokenBucket,
        clock: Clock,
        random: Random,
        resend: bool,
        observe: Observe | None,
        user_agent: str,
        timeout: float,
    ) -> None:
        self._access = access
        self._bucket = bucket
        self._clock = clock
        self._random = random
        self._resend = resend
        self._observe = observe
        self._user_agent = user_agent
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open the session. The event loop must be running."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEPALIVE_SECONDS,
                # Python before 3.12.8 and 3.13.1 does not close all connections of cancelled requests by itself. With
                # this option they are closed with the session.
                enable_cleanup_closed=NEEDS_CLEANUP_CLOSED,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            # The Accept header of kubectl. Port forwarding and logs do not offer JSON, and fail with 406 if only JSON
            # is accepted. Compression is off, because it costs the API server more than it saves inside a cluster.
            headers={"User-Agent": self._user_agent, "Accept": "application/json, */*", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, verb: str, resource: Resource, request: ApiRequest, *, repeatable: bool, priority: Priority | None = None
    ) -> ApiResponse:
        """Send the request until it succeeds or must not be repeated, and return the response.

        Args:
            verb: For the metrics.
            resource: For the metrics.
            request: The request.
            repeatable: Whether the request is idempotent.
            priority: Priority with which every try waits for a token. None: the request is not throttled.

        Raises:
            ApiError: The last try failed.
        """
        failures = 0
        while True:
            if priority is not None:
                await self._bucket.take(priority)
            started = self._clock.monotonic()
            try:
                answer = await self.send_once(request)
            except ApiError as error:
                self._failed(verb, resource, request, error, started)
                failures += 1
                wait = self._wait(error, failures, repeatable and self._resend)
                if wait is None:
                    raise
            else:
                self._record(verb, resource, answer.status, started)
                return answer
            await self._clock.sleep(wait)

    @asynccontextmanager
    async def stream(
        self, verb: str, resource: Resource, request: ApiRequest, *, silence: float
    ) -> AsyncIterator[Stream]:
        """Open a streamed response. It is never repeated, because only the reader can resume it."""
        async with self._observed(verb, resource, request, self.open_stream(request, silence=silence)) as stream:
            yield stream

    @asynccontextmanager
    async def websocket(
        self, verb: str, resource: Resource, request: ApiRequest, protocol: str
    ) -> AsyncIterator[Socket]:
        """Open a WebSocket. The request is never repeated."""
        async with self._observed(verb, resource, request, self._websocket(request, protocol)) as socket:
            yield socket

    @asynccontextmanager
    async def _observed(
        self, verb: str, resource: Resource, request: ApiRequest, opening: AbstractAsyncContextManager[V]
    ) -> AsyncIterator[V]:
        started, opened = self._clock.monotonic(), False
        try:
            async with opening as connection:
                self._record(verb, resource, 200, started)
                opened = True
                yield connection
        except ApiError as error:
            if not opened:
                self._failed(verb, resource, request, error, started)
                if isinstance(error, Unauthorized):
                    self._access.credentials.expire()
            raise

    def _failed(self, verb: str, resource: Resource, request: ApiRequest, error: ApiError, started: float) -> None:
        error.method, error.path = request.method, request.path
        self._record(verb, resource, error.status, started)

    def _record(self, verb: str, resource: Resource, status: int, started: float) -> None:
        if self._observe is not None:
            self._observe(verb, resource, status, self._clock.monotonic() - started)

    def _wait(self, error: ApiError, failures: int, repeatable: bool) -> float | None:
        if isinstance(error, Unauthorized) and failures == 1:
            self._access.credentials.expire()
            return 0.0
        # A request that was refused with 429 had no effect. So it may be repeated even if it is not idempotent.
        passes = isinstance(error, TooManyRequests) or (
            repeatable and isinstance(error, (ServerUnavailable, ConnectionLost))
        )
        if failures >= _TRIES or not passes or (error.retry_after or 0.0) > _LONGEST_WAIT:
            return None
        delay = _BACKOFF.delay(failures, self._random)
        if error.retry_after is not None:
            delay = max(delay, error.retry_after + self._random.random())
        return delay

    async def send_once(self, request: ApiRequest) -> ApiResponse:
        """Send the request once and return the complete response.

        Raises:
            ApiError: The server refused the request, or did not respond completely within the deadline.
        """
        limits = aiohttp.ClientTimeout(total=request.timeout or self._timeout, sock_connect=CONNECT_SECONDS)
        with _as_connection_lost():
            async with await self._respond(request, limits) as response:
                body = await response.read()
                if response.status >= 300:
                    raise error_from_answer(response.status, body, response.headers)
                return ApiResponse(response.status, body)

    @asynccontextmanager
    async def open_stream(self, request: ApiRequest, *, silence: float) -> AsyncIterator[Stream]:
        """Open a streamed response. The stream raises ``ConnectionLost`` after ``silence`` seconds without data."""
        limits = aiohttp.ClientTimeout(total=request.timeout, sock_connect=CONNECT_SECONDS, sock_read=silence)
        with _as_connection_lost():
            response = await self._respond(request, limits)
        try:
            if response.status >= 300:
                with _as_connection_lost():
                    body = await response.read()
                raise error_from_answer(response.status, body, response.headers)
            yield Stream(response)
        finally:
            _abort(response)
            response.close()

    @asynccontextmanager
    async def _websocket(self, request: ApiRequest, protocol: str) -> AsyncIterator[Socket]:
        access = self._access
        with _as_connection_lost():
            try:
                socket = await self._opened().ws_connect(
                    self._url(request),
                    protocols=(protocol,),
                    headers=await self._headers(request),
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=5.0),
                    ssl=access.tls if access.tls is not None else True,
                    server_hostname=access.server_hostname,
                    proxy=access.proxy,
                )
            except aiohttp.WSServerHandshakeError as error:
                raise error_from_answer(error.status, b"", {}) from error
        async with socket:
            yield Socket(socket)

    async def _respond(self, request: ApiRequest, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        access = self._access
        return await self._opened().request(
            request.method,
            self._url(request),
            data=request.body,
            headers=await self._headers(request),
            ssl=access.tls if access.tls is not None else True,
            server_hostname=access.server_hostname,
            proxy=access.proxy,
            timeout=limits,
            allow_redirects=False,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open: use it as an asynchronous context manager")
        return self._session

    def _url(self, request: ApiRequest) -> URL:
        query = f"?{urlencode(request.parameters)}" if request.parameters else ""
        return URL(f"{self._access.server}{request.path}{query}", encoded=True)

    async def _headers(self, request: ApiRequest) -> dict[str, str]:
        headers = {"Content-Type": request.content_type} if request.body is not None else {}
        try:
            async with asyncio.timeout(request.timeout or self._timeout):
                authorization = await self._access.credentials.header()
        except AccessError as error:
            raise Unauthorized(str(error), status=401) from error
        return headers | ({"Authorization": authorization} if authorization else {})


def _abort(response: aiohttp.ClientResponse) -> None:
    """Close the connection of a stream without a TLS shutdown, which would block while the server still sends."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is not None:
        transport.abort()


@contextmanager
def _as_connection_lost() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ConnectionLost("no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error
