"""The calls over HTTP: their roles, bodies, answers and errors."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

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
from dgym.sidecar.access import Access, CallError
from dgym.sidecar.attempt import Attempt, StillRunning
from dgym.tracing import Recorder, continue_trace
from dgym.wire import calls
from dgym.wire.calls import Call
from dgym.wire.http import (
    IDEMPOTENCY_HEADER,
    TRACEPARENT_HEADER,
    Accepted,
    AttemptState,
    CloseResponse,
    DiffResponse,
    ErrorBody,
    ErrorCode,
    Path,
    PeekResponse,
    PrepareResponse,
    Role,
    SpansResponse,
    StepResponse,
    StepsResponse,
    ToolsResponse,
    UploadResponse,
    VerifyResponse,
    error_body,
)
from dgym.wire.signing import SIGNATURE_HEADER, SignedRequest, content_digest, sign_answer

_log = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[T]]


class _Route(NamedTuple, Generic[T]):
    """A call and the method that serves it, whose answer has the call's type."""

    call: Call[Any, T]
    handler: Handler[T]


MAXIMUM_CALLS = 64
_BODY_SECONDS = 60.0
_KEY_LENGTH = 200
_CHUNK_BYTES = 256 * 1024
_current: ContextVar[SignedRequest] = ContextVar("signed request")


