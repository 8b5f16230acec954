"""Serve until told to end: first nothing new is taken, then what runs may go on for a while, then all is left."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable

from aiohttp import web

from dgym.env import Patience
from dgym.episodes.models import Models
from dgym.episodes.pod.api import AgentApi, Tokens
from dgym.episodes.pod.assignments import Assignments
from dgym.episodes.pod.attempt import run_assignment
from dgym.episodes.pod.metrics import Metrics
from dgym.episodes.pod.progress import Ending, Report, Shared
from dgym.episodes.pod.settings import AgentSettings
from dgym.results import open_store
from dgym.wire.assignments import Assignment
from dgym.workspace.sources import SourceCache, SourceHosts

_log = logging.getLogger("dgym.episodes.pod")

_GRACE_SECONDS = 1.0
_BACKLOG = 512


async def serve(settings: AgentSettings) -> None:
    """Serve until a signal asks for the end and the running episodes have ended, or their time is up.

    Raises:
        ManifestError: The results store's location is wrong.
        PluginError: The store needs what is not installed.
    """
    metrics = Metrics()
    async with contextlib.AsyncExitStack() as stack:
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
            patience=Patience(silence_seconds=settings.sandbox_silence_seconds),
            store_retry_seconds=settings.store_retry_seconds,
            store_patience_seconds=settings.store_patience_seconds,
        )

        def run(assignment: Assignment, report: Report) -> Awaitable[Ending | None]:
            return run_assignment(assignment, shared, report=report)

        signals = _Signals()
        assignments = await stack.enter_async_context(Assignments(run, slots=settings.slots))
        metrics.watch(assignments.now)
        await _listen(stack, settings, AgentApi(assignments, shared.store, Tokens(settings.tokens_directory), metrics))
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
    # A free port was asked for with 0: which one it is stands in the log.
    _log.info("listening", extra={"fields": {"addresses": [list(each[:2]) for each in runner.addresses]}})


class _Signals:
    """The first asks to end well, the second to end now."""

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
