"""The process of an agent pod: its settings, its life from start to termination, and its HTTP API.

The API has assignments for the operator, stored results for readers, health and metrics.

After the first signal the pod accepts no more assignments, and running episodes may continue for a limited time. After
that time, or at the second signal, they are cancelled.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dgym.env import RetryLimits
from dgym.episodes._player import Models
from dgym.episodes.agent_pod._assignments import (
    Assignments,
    Breakers,
    Ending,
    NoSlot,
    Outdated,
    Report,
    SharedResources,
)
from dgym.episodes.agent_pod._attempt import run_assignment
from dgym.episodes.agent_pod._telemetry import CONTENT_TYPE, Metrics
from dgym.episodes.agent_pod._tokens import DIRECTORY, Tokens
from dgym.errors import ManifestError
from dgym.metric_types import NamespaceMode, sampling_lag
from dgym.results import FILES, ResultsStore, StoreUnavailable, attempt_path, checked_path, open_store
from dgym.tracing import start_tracer
from dgym.wire.assignments import (
    ASSIGN,
    LIST_RESULTS,
    READ_RESULT,
    REPORT,
    WITHDRAW,
    AgentPodReport,
    AgentPodRole,
    Assignment,
    ResultsList,
    StoredFile,
)
from dgym.wire.calls import HEALTH, READY, Call
from dgym.wire.http import Accepted, CallError, ErrorCode, error_body
from dgym.wire.server import json_response, refusal
from dgym.wire.server import serve as serve_call
from dgym.workspace.sources import SourceCache, SourceHosts

T = TypeVar("T")

_CHECK_SECONDS = 10.0
_CHECKED_FOR_SECONDS = 5.0
_PROBED_SECONDS = 60.0
"""An older state of the store is ignored, because readiness is not probed then."""
_READERS = 16
_CODES: dict[type[Exception], ErrorCode] = {
    NoSlot: ErrorCode.BUSY,
    Outdated: ErrorCode.SUPERSEDED,
    ManifestError: ErrorCode.INVALID_ARGUMENT,
    StoreUnavailable: ErrorCode.BUSY,
}


class AgentPodApi:
    """Serves one agent pod. It accepts only episodes and results of ``namespaces``; empty: all."""

    def __init__(
        self,
        assignments: Assignments,
        store: ResultsStore,
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
        """Create the application with all routes."""
        application = web.Application()
        application.add_routes(
            [
                self._route(REPORT, self._report),
                self._route(ASSIGN, self._assign),
                self._route(WITHDRAW, self._withdraw),
                self._route(LIST_RESULTS, self._list_results),
                web.get(READ_RESULT.path, self._guarded(READ_RESULT, self._read_result)),
                web.get(HEALTH, self._healthy),
                web.get(READY, self._ready),
                web.get("/metrics", self._show_metrics),
                web.route("*", "/{path:.*}", self._unknown),
            ]
        )
        return application

    def _route(self, call: Call[Any, T], method: Callable[..., Awaitable[T] | T]) -> web.RouteDef:
        async def handle(request: web.Request) -> web.StreamResponse:
            return json_response(await serve_call(request, call, method))

        return web.route(call.method, call.path, self._guarded(call, handle))

    def _guarded(self, call: Call[Any, Any], handler: Handler) -> Handler:
        role = AgentPodRole(call.roles[0])

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                if not self._tokens.allows(request.headers.get("Authorization", ""), role):
                    raise CallError(ErrorCode.UNAUTHENTICATED, f"the bearer token of the role {role} is needed")
                return await handler(request)
            except CallError as error:
                return refusal(error_body(error.code, str(error)))
            except tuple(_CODES) as error:
                code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
                return refusal(error_body(code, str(error)))

        return handle

    # Assignments

    def _report(self) -> AgentPodReport:
        # Use the state from the last readiness probe, so that a report does not wait for a store that hangs.
        is_known = time.monotonic() - self._store_checked < _PROBED_SECONDS
        problem = (self._store_problem if is_known else None) or ""
        outages = self._breakers.report()
        return msgspec.structs.replace(self._assignments.report(), outages=outages, store_problem=problem)

    def _assign(self, assignment: Assignment, *, uid: str) -> Accepted:
        if assignment.episode_uid != uid:
            raise CallError(ErrorCode.INVALID_ARGUMENT, "the path and the body have different episode UIDs")
        self._check_served(assignment.namespace)
        attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, assignment.attempt)
        self._assignments.assign(assignment)
        return Accepted()

    def _withdraw(self, *, uid: str) -> Accepted:
        self._assignments.withdraw(uid)
        return Accepted()

    def _check_served(self, namespace: str) -> None:
        if self._namespaces and namespace not in self._namespaces:
            served = ", ".join(sorted(self._namespaces))
            raise CallError(ErrorCode.FORBIDDEN, f"this agent pod serves the namespaces {served}, not {namespace}")

    # Results

    async def _list_results(self, *, namespace: str, episode: str) -> ResultsList:
        self._check_served(namespace)
        found = await self._store.files(checked_path(f"{namespace}/{episode}"))
        files = (StoredFile(path=item.path, bytes=item.size) for item in found if item.path.rpartition("/")[2] in FILES)
        return ResultsList(files=tuple(files))

    async def _read_result(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        self._check_served(names["namespace"])
        if names["file"] not in FILES or not (names["attempt"].isascii() and names["attempt"].isdigit()):
            raise CallError(ErrorCode.NOT_FOUND, f"an attempt has the files {', '.join(FILES)}")
        path = checked_path("/".join(names[part] for part in ("namespace", "episode", "uid", "attempt", "file")))
        async with self._readers:
            content = await self._store.open(path)
            if content is None:
                raise CallError(ErrorCode.NOT_FOUND, f"{path} is not stored")
            response = web.StreamResponse(headers={"X-Content-Type-Options": "nosniff"})
            response.content_type = "application/json" if path.endswith(".json") else "text/plain"
            response.content_length = content.size
            await response.prepare(request)
            async for chunk in content.chunks:
                await response.write(chunk)
            await response.write_eof()
        return response

    # Without a token

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        problem = "draining" if self._assignments.draining else await self._problem_of_store()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _unknown(self, _request: web.Request) -> web.Response:
        return refusal(error_body(ErrorCode.NOT_FOUND, "the path or the method is not a call of an agent pod"))

    async def _problem_of_store(self) -> str | None:
        """The store's failure, or None. It is checked at most every few seconds."""
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


