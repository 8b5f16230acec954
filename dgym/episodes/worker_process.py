"""A worker process: takes one job at a time from its pipe, plays it, and sends back what happens.

The pipe is its life line: when the other end is gone, so is whoever wanted the result, and the worker ends.
"""

import asyncio
import contextlib
import signal
from multiprocessing.connection import Connection

from dgym.episodes.job import Event, Job
from dgym.episodes.local import run_episode
from dgym.episodes.models import Models


def serve(pipe: "Connection[Event, Job | None]") -> None:
    """Serve until the pipe says so (None or its end) or SIGTERM comes; a running episode is cancelled then.

    Ctrl-C reaches the whole foreground group of a terminal. The main process decides what it means, so here it is
    caught and dropped (not ignored: programs started from here would inherit that).
    """
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(pipe))


async def _serve(pipe: "Connection[Event, Job | None]") -> None:
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    jobs: asyncio.Queue[Job | None] = asyncio.Queue()

    def receive() -> None:
        try:
            jobs.put_nowait(pipe.recv())
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            main.cancel()

    def report(event: Event) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pipe.send(event)

    loop.add_signal_handler(signal.SIGTERM, main.cancel)
    loop.add_reader(pipe.fileno(), receive)
    models = Models()
    try:
        while (job := await jobs.get()) is not None:
            await run_episode(job, report, models=models)
    finally:
        await models.close()
