"""Serve one attempt of an episode until it is released, and write its termination message."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dgym.logs import JsonFormatter, episode_fields, log_to_stderr
from dgym.sidecar.access import Access
from dgym.sidecar.api import Api
from dgym.sidecar.attempt import Attempt
from dgym.sidecar.binding import Binding
from dgym.sidecar.port import Port
from dgym.sidecar.runners import Runners
from dgym.sidecar.settings import PooledSettings, ProcessSettings, Settings
from dgym.sidecar.termination import TerminationLog

_log = logging.getLogger("dgym.sidecar")
T = TypeVar("T")
_MARKER = "begun"
_THREADS = 2


async def serve(settings: Settings | PooledSettings) -> None:
    """Serve until the attempt is released or a signal asks for the end; a pooled sidecar waits to be bound first."""
    # Each thread may take an arena of memory; all they do here is to write and read files.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    _log_as(settings)
    sidecar = _Sidecar(settings)
    try:
        if isinstance(settings, PooledSettings):
            await sidecar.serve_pooled(settings)
        else:
            await sidecar.serve_attempt(settings)
    finally:
        await sidecar.close()


class _Sidecar:
    """What stays when a pooled sidecar becomes that of an attempt: the port and the connections to the runners."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._over = None if _is_first(settings) else "the sidecar was restarted and has no history of this attempt"
        self._stop = _signals()
        self._runners = Runners(settings.sandbox_socket, settings.verifier_socket)
        self._connecting = asyncio.create_task(self._runners.connect()) if self._over is None else None
        self._port = Port(settings)

    async def serve_pooled(self, settings: PooledSettings) -> None:
        """Wait for the attempt and serve it, on the same port."""
        binding = Binding(settings, over=self._over)
        await self._port.serve(binding.application(lambda: self._over or self._runners.missing))
        bound = await self._unless_stopped(binding.settings())
        if bound is None:
            _log.info("ended, and was never bound")
            return
        _log_as(bound)
        _log.info("bound")
        await self.serve_attempt(bound, binding)

    async def serve_attempt(self, settings: Settings, binding: Binding | None = None) -> None:
        """Serve the attempt until it is released or a signal asks for the end."""
        attempt = Attempt(settings, self._runners, over=self._over, record=TerminationLog(settings).record)
        api = Api(attempt, Access(settings.digests), binding.handler if binding is not None else None)
        try:
            await self._port.serve(api.application())
            if binding is not None:
                binding.confirm()
            await self._unless_stopped(attempt.released.wait())
            if self._stop.is_set():
                attempt.tell_to_end()
        finally:
            self._port.stop_listening()
            # Requests in flight end with the session; their clients repeat them elsewhere.
            await attempt.close()
            _log.info("ended", extra={"fields": {"released": attempt.released.is_set()}})

    async def close(self) -> None:
        """End connections and runners."""
        self._port.stop_listening()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._runners.close()
        await self._port.close()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The outcome of ``work``; None: a signal asks for the end."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)


def _log_as(settings: Settings | PooledSettings) -> None:
    """Log from now on with the fields of the episode, if there is one."""
    about = episode_fields(settings.episode, attempt=settings.attempt) if isinstance(settings, Settings) else {}
    log_to_stderr(JsonFormatter(lambda: about), settings.log_level)


def _is_first(settings: ProcessSettings) -> bool:
    """Whether no sidecar served this attempt before: its history would be lost."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(settings.directory / _MARKER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _signals() -> asyncio.Event:
    # Python as PID 1 ignores these until they are handled.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
