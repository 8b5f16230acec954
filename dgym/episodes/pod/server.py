"""The process of an agent pod: its settings, and how it serves until it is asked to end.

At the first signal the pod accepts no more assignments, and running episodes may go on for a while; at the second, or
when that time is up, they are cancelled.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal

from aiohttp import web
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dgym.env import Patience
from dgym.episodes.player import Models
from dgym.episodes.pod.api import AgentApi
from dgym.episodes.pod.assignments import Assignments
from dgym.episodes.pod.attempt import run_assignment
from dgym.episodes.pod.metrics import Metrics
from dgym.episodes.pod.progress import Ending, Report, Shared
from dgym.episodes.pod.tokens import DIRECTORY, Tokens
from dgym.errors import ManifestError
from dgym.metrics import NamespaceMode, sampling_lag
from dgym.results import open_store
from dgym.tracing import start_tracer
from dgym.wire.assignments import Assignment
from dgym.workspace.sources import SourceCache, SourceHosts

_log = logging.getLogger("dgym.episodes.pod")

PREFIX = "DGYM_AGENT_"


class AgentSettings(BaseSettings):
    """Each is an environment variable: the prefix ``DGYM_AGENT_`` and the name in capitals.

    Models are configured where ``LLM_CONFIG_FILE_PATH`` says; a bucket's endpoint, region and credentials are the
    ``AWS_*`` variables.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = Field(default="0.0.0.0", description="address to listen on")  # noqa: S104 - guarded by tokens and NetworkPolicy
    port: int = Field(
        default=8081, ge=0, le=65535, description="port to listen on; 0 takes a free one and says so in the log"
    )
    slots: int = Field(default=16, ge=1, le=10_000, description="episodes at the same time")
    results: str = Field(
        default="/var/lib/dgym/results", min_length=1, description="results store: a directory or s3://BUCKET/PREFIX"
    )
    tokens_directory: Path = Field(
        default=DIRECTORY,
        description="holds agent-key, by which this pod knows the operator, and results-token-sha256",
    )
    namespaces: str = Field(
        default="", description="namespaces whose episodes it serves, and whose results, with commas; empty: all"
    )
    source_hosts: str = Field(
        default="",
        description="hosts that git and archive sources may come from: HOST, HOST:PORT, *.DOMAIN or *, with commas",
    )
    cache_directory: Path = Field(default=Path("/var/cache/dgym"), description="packed sources")
    cache_limit_bytes: int = Field(default=10 * 1024**3, ge=0, description="what packed sources may take together")
    drain_seconds: float = Field(default=600.0, ge=0, description="how long running episodes may go on after SIGTERM")
    store_retry_seconds: float = Field(
        default=30.0, gt=0, description="longest pause between tries while the results store does not answer"
    )
    store_patience_seconds: float = Field(
        default=600.0,
        ge=0,
        description="how long the results store is asked again once the episode's pod is gone, too",
    )
    sandbox_silence_seconds: float = Field(
        default=60.0,
        gt=0,
        description="how long requests to a sidecar that does not answer are repeated before it counts as lost",
    )
    metrics_namespace_label: NamespaceMode = Field(
        default="auto",
        description="namespaces that metrics of episodes name at most: `auto` 50, `true` 1,000, `false` none",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="what is logged")
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


async def serve(settings: AgentSettings) -> None:
    """Serve until a signal and the end of the running episodes, which have ``drain_seconds`` from then.

    Raises:
        ManifestError: The results store's location is wrong.
        PluginError: The store needs what is not installed.
    """
    metrics = Metrics(settings.metrics_namespace_label)
    async with contextlib.AsyncExitStack() as stack:
        tracer = start_tracer("dgym-agent")
        stack.callback(tracer.close)
        models = Models(origin="the chart's value agents.llmConfig (or the Secret agents.existingSecret)")
        stack.push_async_callback(models.close)
        shared = Shared(
            store=open_store(settings.results),
            sources=SourceCache(
                settings.cache_directory / "sources",
                limit_bytes=settings.cache_limit_bytes,
                hosts=SourceHosts.parse(settings.source_hosts),
            ),
            models=models,
            metrics=metrics,
            tracer=tracer,
            patience=Patience(silence_seconds=settings.sandbox_silence_seconds),
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
        api = AgentApi(assignments, shared.store, tokens, metrics, breakers=shared.breakers, namespaces=served)
        await _listen(stack, settings, api)
        await signals.first.wait()
        assignments.draining = True
        _log.info("draining: running episodes have %.0f s", settings.drain_seconds)
        await _first(settings.drain_seconds, assignments.drained(), signals.second.wait())
    _log.info("ended")


async def _listen(stack: contextlib.AsyncExitStack, settings: AgentSettings, api: AgentApi) -> None:
    runner = web.AppRunner(api.application(), access_log=None, handle_signals=False, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, settings.host, settings.port, backlog=_BACKLOG).start()
    # With port 0 the log is where the port that was found is named.
    _log.info("listening", extra={"fields": {"addresses": [list(each[:2]) for each in runner.addresses]}})


class _Signals:
    """The first signal asks for a drain, the second for the end."""

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
