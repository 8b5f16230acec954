"""Serve one attempt of an episode until it is released, and write its termination message."""

import asyncio
import contextlib
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from dgym.sidecar.access import Access, Connections
from dgym.sidecar.api import Api
from dgym.sidecar.attempt import Attempt
from dgym.sidecar.runners import Runners
from dgym.sidecar.settings import Settings
from dgym.sidecar.termination import TerminationLog

_log = logging.getLogger("dgym.sidecar")
_MARKER = "begun"
_GRACE_SECONDS = 1.0
_IDLE_SECONDS = 75.0
_THREADS = 2


async def serve(settings: Settings) -> None:
    """Serve until the attempt is released or a signal asks for the end."""
    # Each thread may take an arena of memory; all they do here is to write and read files.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    runners = Runners(settings.sandbox_socket, settings.verifier_socket)
    over = None if _is_first(settings) else "the sidecar was restarted and has no history of this attempt"
    attempt = Attempt(settings, runners, over=over, record=TerminationLog(settings).record)
    runner = web.AppRunner(
        Api(attempt, Access(settings.digests)).application(),
        access_log=None,
        handle_signals=False,
        keepalive_timeout=_IDLE_SECONDS,
        shutdown_timeout=_GRACE_SECONDS,
    )
    await runner.setup()
    stop = _signals()
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(attempt.released.wait())]
    background = [*waits, asyncio.create_task(runners.connect())] if over is None else waits
    stack = contextlib.ExitStack()
    try:
        assert runner.server is not None
        connections = Connections(runner.server, allow_local=settings.allow_local_connections)
        server = await asyncio.get_running_loop().create_server(connections, settings.host, settings.port)
        stack.callback(server.close)
        # Port 0 takes a free one, whose number the log has.
        addresses = [list(each.getsockname()[:2]) for each in server.sockets]
        _log.info("listening", extra={"fields": {"addresses": addresses}})
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            attempt.tell_to_end()
        _log.info("refused connections", extra={"fields": {"refused": connections.refused}})
    finally:
        stack.close()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        # Requests in flight end with the session; their clients repeat them elsewhere.
        await attempt.close()
        await runner.cleanup()
        _log.info("ended", extra={"fields": {"released": attempt.released.is_set()}})


def _is_first(settings: Settings) -> bool:
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
