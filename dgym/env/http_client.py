"""Requests to a sidecar, repeated until they are answered.

Every request of the wire may be repeated: a broken connection, a lost answer and a call that takes longer than one
answer may wait have the same remedy.
"""

import asyncio
import io
import random
import time
from collections.abc import AsyncIterable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.env.route import Route
from dgym.errors import (
    AccessRefused,
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    PluginError,
    SandboxLost,
    SetupFailed,
    Superseded,
    VerifierFailed,
)
from dgym.tracing import current_traceparent
from dgym.wire.http import (
    ANSWER_SECONDS,
    EPOCH_HEADER,
    IDEMPOTENCY_HEADER,
    TRACEPARENT_HEADER,
    ErrorBody,
    ErrorCode,
)
from dgym.wire.signing import SIGNATURE_HEADER, answer_is_signed, content_digest, sign_request

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

_MARGIN_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_SHOWN_CHARACTERS = 200
_ANSWER_LIMIT = 256 * 1024**2
"""More than a sidecar has memory for; another program on its port may send without end."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests are repeated.

    ``silence_seconds`` bounds the time without a useful answer, ``running_seconds`` the time in which the sidecar
    reports that the call runs. Pauses begin with ``first_pause_seconds``, double up to ``longest_pause_seconds``, and
    are shortened at random.
    """

    silence_seconds: float = 60.0
    running_seconds: float = 6 * 3600.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0


class HttpClient:
    """The client of one sidecar in one role.

    Args:
        url: The address of the sidecar, or the route to it.
        token: The role's token.
        epoch: The epoch of the assignment as the operator gave it for the role; None for a driver without one.
        patience: How long requests are repeated.
    """

    def __init__(
        self,
        url: str | Route,
        token: str,
        *,
        epoch: str | None = None,
        patience: Patience = Patience(),  # noqa: B008 - immutable
    ) -> None:
        _aiohttp()
        self._route = Route(url) if isinstance(url, str) else url
        self._url = self._route.url
        self._token = token
        self._headers = {} if epoch is None else {EPOCH_HEADER: epoch}
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: msgspec.Struct | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> T:
        """Make the call and return its answer.

        Raises:
            DgymError: The error in the answer; see ``exception``.
            SandboxLost: The sidecar does not answer.
        """
        # Values that JSON cannot express, in a call that a program made, are written as Python shows them.
        data = b"" if body is None else msgspec.json.encode(body, enc_hook=repr)
        return await self.send(
            method,
            path,
            kind,
            content=lambda: io.BytesIO(data),
            digest=content_digest(data),
            headers=headers,
            patience=patience,
        )

    async def send(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        content: Callable[[], io.BytesIO | AsyncIterable[bytes]],
        digest: str,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> T:
        """The same with a body that ``content`` makes anew each time it is sent; ``digest`` is its SHA-256."""
        repeats = _Repetition(patience or self._patience)
        while True:
            try:
                status, answer = await self._once(method, path, content(), digest, headers)
            except _connection_errors() as error:
                await self._route.check()
                await repeats.pause(f"{self._url} does not answer: {type(error).__name__}: {error}")
                continue
            except _Unreached as error:
                await repeats.pause(str(error))
                continue
            if status == 202:
                await repeats.continue_running(f"{method} {path}")
            elif status < 300:
                return _decode(answer, kind)
            else:
                problem, retryable = exception(status, answer)
                if not retryable:
                    raise problem
                await repeats.pause(str(problem))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._route.close()

    async def _once(
        self,
        method: str,
        path: str,
        data: io.BytesIO | AsyncIterable[bytes],
        digest: str,
        headers: Mapping[str, str] | None,
    ) -> tuple[int, bytes]:
        session = self._open()
        sent = self._headers | dict(headers or {})
        options = await self._route.options()
        authorization = sent[self._route.authorization] = sign_request(
            self._token,
            method,
            path,
            epoch=sent.get(EPOCH_HEADER, ""),
            reset_key=sent.get(IDEMPOTENCY_HEADER, ""),
            content=digest,
        )
        sent["Accept-Encoding"] = "identity"
        if parent := current_traceparent():
            sent[TRACEPARENT_HEADER] = parent
        sent |= options.pop("headers", {})
        request = session.request(method, self._url + path, data=data, headers=sent, allow_redirects=False, **options)
        async with request as response:
            status, answer = response.status, await self._read(response)
            signature = response.headers.get(SIGNATURE_HEADER, "")
        if not answer_is_signed(self._token, authorization, status, answer, signature):
            if not await self._route.check(status, answer):
                _refuse_unsigned(self._url, status, answer)
            raise _Unreached(str(exception(status, answer)[0]))
        return status, answer

    async def _read(self, response: "aiohttp.ClientResponse") -> bytes:
        answer = bytearray()
        async for chunk in response.content.iter_any():
            answer += chunk
            if len(answer) > _ANSWER_LIMIT:
                raise SandboxLost(f"{self._url} answered with more than {_ANSWER_LIMIT:,} bytes")
        return bytes(answer)

    def _open(self) -> "aiohttp.ClientSession":
        if self._session is None:
            aiohttp = _aiohttp()
            # A compressed answer is another program's, and could fill the memory.
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_SECONDS, sock_read=ANSWER_SECONDS + _MARGIN_SECONDS
                ),
            )
        return self._session