class Api:
    """Serves one attempt."""

    def __init__(self, attempt: Attempt, access: Access) -> None:
        self._attempt = attempt
        self._access = access
        self._calls = 0
        self._recorder = Recorder()

    def application(self) -> web.Application:
        """The application with all routes."""
        application = web.Application()
        router = application.router
        for route in self._routes():
            router.add_route(route.call.method, route.call.path, self._guarded(route.call.roles, route.handler))
        router.add_get(Path.HEALTH, self._health)
        router.add_get(Path.READY, self._ready)
        router.add_route("*", "/{path:.*}", self._unknown)
        return application

    def _routes(self) -> list["_Route[Any]"]:
        return [
            _Route(calls.WORKSPACE, self._workspace),
            _Route(calls.HISTORY, self._history),
            _Route(calls.PREPARE, self._prepare),
            _Route(calls.SOLUTION, self._solution),
            _Route(calls.RESULT, self._result),
            _Route(calls.SPANS, self._spans),
            _Route(calls.RELEASE, self._release),
            _Route(calls.RESET, self._reset),
            _Route(calls.STEP, self._step),
            _Route(calls.STEPS, self._steps),
            _Route(calls.PEEK, self._peek),
            _Route(calls.TOOLS, self._tools),
            _Route(calls.DIFF, self._diff),
            _Route(calls.CLOSE, self._close),
            _Route(calls.VERIFY, self._verify),
            _Route(calls.RUNNING, self._running),
            _Route(calls.PAUSE, self._pause),
            _Route(calls.CANCEL, self._cancel),
            _Route(calls.STATE, self._state),
        ]

    def _guarded(
        self, roles: Sequence[Role], handler: Handler[Any]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
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
            lease = self._attempt.lease.call() if caller.role is Role.DRIVE else nullcontext()
            with lease, self._span(request):
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

    def _span(self, request: web.Request) -> AbstractContextManager[object]:
        """The span of a call, once its caller is known: only drivers of the attempt may fill the memory with them."""
        route = request.match_info.route.resource
        name = f"{request.method} {route.canonical if route is not None else request.path}"
        header, record = request.headers.get(TRACEPARENT_HEADER, ""), self._recorder.record
        return continue_trace(header, record, name, answers=(StillRunning, CallError))

    # prepare

    async def _workspace(self, request: web.Request) -> UploadResponse:
        _check_length(request, calls.WORKSPACE.limit)
        return _received(await self._attempt.receive_workspace(request.content.iter_chunked(_CHUNK_BYTES)))

    async def _history(self, request: web.Request) -> UploadResponse:
        _check_length(request, calls.HISTORY.limit)
        return _received(await self._attempt.receive_history(request.content.iter_chunked(_CHUNK_BYTES)))

    async def _prepare(self, request: web.Request) -> PrepareResponse:
        prepared = await _read(request, calls.PREPARE)
        tools = self._attempt.prepare(prepared)
        if prepared.driver_idle_seconds is not None:
            self._access.ignore_epochs(Role.DRIVE)
        return PrepareResponse(tools=tools)

    async def _solution(self, _request: web.Request) -> PeekResponse:
        return PeekResponse(observation=await self._attempt.apply_solution())

    async def _result(self, _request: web.Request) -> CloseResponse:
        return CloseResponse(result=await self._attempt.wait_for_result())

    async def _spans(self, _request: web.Request) -> SpansResponse:
        return SpansResponse(spans=self._recorder.spans())

    async def _release(self, request: web.Request) -> Accepted:
        self._attempt.record_release(await _read(request, calls.RELEASE))
        return Accepted()

    # drive

    async def _reset(self, request: web.Request) -> StepResponse:
        key = request.headers.get(IDEMPOTENCY_HEADER, "")
        if not 0 < len(key) <= _KEY_LENGTH:
            message = f"the header {IDEMPOTENCY_HEADER} must have 1 to {_KEY_LENGTH} characters"
            raise CallError(ErrorCode.INVALID_ARGUMENT, message)
        return await self._attempt.reset(key, await _read(request, calls.RESET))

    async def _step(self, request: web.Request) -> StepResponse:
        seq = _number(request.match_info["seq"], "the step's number")
        return await self._attempt.step(seq, await _read(request, calls.STEP))

    async def _steps(self, request: web.Request) -> StepsResponse:
        return self._attempt.steps(_number(request.query.get("from", "0"), "from"))

    async def _peek(self, request: web.Request) -> PeekResponse:
        return PeekResponse(observation=await self._attempt.peek(await _read(request, calls.PEEK)))

    async def _tools(self, _request: web.Request) -> ToolsResponse:
        return self._attempt.tools()

    async def _diff(self, _request: web.Request) -> DiffResponse:
        return DiffResponse(patch=await self._attempt.diff())

    async def _close(self, request: web.Request) -> CloseResponse:
        return CloseResponse(result=await self._attempt.close_episode(await _read(request, calls.CLOSE)))

    # operate

    async def _verify(self, _request: web.Request) -> VerifyResponse:
        return self._attempt.sandbox_has_ended()

    async def _running(self, request: web.Request) -> Accepted:
        if not self._attempt.sandbox_still_runs(await _read(request, calls.RUNNING)):
            raise StillRunning
        return Accepted()

    async def _pause(self, request: web.Request) -> Accepted:
        lost = await _read(request, calls.PAUSE)
        if not self._access.has_newer(lost.epoch):
            self._attempt.pause()
        return Accepted()

    async def _cancel(self, _request: web.Request) -> Accepted:
        if not self._attempt.cancel():
            raise StillRunning
        return Accepted()

    async def _state(self, _request: web.Request) -> AttemptState:
        return self._attempt.state

    # open

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        problem = self._attempt.problem
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    async def _unknown(self, request: web.Request) -> web.Response:
        return _refusal(describe(CallError(ErrorCode.NOT_FOUND, f"there is no {request.method} here")))


async def _read(request: web.Request, call: Call[T, Any]) -> T:
    """The body; an empty one is ``{}``."""
    assert call.request is not None
    _check_length(request, call.limit)
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


def _received(upload: UploadResponse) -> UploadResponse:
    if upload.sha256 != _current.get().content:
        raise _wrong_content()
    return upload


def _wrong_content() -> CallError:
    return CallError(ErrorCode.INVALID_ARGUMENT, "the body is not the one whose digest is signed")


def _check_length(request: web.Request, limit: int) -> None:
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> CallError:
    return CallError(ErrorCode.TOO_LARGE, f"the body has more than {limit:,} bytes")


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


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
