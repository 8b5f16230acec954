"""The client of the calls to pods: ``await client.call(calls.STEP, body, seq=3)``.

Every call may be repeated after a broken connection, after a lost answer, and while the call still runs. ``call``
repeats it until it is answered. ``once`` does not repeat it.
"""

import asyncio
import io
import random
import time
from collections.abc import AsyncIterable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlencode

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import (
    AccessRefused,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    PluginError,
    SandboxLost,
)
from dgym.tracing import current_traceparent
from dgym.wire.calls import Call
from dgym.wire.http import ANSWER_SECONDS, EPOCH_HEADER, IDEMPOTENCY_HEADER, TRACEPARENT_HEADER, ErrorBody, ErrorCode
from dgym.wire.outcome import Result
from dgym.wire.signing import SIGNATURE_HEADER, answer_is_signed, content_digest, sign_request

if TYPE_CHECKING:
    import aiohttp

Q = TypeVar("Q")
R = TypeVar("R")

_MARGIN_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_SHOWN_CHARACTERS = 500
_ANSWER_LIMIT = 256 * 1024**2
"""Larger than the memory of a sidecar. Another program on its port could send an endless answer."""


class Unanswered(InfrastructureError):
    """The call was not answered, or was answered with an error that may be temporary."""


class RetryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests are repeated.

    ``silence_seconds`` bounds the time without a useful answer, ``running_seconds`` the time in which the sidecar
    reports that the call runs. Pauses begin with ``first_pause_seconds``, double up to ``longest_pause_seconds``, and
    are shortened at random.
    """

    silence_seconds: float = 60.0
    running_seconds: float = 6 * 3600.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0


class UncheckedAnswer(NamedTuple):
    """An answer whose signature has not been checked."""

    status: int
    body: bytes
    signature: str = ""


class Upload(NamedTuple):
    """A body of bytes. ``open`` is called each time the body is sent."""

    open: Callable[[], io.BytesIO | AsyncIterable[bytes]]
    sha256: str


class PodTransport:
    """Sends requests over one pool of connections.

    Args:
        session: Connections of the caller, which ``close`` does not close. None: they are opened on first use.
        deadline_seconds: Time limit of a request. None: somewhat longer than a sidecar takes to answer.
        answer_limit: Maximum number of bytes of an answer.
    """

    def __init__(
        self,
        session: "aiohttp.ClientSession | None" = None,
        *,
        deadline_seconds: float | None = None,
        answer_limit: int = _ANSWER_LIMIT,
    ) -> None:
        timeout = _aiohttp().ClientTimeout
        self._shared = session
        self._own: aiohttp.ClientSession | None = None
        self._limit = answer_limit
        if deadline_seconds is None:
            silence = ANSWER_SECONDS + _MARGIN_SECONDS
            self._timeout = timeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        else:
            self._timeout = timeout(total=deadline_seconds, connect=min(3.0, deadline_seconds))

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str],
        data: io.BytesIO | AsyncIterable[bytes],
        **options: Any,
    ) -> UncheckedAnswer:
        """Make one request.

        Raises:
            Unanswered: The request was not answered.
            SandboxLost: The answer exceeds ``answer_limit``.
        """
        aiohttp = _aiohttp()
        session = self._shared or self._own
        if session is None:
            # Sidecars do not compress answers. A compressed answer of another program could fill the memory.
            session = self._own = aiohttp.ClientSession(auto_decompress=False)
        try:
            async with session.request(
                method, url, data=data, headers=headers, timeout=self._timeout, allow_redirects=False, **options
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > self._limit:
                        raise SandboxLost(f"{url} answered with more than {self._limit:,} bytes")
                return UncheckedAnswer(response.status, bytes(body), response.headers.get(SIGNATURE_HEADER, ""))
        except aiohttp.InvalidURL:
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unanswered(f"{method} {url} does not answer: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the connections that were opened here. Idempotent."""
        session, self._own = self._own, None
        if session is not None:
            await session.close()