class _Unreached(Exception):
    """Something before the sidecar answered that it could not reach it."""


class _Repetition:
    """The pauses between the repetitions of one request."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = self._answered = time.monotonic()
        self._pause = patience.first_pause_seconds

    async def pause(self, problem: str) -> None:
        """Wait before the next repetition, or give up."""
        now = time.monotonic()
        if now - self._answered + self._pause > self._patience.silence_seconds:
            raise SandboxLost(f"{problem} (asked for {now - self._answered:.0f} s)")
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - not for secrets
        self._pause = min(2 * self._pause, self._patience.longest_pause_seconds)

    async def continue_running(self, what: str) -> None:
        """Continue after the report that the call runs."""
        last, self._answered = self._answered, time.monotonic()
        if self._answered - self._began > self._patience.running_seconds:
            raise SandboxLost(f"{what} has run for {self._answered - self._began:.0f} s and does not end")
        self._pause = self._patience.first_pause_seconds
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
    """The exception that an answer with an error means, and whether repeating the request may help."""
    try:
        body = msgspec.json.decode(answer, type=ErrorBody)
    except DECODE_ERRORS:
        # Not a sidecar's answer: a proxy's, or one of a later version.
        text = answer[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
        return InfrastructureError(f"the sidecar answered with status {status}: {text}"), status in (502, 503, 504)
    return _EXCEPTIONS[body.code](body.message), body.retryable


_EXCEPTIONS: dict[ErrorCode, type[DgymError]] = {
    ErrorCode.UNAUTHENTICATED: AccessRefused,
    ErrorCode.FORBIDDEN: AccessRefused,
    ErrorCode.NOT_FOUND: InfrastructureError,
    ErrorCode.INVALID_ARGUMENT: ManifestError,
    ErrorCode.CONFLICT: ConflictError,
    ErrorCode.GAP: ConflictError,
    ErrorCode.SUPERSEDED: Superseded,
    ErrorCode.ATTEMPT_OVER: EpisodeOver,
    ErrorCode.TOO_LARGE: ManifestError,
    ErrorCode.LIMIT_REACHED: EpisodeOver,
    ErrorCode.BUSY: InfrastructureError,
    ErrorCode.SANDBOX_LOST: SandboxLost,
    ErrorCode.SETUP_FAILED: SetupFailed,
    ErrorCode.VERIFIER_FAILED: VerifierFailed,
    ErrorCode.INTERNAL: InfrastructureError,
}


def _aiohttp() -> ModuleType:
    """Import aiohttp, which takes long and is needed here alone."""
    try:
        import aiohttp
    except ImportError as error:
        raise PluginError("reaching an episode in a pod needs aiohttp: pip install 'dgym[agent]'") from error
    return aiohttp


def _connection_errors() -> tuple[type[Exception], ...]:
    aiohttp = _aiohttp()
    return (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError)


def _decode(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except DECODE_ERRORS as error:
        raise InfrastructureError(f"the sidecar's answer makes no sense: {error}") from None
