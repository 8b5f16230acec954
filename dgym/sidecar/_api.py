"""The HTTP routes of one attempt: each checks the request, limits concurrent calls, signs and logs the answer.

Probes are not signed. The routes of a sidecar in a sandbox pool are different until one call of the operator binds
it to an attempt. Before this call only the operator has a token for the sidecar. The call is answered when the sidecar
serves the calls of the attempt, so that an agent pod or driver that gets its token after the answer is not refused. A
replayed call is refused because of its nonce.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

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
from dgym.sidecar._access import Access, Caller
from dgym.sidecar._attempt import Attempt, StillRunning
from dgym.sidecar.settings import PooledSettings, Settings
from dgym.tracing import Recorder, continue_trace
from dgym.wire import calls
from dgym.wire.calls import HEALTH, READY, Call
from dgym.wire.http import (
    TRACEPARENT_HEADER,
    Accepted,
    BindRequest,
    CallError,
    ErrorBody,
    ErrorCode,
    Role,
    SpansResponse,
    error_body,
)
from dgym.wire.server import json_response, refusal, serve
from dgym.wire.signing import SIGNATURE_HEADER, SignedRequest, sign_answer

_log = logging.getLogger(__name__)
T = TypeVar("T")
MAXIMUM_CALLS = 64
_READY_TRIES = 50
_READY_PAUSE = 0.02
"""Seconds between two tries; all tries take one second."""


class Guard:
    """Serves only calls that are signed and allowed for the role of the caller.

    Args:
        access: Checks requests.
        within: Returns the context manager in which the call of an authorized caller is served.
    """

    def __init__(
        self,
        access: Access,
        within: Callable[[Caller, web.Request], AbstractContextManager[object]] = lambda *_: nullcontext(),
    ) -> None:
        self._access = access
        self._within = within
        self._calls = 0

    def route(self, call: Call[Any, T], method: Callable[..., Awaitable[T] | T]) -> web.RouteDef:
        """Return the route of ``call``, which is served by ``method``."""
        return web.route(call.method, call.path, self.handler(call, method))

    def handler(self, call: Call[Any, T], method: Callable[..., Awaitable[T] | T]) -> Handler:
        """Return a handler that serves ``call`` by ``method``."""

        async def handle(request: web.Request) -> web.Response:
            started = time.monotonic()
            response, code = await self._answer(request, call, method)
            seconds = round(time.monotonic() - started, 4)
            fields = {"method": request.method, "path": request.path, "code": code, "seconds": seconds}
            _log.info("call", extra={"fields": fields})
            return response

        return handle

    async def _answer(
        self, request: web.Request, call: Call[Any, T], method: Callable[..., Awaitable[T] | T]
    ) -> tuple[web.Response, str]:
        self._calls += 1
        signed = None
        try:
            signed = self._access.identify(request.method, request.raw_path, request.headers)
            if self._calls > MAXIMUM_CALLS:
                raise CallError(ErrorCode.BUSY, f"more than {MAXIMUM_CALLS} calls at once")
            caller = self._access.authorize(signed.role, request.headers, call.roles)
            with self._within(caller, request):
                answer = await serve(request, call, method, content=signed.content)
            self._access.check_current(caller)
            return _signed(json_response(answer), signed), "ok"
        except StillRunning:
            return _signed(json_response(Accepted(running=True), status=202), signed), "running"
        except ConnectionError:
            raise  # the client has closed the connection
        except Exception as error:
            body = describe(error)
            if body.code is ErrorCode.INTERNAL:
                _log.exception("the call failed")
            return _signed(refusal(body), signed), body.code
        finally:
            self._calls -= 1


def add_probes(router: web.UrlDispatcher, problem: Callable[[], str | None]) -> None:
    """Add the probes of the kubelet. The sidecar is ready if ``problem()`` returns None.

    The readiness probe waits for up to a second before it answers that the sidecar is not ready, because the next probe
    follows only a second later.
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

    router.add_get(HEALTH, health)
    router.add_get(READY, ready)


def refuse(code: ErrorCode, message: str) -> Handler:
    """Return a handler that answers all requests with this error, without checking their signature."""

    async def handle(_request: web.Request) -> web.Response:
        return refusal(error_body(code, message))

    return handle