_log = logging.getLogger("dgym.episodes.agent_pod")

PREFIX = "DGYM_AGENT_"


class AgentPodSettings(BaseSettings):
    """Settings from environment variables: the prefix ``DGYM_AGENT_`` and the name in capitals.

    ``LLM_CONFIG_FILE_PATH`` is the file that configures models. The ``AWS_*`` variables set a bucket's endpoint, region
    and credentials.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = Field(default="0.0.0.0", description="address to listen on")  # noqa: S104 - guarded by tokens and NetworkPolicy
    port: int = Field(
        default=8081, ge=0, le=65535, description="port to listen on; 0 selects a free port, which is logged"
    )
    slots: int = Field(default=16, ge=1, le=10_000, description="episodes at the same time")
    results: str = Field(
        default="/var/lib/dgym/results", min_length=1, description="results store: a directory or s3://BUCKET/PREFIX"
    )
    tokens_directory: Path = Field(
        default=DIRECTORY,
        description="directory of agent-key, which authenticates the operator, and of results-token-sha256",
    )
    namespaces: str = Field(
        default="", description="namespaces whose episodes it serves, and whose results, with commas; empty: all"
    )
    source_hosts: str = Field(
        default="",
        description="hosts that git and archive sources may come from: HOST, HOST:PORT, *.DOMAIN or *, with commas",
    )
    cache_directory: Path = Field(default=Path("/var/cache/dgym"), description="packed sources")
    cache_limit_bytes: int = Field(default=10 * 1024**3, ge=0, description="maximum size of all packed sources")
    drain_seconds: float = Field(default=600.0, ge=0, description="time for running episodes after SIGTERM")
    store_retry_seconds: float = Field(
        default=30.0, gt=0, description="longest pause between tries while the results store does not answer"
    )
    store_patience_seconds: float = Field(
        default=600.0,
        ge=0,
        description="time for which storing is retried after the episode's pod stopped answering",
    )
    sandbox_silence_seconds: float = Field(
        default=60.0,
        gt=0,
        description="how long requests to a sidecar that does not answer are repeated before it counts as lost",
    )
    metrics_namespace_label: NamespaceMode = Field(
        default="auto",
        description="maximum number of namespaces in labels of episode metrics: `auto` 50, `true` 1,000, `false` none",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="minimum log level")
    pod_name: str = Field(default="", description="name of this pod, for logs")

    @field_validator("source_hosts")
    @classmethod
    def _check_hosts(cls, value: str) -> str:
        try:
            SourceHosts.parse(value)
        except ManifestError as error:
            raise ValueError(str(error)) from None
        return value


_GRACE_SECONDS = 1.0
_BACKLOG = 512


async def serve(settings: AgentPodSettings) -> None:
    """Serve until a signal arrives and the running episodes have ended. They have ``drain_seconds`` after the signal.

    Raises:
        ManifestError: The results store's location is invalid.
        PluginError: The store requires a package that is not installed.
    """
    metrics = Metrics(settings.metrics_namespace_label)
    async with contextlib.AsyncExitStack() as stack:
        tracer = start_tracer("dgym-agent")
        stack.callback(tracer.close)
        models = Models(origin="the chart's value agents.llmConfig (or the Secret agents.existingSecret)")
        stack.push_async_callback(models.close)
        shared = SharedResources(
            store=open_store(settings.results),
            sources=SourceCache(
                settings.cache_directory / "sources",
                limit_bytes=settings.cache_limit_bytes,
                hosts=SourceHosts.parse(settings.source_hosts),
            ),
            models=models,
            metrics=metrics,
            tracer=tracer,
            retry_limits=RetryLimits(silence_seconds=settings.sandbox_silence_seconds),
            store_retry_seconds=settings.store_retry_seconds,
            store_patience_seconds=settings.store_patience_seconds,
        )

        def run(assignment: Assignment, report: Report) -> Awaitable[Ending | None]:
            return run_assignment(assignment, shared, report=report)

        signals = _Signals()
        assignments = await stack.enter_async_context(Assignments(run, slots=settings.slots))
        metrics.add_gauges(assignments.gauges, models.failures, shared.breakers.outages)
        await stack.enter_async_context(sampling_lag(metrics.lag_seconds))
        served = frozenset(filter(None, settings.namespaces.split(",")))
        tokens = Tokens(settings.tokens_directory)
        api = AgentPodApi(assignments, shared.store, tokens, metrics, breakers=shared.breakers, namespaces=served)
        await _listen(stack, settings, api)
        await signals.first.wait()
        assignments.draining = True
        _log.info("draining: running episodes have %.0f s", settings.drain_seconds)
        await _first(settings.drain_seconds, assignments.drained(), signals.second.wait())
    _log.info("ended")


async def _listen(stack: contextlib.AsyncExitStack, settings: AgentPodSettings, api: AgentPodApi) -> None:
    runner = web.AppRunner(api.application(), access_log=None, handle_signals=False, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, settings.host, settings.port, backlog=_BACKLOG).start()
    # With port 0 the log is the only place that shows the chosen port.
    _log.info("listening", extra={"fields": {"addresses": [list(each[:2]) for each in runner.addresses]}})


class _Signals:
    """The first signal starts draining, the second one ends the pod."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def _first(seconds: float, *waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
