"""The answers to calls: each is checked, bounded in number, answered in JSON, signed and logged. Probes are open."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from dgym.decoding import DECODE_ERRORS
from dgym.errors import (
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    PluginError,
    SandboxLost,
    SandboxStartFailed,
    SetupFailed,
    VerifierFailed,
)
from dgym.sidecar.access import Access, Caller, CallError
from dgym.sidecar.attempt import StillRunning
from dgym.wire.calls import Call
from dgym.wire.http import Accepted, ErrorBody, ErrorCode, Path, Role, UploadResponse, error_body
from dgym.wire.signing import SIGNATURE_HEADER, SignedRequest, content_digest, sign_answer

_log = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[T]]
"""Serves a call: returns the message to answer with."""
WebHandler = Callable[[web.Request], Awaitable[web.Response]]

MAXIMUM_CALLS = 64
_BODY_SECONDS = 60.0
_READY_TRIES = 50
_READY_PAUSE = 0.02
"""For a second in all."""
_current: ContextVar[SignedRequest] = ContextVar("signed request")


class Guard:
    """Lets the calls of those through who may make them.

    Args:
        access: Knows the keys that sign requests, and the requests that were received before.
        within: Makes the context in which the call of an authorized caller is served.
    """

    def __init__(
        self,
        access: Access,
        within: Callable[[Caller, web.Request], AbstractContextManager[object]] = lambda *_: nullcontext(),
    ) -> None:
        self._access = access
        self._within = within
        self._calls = 0

    def handler(self, roles: Sequence[Role], handler: Handler[Any]) -> WebHandler:
        """Serve a call of ``roles`` by ``handler``."""

        async def handle(request: web.Request) -> web.Response:
            started = time.monotonic()
            response, code = await self._answer(request, roles, handler)
            seconds = round(time.monotonic() - started, 4)
            fields = {"method": request.method, "path": request.path, "code": code, "seconds": seconds}
            _log.info("call", extra={"fields": fields})
            return response

        return handle

    async def _answer(
        self, request: web.Request, roles: Sequence[Role], handler: Handler[Any]
    ) -> tuple[web.Response, str]:
        self._calls += 1
        signed = None
        try:
            signed = self._access.identify(request.method, request.raw_path, request.headers)
            _current.set(signed)
            if self._calls > MAXIMUM_CALLS:
                raise CallError(ErrorCode.BUSY, f"more than {MAXIMUM_CALLS} calls at once")
            caller = self._access.authorize(signed.role, request.headers, roles)
            with self._within(caller, request):
                answer = await handler(request)
            self._access.check_current(caller)
            return _json(answer, signed=signed), "ok"
        except StillRunning:
            return _json(Accepted(running=True), status=202, signed=signed), "running"
        except ConnectionError:
            raise  # the client has gone
        except Exception as error:
            body = describe(error)
            if body.code is ErrorCode.INTERNAL:
                _log.exception("the call failed")
            return _refusal(body, signed), body.code
        finally:
            self._calls -= 1


def add_probes(router: web.UrlDispatcher, problem: Callable[[], str | None]) -> None:
    """Add the kubelet's calls; the sidecar is ready while ``problem()`` is None.

    Before the sidecar answers that it is not ready, it waits for up to a second: the kubelet's next probe is a second
    later.
    """

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        for _ in range(_READY_TRIES):
            if problem() is None:
                break
            await asyncio.sleep(_READY_PAUSE)
        found = problem()
        return web.Response(text=f"{found or 'ok'}\n", status=503 if found else 200)

    router.add_get(Path.HEALTH, health)
    router.add_get(Path.READY, ready)


def refuse(code: ErrorCode, message: str) -> WebHandler:
    """Answer every request with this error, without a look at its signature."""

    async def handle(_request: web.Request) -> web.Response:
        return _refusal(error_body(code, message))

    return handle


async def read_body(request: web.Request, call: Call[T, Any]) -> T:
    """The body; an empty one is ``{}``."""
    assert call.request is not None
    check_length(request, call.limit)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > call.limit:
                    raise _too_large(call.limit)
    except TimeoutError:
        raise CallError(ErrorCode.INVALID_ARGUMENT, "the body did not arrive") from None
    if content_digest(body) != _current.get().content:
        raise _wrong_content()
    try:
        return msgspec.json.decode(bytes(body) or b"{}", type=call.request)
    except DECODE_ERRORS as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"the body is wrong: {error}") from None


def check_upload(upload: UploadResponse) -> UploadResponse:
    """The upload, if its digest is the one that is signed."""
    if upload.sha256 != _current.get().content:
        raise _wrong_content()
    return upload


def _wrong_content() -> CallError:
    return CallError(ErrorCode.INVALID_ARGUMENT, "the body is not the one whose digest is signed")


def check_length(request: web.Request, limit: int) -> None:
    """Refuse a body whose announced length is above ``limit``."""
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> CallError:
    return CallError(ErrorCode.TOO_LARGE, f"the body has more than {limit:,} bytes")


def _json(value: Any, *, status: int = 200, signed: SignedRequest | None = None) -> web.Response:
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half a surrogate pair, out of a program's output or a model's call.
        body = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")
    response = web.Response(body=body, status=status, content_type="application/json")
    if signed is not None:
        response.headers[SIGNATURE_HEADER] = sign_answer(signed.key, signed.authorization, status, body)
    return response


def _refusal(body: ErrorBody, signed: SignedRequest | None = None) -> web.Response:
    response = _json(body, status=body.code.status, signed=signed)
    if body.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.TOO_LARGE):
        # The rest of the request is not read.
        response.force_close()
    return response


_CODES: tuple[tuple[type[DgymError], ErrorCode], ...] = (
    (ConflictError, ErrorCode.CONFLICT),
    (EpisodeOver, ErrorCode.ATTEMPT_OVER),
    (ManifestError, ErrorCode.INVALID_ARGUMENT),
    (PluginError, ErrorCode.INVALID_ARGUMENT),
    (SetupFailed, ErrorCode.SETUP_FAILED),
    (SandboxLost, ErrorCode.SANDBOX_LOST),
    (SandboxStartFailed, ErrorCode.SANDBOX_LOST),
    (VerifierFailed, ErrorCode.VERIFIER_FAILED),
    (InfrastructureError, ErrorCode.INTERNAL),
)


def describe(error: BaseException) -> ErrorBody:
    """The body of the answer to a call that raised ``error``; an unexpected error's text stays in the log."""
    if isinstance(error, CallError):
        return error_body(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_body(code, str(error))
    return error_body(ErrorCode.INTERNAL, f"the sidecar failed ({type(error).__name__}); its log says more")