def _signed(response: web.Response, signed: SignedRequest | None) -> web.Response:
    """Sign ``response`` with the key of the request. If the request is not signed by a role, it is not signed."""
    if signed is not None:
        assert isinstance(response.body, bytes)
        signature = sign_answer(signed.key, signed.authorization, response.status, response.body)
        response.headers[SIGNATURE_HEADER] = signature
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
    """Return the body of the answer to a call that raised ``error``. The text of an unexpected error is only logged."""
    if isinstance(error, CallError):
        return error_body(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_body(code, str(error))
    return error_body(ErrorCode.INTERNAL, f"the sidecar failed ({type(error).__name__}); its log has the details")


class Api:
    """Serves one attempt.

    Args:
        attempt: The attempt.
        bind: Handler of repeated ``bind`` calls; None if the sidecar is not from a sandbox pool.
    """

    def __init__(self, attempt: Attempt, bind: Handler | None = None) -> None:
        self._attempt = attempt
        message = "the sidecar was started for an attempt and cannot be bound"
        self._bind = bind or refuse(ErrorCode.UNAUTHENTICATED, message)
        self._recorder = Recorder()

    def application(self) -> web.Application:
        """Return the application with all routes."""
        application, attempt = web.Application(), self._attempt
        route = Guard(attempt.access, self._serving).route
        application.add_routes(
            [
                route(calls.WORKSPACE, attempt.upload_workspace),
                route(calls.TRAJECTORY, attempt.upload_trajectory),
                route(calls.PREPARE, attempt.prepare),
                route(calls.APPLY_SOLUTION, attempt.apply_solution),
                route(calls.RESULT, attempt.wait_for_result),
                route(calls.SPANS, lambda: SpansResponse(spans=self._recorder.spans())),
                route(calls.RELEASE, attempt.release),
                route(calls.RESET, attempt.reset),
                route(calls.STEP, attempt.step),
                route(calls.STEPS, attempt.steps),
                route(calls.PEEK, attempt.peek),
                route(calls.TOOLS, attempt.tools),
                route(calls.PATCH, attempt.patch),
                route(calls.FINISH, attempt.finish),
                route(calls.TERMINATED, attempt.terminated),
                route(calls.RUNNING, attempt.running),
                route(calls.PAUSE, attempt.pause),
                route(calls.CANCEL, attempt.cancel),
                route(calls.STATE, attempt.state),
                web.route(calls.BIND.method, calls.BIND.path, self._bind),
            ]
        )
        add_probes(application.router, lambda: attempt.problem)
        message = "the sidecar does not have a call with this path and method"
        application.router.add_route("*", "/{path:.*}", refuse(ErrorCode.NOT_FOUND, message))
        return application

    @contextmanager
    def _serving(self, caller: Caller, request: web.Request) -> Iterator[None]:
        """Serve a call: it renews the lease of a driver, and is recorded as a span of the caller's trace."""
        lease = self._attempt.lease.call() if caller.role is Role.DRIVE else nullcontext()
        with lease, self._span(request):
            yield

    def _span(self, request: web.Request) -> AbstractContextManager[object]:
        """Start the span of a call. Only for authorized callers, because spans are kept in memory."""
        route = request.match_info.route.resource
        name = f"{request.method} {route.canonical if route is not None else request.path}"
        header, record = request.headers.get(TRACEPARENT_HEADER, ""), self._recorder.record
        return continue_trace(header, record, name, answers=(StillRunning, CallError))


class Binding:
    """Serves the call that binds the sidecar, and its repetitions.

    Args:
        settings: Settings of the sidecar in the sandbox pool.
        over: Why the sidecar cannot be bound any more; None if it can.
    """

    def __init__(self, settings: PooledSettings, *, over: str | None) -> None:
        self._settings = settings
        self._over = over
        self._request: BindRequest | None = None
        self._requested = asyncio.Event()
        self._served = asyncio.Event()
        guard = Guard(Access({Role.OPERATE: settings.bind_sha256}))
        self.handler: Handler = guard.handler(calls.BIND, self._bind)

    def application(self, problem: Callable[[], str | None]) -> web.Application:
        """Return the application of a sidecar that is not bound. It is ready if ``problem()`` returns None."""
        application = web.Application(middlewares=[_close_connection])
        application.router.add_route(calls.BIND.method, calls.BIND.path, self.handler)
        add_probes(application.router, problem)
        message = "the sidecar is not bound to an attempt yet, so that it does not accept this call"
        application.router.add_route("*", "/{path:.*}", refuse(ErrorCode.UNAUTHENTICATED, message))
        return application

    async def settings(self) -> Settings:
        """Wait until the sidecar is bound, and return the settings of its attempt."""
        await self._requested.wait()
        assert self._request is not None
        return self._settings.bound(self._request)

    def confirm(self) -> None:
        """Answer the call, because the attempt is served now."""
        self._served.set()

    async def _bind(self, wanted: BindRequest) -> Accepted:
        if self._over is not None:
            raise CallError(ErrorCode.ATTEMPT_OVER, self._over)
        if self._request is None:
            self._check(wanted)
            self._request = wanted
            self._requested.set()
        elif wanted != self._request:
            raise CallError(ErrorCode.CONFLICT, "the sidecar is bound to another attempt, or with other tokens")
        await self._served.wait()
        return Accepted()

    def _check(self, wanted: BindRequest) -> None:
        """Check that no token of the attempt is equal to the token of this call, because it could repeat the call."""
        digests = {
            "prepareSha256": wanted.prepare_sha256,
            "driveSha256": wanted.drive_sha256,
            "operateSha256": wanted.operate_sha256,
        }
        for name, digest in digests.items():
            if digest == self._settings.bind_sha256:
                message = f"{name} is the digest of the token that binds; use different tokens"
                raise CallError(ErrorCode.INVALID_ARGUMENT, message)


@web.middleware
async def _close_connection(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Close each connection after one request, because the next request may be for the attempt's application."""
    response = await handler(request)
    response.force_close()
    return response
