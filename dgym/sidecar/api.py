"""The calls of one attempt over HTTP."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

from aiohttp import web

from dgym.sidecar.access import Access, Caller, CallError
from dgym.sidecar.answers import Guard, Handler, WebHandler, add_probes, check_length, check_upload, read_body, refuse
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
    ErrorCode,
    PeekResponse,
    PrepareResponse,
    Role,
    SpansResponse,
    StepResponse,
    StepsResponse,
    ToolsResponse,
    UploadResponse,
    VerifyResponse,
)

T = TypeVar("T")


class _Route(NamedTuple, Generic[T]):
    """A call and the method that serves it, whose answer has the call's type."""

    call: Call[Any, T]
    handler: Handler[T]


_KEY_LENGTH = 200
_CHUNK_BYTES = 256 * 1024


class Api:
    """Serves one attempt.

    Args:
        attempt: The attempt.
        access: The tokens of its roles.
        bind: The handler of repeated ``bind`` calls to a pooled sidecar; None: the sidecar is not pooled.
    """

    def __init__(self, attempt: Attempt, access: Access, bind: WebHandler | None = None) -> None:
        self._attempt = attempt
        self._access = access
        self._bind = bind or refuse(ErrorCode.UNAUTHENTICATED, "the sidecar knows its attempt, and is never bound")
        self._recorder = Recorder()

    def application(self) -> web.Application:
        """The application with all routes."""
        application = web.Application()
        router = application.router
        guard = Guard(self._access, self._serving)
        for route in self._routes():
            router.add_route(route.call.method, route.call.path, guard.handler(route.call.roles, route.handler))
        router.add_route(calls.BIND.method, calls.BIND.path, self._bind)
        add_probes(router, lambda: self._attempt.problem)
        router.add_route("*", "/{path:.*}", refuse(ErrorCode.NOT_FOUND, "there is no such call"))
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

    @contextmanager
    def _serving(self, caller: Caller, request: web.Request) -> Iterator[None]:
        """A driver's call renews its lease, and is a span of the caller's trace."""
        lease = self._attempt.lease.call() if caller.role is Role.DRIVE else nullcontext()
        with lease, self._span(request):
            yield

    def _span(self, request: web.Request) -> AbstractContextManager[object]:
        """The span of a call, once its caller is known: only drivers of the attempt may fill the memory with them."""
        route = request.match_info.route.resource
        name = f"{request.method} {route.canonical if route is not None else request.path}"
        header, record = request.headers.get(TRACEPARENT_HEADER, ""), self._recorder.record
        return continue_trace(header, record, name, answers=(StillRunning, CallError))

    # prepare

    async def _workspace(self, request: web.Request) -> UploadResponse:
        check_length(request, calls.WORKSPACE.limit)
        return check_upload(await self._attempt.receive_workspace(request.content.iter_chunked(_CHUNK_BYTES)))

    async def _history(self, request: web.Request) -> UploadResponse:
        check_length(request, calls.HISTORY.limit)
        return check_upload(await self._attempt.receive_history(request.content.iter_chunked(_CHUNK_BYTES)))

    async def _prepare(self, request: web.Request) -> PrepareResponse:
        prepared = await read_body(request, calls.PREPARE)
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
        self._attempt.record_release(await read_body(request, calls.RELEASE))
        return Accepted()

    # drive

    async def _reset(self, request: web.Request) -> StepResponse:
        key = request.headers.get(IDEMPOTENCY_HEADER, "")
        if not 0 < len(key) <= _KEY_LENGTH:
            message = f"the header {IDEMPOTENCY_HEADER} must have 1 to {_KEY_LENGTH} characters"
            raise CallError(ErrorCode.INVALID_ARGUMENT, message)
        return await self._attempt.reset(key, await read_body(request, calls.RESET))

    async def _step(self, request: web.Request) -> StepResponse:
        seq = _number(request.match_info["seq"], "the step's number")
        return await self._attempt.step(seq, await read_body(request, calls.STEP))

    async def _steps(self, request: web.Request) -> StepsResponse:
        return self._attempt.steps(_number(request.query.get("from", "0"), "from"))

    async def _peek(self, request: web.Request) -> PeekResponse:
        return PeekResponse(observation=await self._attempt.peek(await read_body(request, calls.PEEK)))

    async def _tools(self, _request: web.Request) -> ToolsResponse:
        return self._attempt.tools()

    async def _diff(self, _request: web.Request) -> DiffResponse:
        return DiffResponse(patch=await self._attempt.diff())

    async def _close(self, request: web.Request) -> CloseResponse:
        return CloseResponse(result=await self._attempt.close_episode(await read_body(request, calls.CLOSE)))

    # operate

    async def _verify(self, _request: web.Request) -> VerifyResponse:
        return self._attempt.sandbox_has_ended()

    async def _running(self, request: web.Request) -> Accepted:
        if not self._attempt.sandbox_still_runs(await read_body(request, calls.RUNNING)):
            raise StillRunning
        return Accepted()

    async def _pause(self, request: web.Request) -> Accepted:
        lost = await read_body(request, calls.PAUSE)
        if not self._access.has_newer(lost.epoch):
            self._attempt.pause()
        return Accepted()

    async def _cancel(self, _request: web.Request) -> Accepted:
        if not self._attempt.cancel():
            raise StillRunning
        return Accepted()

    async def _state(self, _request: web.Request) -> AttemptState:
        return self._attempt.state


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