class AlreadyFinished(EpisodeOver):
    """The episode has finished, and its sandbox may be gone.

    Attributes:
        result: The result as far as the status of the Episode has it. None if it has no result.
    """

    def __init__(self, message: str, result: Result | None) -> None:
        super().__init__(message)
        self.result = result


class Route:
    """The direct route to the address of a sidecar or an agent pod.

    Attributes:
        url: The part of the URL before the path of a call.
        authorization: Name of the header with the signature or the token of a request.
    """

    authorization = "Authorization"

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def options(self) -> dict[str, Any]:
        """Additional arguments of aiohttp for the next request: ``headers``, ``ssl``, ``proxy``."""
        return {}

    async def check(self, status: int | None = None, answer: bytes = b"") -> bool:
        """Whether a failed request may be repeated.

        Args:
            status: The status of an answer that the sidecar did not sign. None: the request was not answered.
            answer: The body of that answer.

        Raises:
            DgymError: The cause of the failure, if repeating the request cannot help.
        """
        del answer
        return status in (None, 502, 503, 504)

    async def close(self) -> None:
        """Close the resources of the route. Idempotent."""


class PodClient:
    """The client of one pod in one role.

    Args:
        url: The address of the sidecar or the agent pod, or the route to it.
        token: The token of the role.
        epoch: The header ``Dgym-Epoch`` of the assignment for the role. None: the caller has no assignment.
        retry_limits: How long ``call`` repeats a request.
        transport: Shared connections, which ``close`` does not close. None: the client opens its own.
    """

    def __init__(
        self,
        url: str | Route,
        token: str,
        *,
        epoch: str | None = None,
        retry_limits: RetryLimits = RetryLimits(),  # noqa: B008 - immutable
        transport: PodTransport | None = None,
    ) -> None:
        self._route = Route(url) if isinstance(url, str) else url
        self._token = token
        self._headers = {} if epoch is None else {EPOCH_HEADER: epoch}
        self._retry_limits = retry_limits
        self._transport = transport or PodTransport()
        self._owns_transport = transport is None

    async def call(
        self,
        call: Call[Q, R],
        body: "Q | Upload | None" = None,
        *,
        retry_limits: RetryLimits | None = None,
        **parameters: int | str,
    ) -> R:
        """Make the call, repeat it until it is answered, and return the answer.

        Raises:
            DgymError: The error in the answer; see ``exception``.
            SandboxLost: The pod does not answer.
        """
        repeats = _Repetition(retry_limits or self._retry_limits)
        while True:
            try:
                answer = await self.once(call, body, **parameters)
            except Unanswered as problem:
                await repeats.pause(str(problem))
                continue
            if answer is not None:
                return answer
            await repeats.continue_running(f"{call.method} {call.path}")

    async def once(self, call: Call[Q, R], body: "Q | Upload | None" = None, **parameters: int | str) -> R | None:
        """Make the call once. Return the answer, or None if the call still runs.

        Raises:
            DgymError: The error in the answer; see ``exception``.
            Unanswered: The call was not answered, or the error in the answer may be temporary.
        """
        # A program may pass values that JSON cannot express. Their ``repr`` is sent.
        data = b"" if body is None or isinstance(body, Upload) else msgspec.json.encode(body, enc_hook=repr)
        upload = body if isinstance(body, Upload) else Upload(lambda: io.BytesIO(data), content_digest(data))
        status, answer = await self._send(call, upload, parameters)
        if status == 202:
            return None
        if status < 300:
            return _decode(answer, call.response)
        problem, retryable = exception(status, answer)
        raise Unanswered(str(problem)) if retryable else problem

    async def _send(self, call: Call[Any, Any], body: Upload, parameters: dict[str, int | str]) -> tuple[int, bytes]:
        target, headers = _addressed(call, parameters)
        headers |= self._headers
        options = await self._route.options()
        authorization = f"Bearer {self._token}"
        if call.signed:
            authorization = sign_request(
                self._token,
                call.method,
                target,
                epoch=headers.get(EPOCH_HEADER, ""),
                reset_key=headers.get(IDEMPOTENCY_HEADER, ""),
                content=body.sha256,
            )
        headers |= {self._route.authorization: authorization, "Accept-Encoding": "identity"}
        if parent := current_traceparent():
            headers[TRACEPARENT_HEADER] = parent
        headers |= options.pop("headers", {})
        url = self._route.url
        try:
            answer = await self._transport.send(call.method, url + target, headers=headers, data=body.open(), **options)
        except Unanswered:
            await self._route.check()
            raise
        if call.signed and not answer_is_signed(
            self._token, authorization, answer.status, answer.body, answer.signature
        ):
            if not await self._route.check(answer.status, answer.body):
                _refuse_unsigned(url, answer.status, answer.body)
            raise Unanswered(str(exception(answer.status, answer.body)[0]))
        return answer.status, answer.body

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owns_transport:
            await self._transport.close()
        await self._route.close()


