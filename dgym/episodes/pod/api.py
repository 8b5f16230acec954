"""The calls of an agent over HTTP: assignments for the operator, stored results for readers, health and metrics."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from dgym.decoding import DECODE_ERRORS
from dgym.episodes.pod.assignments import Assignments, NoSlot, Outdated
from dgym.episodes.pod.breaker import Breakers
from dgym.episodes.pod.metrics import CONTENT_TYPE, Metrics
from dgym.episodes.pod.tokens import Tokens
from dgym.errors import ManifestError
from dgym.results import FILES, Store, StoreUnavailable, attempt_path, checked_path
from dgym.wire.assignments import (
    ASSIGNMENT_LIMIT,
    ASSIGNMENTS_PATH,
    RESULTS_PATH,
    AgentRole,
    Assignment,
    ResultsList,
    StoredFile,
)
from dgym.wire.http import Accepted, ErrorCode, error_body

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BODY_SECONDS = 30.0
_CHECK_SECONDS = 10.0
_CHECKED_FOR_SECONDS = 5.0
_PROBED_SECONDS = 60.0
"""A state of the store that is older counts for nothing: nobody probes readiness."""
_READERS = 16


class _CallError(Exception):
    """A call is refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class AgentApi:
    """Serves one worker. ``namespaces`` are those whose episodes and results it serves; empty: all."""

    def __init__(
        self,
        assignments: Assignments,
        store: Store,
        tokens: Tokens,
        metrics: Metrics,
        *,
        breakers: Breakers,
        namespaces: frozenset[str] = frozenset(),
    ) -> None:
        self._namespaces = namespaces
        self._assignments = assignments
        self._store = store
        self._tokens = tokens
        self._metrics = metrics
        self._breakers = breakers
        self._store_problem: str | None = None
        self._store_checked = float("-inf")
        self._checking = asyncio.Lock()
        self._readers = asyncio.Semaphore(_READERS)

    def application(self) -> web.Application:
        """The application with all routes."""
        application = web.Application(client_max_size=ASSIGNMENT_LIMIT)
        router = application.router
        assign, results = AgentRole.ASSIGN, AgentRole.RESULTS
        router.add_get(ASSIGNMENTS_PATH, self._guarded(assign, self._report))
        router.add_get(ASSIGNMENTS_PATH + "/{uid}", self._guarded(assign, self._status))
        router.add_put(ASSIGNMENTS_PATH + "/{uid}", self._guarded(assign, self._put))
        router.add_delete(ASSIGNMENTS_PATH + "/{uid}", self._guarded(assign, self._delete))
        router.add_get(RESULTS_PATH + "/{namespace}/{episode}", self._guarded(results, self._list))
        router.add_get(
            RESULTS_PATH + "/{namespace}/{episode}/{uid}/{attempt}/{file}", self._guarded(results, self._file)
        )
        router.add_get("/healthz", self._healthy)
        router.add_get("/readyz", self._ready)
        router.add_get("/metrics", self._show_metrics)
        router.add_route("*", "/{path:.*}", self._unknown)
        return application

    def _guarded(self, role: AgentRole, handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                if not self._tokens.allows(request.headers.get("Authorization", ""), role):
                    raise _CallError(ErrorCode.UNAUTHENTICATED, f"the bearer token of the role {role} is needed")
                return await handler(request)
            except _CallError as error:
                return _refusal(error.code, str(error))
            except NoSlot as error:
                return _refusal(ErrorCode.BUSY, str(error))
            except Outdated as error:
                return _refusal(ErrorCode.SUPERSEDED, str(error))
            except ManifestError as error:
                return _refusal(ErrorCode.INVALID_ARGUMENT, str(error))
            except StoreUnavailable as error:
                return _refusal(ErrorCode.BUSY, str(error))

        return handle

    # assignments

    async def _report(self, _request: web.Request) -> web.Response:
        # The store's state is that of the last readiness probe: a report does not wait for a store that hangs.
        is_known = time.monotonic() - self._store_checked < _PROBED_SECONDS
        problem = (self._store_problem if is_known else None) or ""
        outages = self._breakers.report()
        return _json(msgspec.structs.replace(self._assignments.report(), outages=outages, store_problem=problem))

    async def _status(self, request: web.Request) -> web.Response:
        status = self._assignments.status(request.match_info["uid"])
        if status is None:
            raise _CallError(ErrorCode.NOT_FOUND, "the episode is not known here")
        return _json(status)

    async def _put(self, request: web.Request) -> web.Response:
        assignment = await _read(request)
        if assignment.episode_uid != request.match_info["uid"]:
            raise _CallError(ErrorCode.INVALID_ARGUMENT, "the address names another episode than the body")
        self._check_served(assignment.namespace)
        attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, assignment.attempt)
        return _json(self._assignments.put(assignment))

    async def _delete(self, request: web.Request) -> web.Response:
        self._assignments.delete(request.match_info["uid"])
        return _json(Accepted())

    def _check_served(self, namespace: str) -> None:
        if self._namespaces and namespace not in self._namespaces:
            served = ", ".join(sorted(self._namespaces))
            raise _CallError(ErrorCode.FORBIDDEN, f"this agent serves the namespaces {served}, not {namespace}")

    # results

    async def _list(self, request: web.Request) -> web.Response:
        names = request.match_info
        self._check_served(names["namespace"])
        found = await self._store.files(checked_path(f"{names['namespace']}/{names['episode']}"))
        files = (StoredFile(path=item.path, bytes=item.size) for item in found if item.path.rpartition("/")[2] in FILES)
        return _json(ResultsList(files=tuple(files)))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        self._check_served(names["namespace"])
        if names["file"] not in FILES or not (names["attempt"].isascii() and names["attempt"].isdigit()):
            raise _CallError(ErrorCode.NOT_FOUND, f"an attempt has the files {', '.join(FILES)}")
        path = checked_path("/".join(names[part] for part in ("namespace", "episode", "uid", "attempt", "file")))
        async with self._readers:
            content = await self._store.open(path)
            if content is None:
                raise _CallError(ErrorCode.NOT_FOUND, f"{path} is not stored")
            response = web.StreamResponse(headers={"X-Content-Type-Options": "nosniff"})
            response.content_type = "application/json" if path.endswith(".json") else "text/plain"
            response.content_length = content.size
            await response.prepare(request)
            async for chunk in content.chunks:
                await response.write(chunk)
            await response.write_eof()
        return response

    # open

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        problem = "draining" if self._assignments.draining else await self._problem_of_store()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _unknown(self, _request: web.Request) -> web.Response:
        return _refusal(ErrorCode.NOT_FOUND, "there is nothing here")

    async def _problem_of_store(self) -> str | None:
        """The store's failure, checked at most every few seconds; None where it works."""
        async with self._checking:
            if time.monotonic() - self._store_checked > _CHECKED_FOR_SECONDS:
                try:
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await self._store.check()
                    self._store_problem = None
                except (StoreUnavailable, TimeoutError) as error:
                    self._metrics.store_failed()
                    self._store_problem = str(error) or f"the results store took longer than {_CHECK_SECONDS:.0f} s"
                self._store_checked = time.monotonic()
            return self._store_problem


async def _read(request: web.Request) -> Assignment:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return msgspec.json.decode(await request.read(), type=Assignment)
    except TimeoutError:
        raise _CallError(ErrorCode.INVALID_ARGUMENT, "the body did not arrive") from None
    except web.HTTPRequestEntityTooLarge:
        raise _CallError(ErrorCode.TOO_LARGE, f"an assignment has at most {ASSIGNMENT_LIMIT:,} bytes") from None
    except DECODE_ERRORS as error:
        raise _CallError(ErrorCode.INVALID_ARGUMENT, f"the body is wrong: {error}") from None


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _refusal(code: ErrorCode, message: str) -> web.Response:
    response = _json(error_body(code, message), status=code.status)
    if code in (ErrorCode.UNAUTHENTICATED, ErrorCode.TOO_LARGE):
        # What the caller still sends is not read.
        response.force_close()
    return response