def _addressed(call: Call[Any, Any], parameters: dict[str, int | str]) -> tuple[str, dict[str, str]]:
    """Path and query of the request, and its headers."""
    places: dict[str, dict[str, str]] = {"path": {}, "query": {}, "header": {}}
    for parameter in call.parameters:
        value = parameters.get(parameter.keyword, parameter.default)
        if value is None:
            raise TypeError(f"{call.method} {call.path} requires {parameter.keyword}")
        places[parameter.place][parameter.name] = str(value)
    query = f"?{urlencode(places['query'])}" if places["query"] else ""
    return call.path.format(**places["path"]) + query, places["header"]


class _Repetition:
    """The pauses between the repetitions of one request."""

    def __init__(self, retry_limits: RetryLimits) -> None:
        self._retry_limits = retry_limits
        self._began = self._answered = time.monotonic()
        self._pause = retry_limits.first_pause_seconds

    async def pause(self, problem: str) -> None:
        """Wait before the next repetition, or give up."""
        now = time.monotonic()
        if now - self._answered + self._pause > self._retry_limits.silence_seconds:
            raise SandboxLost(f"{problem} (repeated for {now - self._answered:.0f} s)")
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - not for secrets
        self._pause = min(2 * self._pause, self._retry_limits.longest_pause_seconds)

    async def continue_running(self, what: str) -> None:
        """Continue after the report that the call runs."""
        last, self._answered = self._answered, time.monotonic()
        if self._answered - self._began > self._retry_limits.running_seconds:
            raise SandboxLost(f"{what} has run for {self._answered - self._began:.0f} s and does not end")
        self._pause = self._retry_limits.first_pause_seconds
        if self._answered - last < self._pause:
            await asyncio.sleep(self._pause)


def _refuse_unsigned(url: str, status: int, answer: bytes) -> NoReturn:
    """Refuse an answer without the signature of the sidecar.

    Raises:
        AccessRefused: The sidecar has other tokens, those of another attempt, and cannot sign its refusal.
        SandboxLost: Another program answers on the sidecar's port.
    """
    if status == ErrorCode.UNAUTHENTICATED.status:
        raise AccessRefused(f"{url}: {exception(status, answer)[0]}")
    raise SandboxLost(f"{url} answered with status {status} without the signature of the episode's sidecar")


def exception(status: int, answer: bytes) -> tuple[DgymError, bool]:
    """The exception for an answer with an error, and whether repeating the request may help."""
    try:
        body = msgspec.json.decode(answer, type=ErrorBody)
    except DECODE_ERRORS:
        # The answer of a proxy, or of a sidecar of a later version.
        text = answer[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
        kind = AccessRefused if status == ErrorCode.UNAUTHENTICATED.status else InfrastructureError
        return kind(f"the answer has status {status}: {text}"), status in (502, 503, 504)
    return body.code.exception(body.message), body.retryable


def _aiohttp() -> ModuleType:
    """Import aiohttp on first use, because the import takes long."""
    try:
        import aiohttp
    except ImportError as error:
        raise PluginError("a connection to an episode in a pod needs aiohttp: pip install 'dgym[agent]'") from error
    return aiohttp


def _decode(answer: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(answer, type=kind)
    except DECODE_ERRORS as error:
        raise InfrastructureError(f"the answer cannot be read: {error}") from None
