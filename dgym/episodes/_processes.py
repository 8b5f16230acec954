"""Worker processes that run a coroutine function on payloads, many at a time in one event loop.

They isolate work that may block its event loop or crash its process. This module does not depend on the kind of work.
Processes are forked from a server that has imported the required modules, so another process takes milliseconds and
little memory. If the pipe is closed, the process cancels its work and ends.

In the process, one thread reads the pipe and another one writes it. So a full pipe does not block the event loop, and a
blocked event loop does not block the sending process.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

P = TypeVar("P")
E = TypeVar("E")
R = TypeVar("R")

_THREADS = 64
"""Threads for blocking calls in a process: a clone or a download may occupy one for minutes."""
_ORPHAN_SECONDS = 60.0


class Reported(msgspec.Struct, Generic[E], frozen=True):
    """An event of a payload's work."""

    event: E


class Returned(msgspec.Struct, Generic[R], frozen=True):
    """The work on a payload returned."""

    value: R


class RunFailed(msgspec.Struct, frozen=True):
    """The work on a payload raised. The process continues with its other payloads."""

    error: str


Message: TypeAlias = Reported[E] | Returned[R] | RunFailed
Run: TypeAlias = Callable[[P, Callable[[E], None]], Awaitable[R]]
Work: TypeAlias = Callable[[], AbstractAsyncContextManager[Run[P, E, R]]]
"""Creates, in the process, the coroutine function and the resources that its runs share. It must be picklable."""


class WorkerProcess(Generic[P, E, R]):
    """One process, and the payloads that were sent to it and have not returned.

    Args:
        work: The work of the process.
        preload: Modules that the server imports before it forks its first process.
    """

    def __init__(self, work: Work[P, E, R], *, preload: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        ours, theirs = context.Pipe()
        self._pipe = cast("Connection[tuple[int, P], tuple[int, Message[E, R]]]", ours)
        self._process: ForkServerProcess = context.Process(target=_serve, args=(theirs, work), name="dgym-worker")
        with _interrupts_blocked():
            self._process.start()
        theirs.close()
        self.payloads: dict[int, P] = {}
        self._ends: dict[int, float] = {}
        self.overdue = False
        """Whether the process was killed because a payload exceeded its time limit."""

    @property
    def exit_status(self) -> int | None:
        """The exit status of the ended process; negative for a signal."""
        return self._process.exitcode

    def send(self, key: int, payload: P, *, seconds: float) -> None:
        """Start the work on ``payload``. If the process has died, ``receive`` raises."""
        self.payloads[key] = payload
        self.limit(key, seconds=seconds)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((key, payload))

    def limit(self, key: int, *, seconds: float) -> None:
        """Set the time limit of a payload to ``seconds`` from now."""
        self._ends[key] = time.monotonic() + seconds

    def receive(self) -> tuple[int, P, Message[E, R]]:
        """Return the next message with the key and the payload.

        Raises:
            EOFError: The process has ended. ``payloads`` has those that did not return.
        """
        try:
            key, message = self._pipe.recv()
        except OSError as error:
            raise EOFError from error
        payload = self.payloads[key]
        if not isinstance(message, Reported):
            del self.payloads[key], self._ends[key]
        return key, payload, message

    def kill_if_overdue(self) -> None:
        """Kill the process if a payload has exceeded its time limit, which the limits of the work should prevent."""
        if not self.overdue and any(time.monotonic() > end for end in self._ends.values()):
            self.overdue = True
            self._process.kill()

    def terminate(self) -> None:
        """Ask the process to cancel its work and end."""
        self._process.terminate()

    def end(self, *, seconds: float = 0.0) -> None:
        """Wait until the process has ended, kill it after ``seconds``, and free its resources."""
        self._process.join(max(0.0, seconds))
        if self._process.is_alive():
            self._process.kill()
        self._pipe.close()
        self._process.join()

    def fileno(self) -> int:
        """The pipe's descriptor. It is readable if ``receive`` does not block."""
        return self._pipe.fileno()


W = TypeVar("W", bound=WorkerProcess[Any, Any, Any])


def ready(processes: Sequence[W], *, seconds: float) -> list[W]:
    """Wait up to ``seconds`` for processes whose ``receive`` does not block, and return them."""
    return cast("list[W]", wait(cast("list[Any]", processes), timeout=seconds))


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT while a child starts, so that the child inherits the block until it can handle the signal.

    The resource tracker is started first, because starting it together with a process would unblock SIGINT.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: "Connection[Any, Any]", work: Work[P, E, R]) -> None:
    """Run payloads from the pipe until it is closed or SIGTERM arrives; both cancel the running work.

    A terminal sends Ctrl-C to the whole foreground group, and the main process handles it. So SIGINT is caught and
    dropped here. It is not ignored, because programs that are started from here would inherit that.
    """
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run_all(pipe, work))


async def _run_all(pipe: "Connection[Any, Any]", work: Work[P, E, R]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="dgym-blocking"))
    main = asyncio.current_task()
    assert main is not None
    loop.add_signal_handler(signal.SIGTERM, main.cancel)
    payloads: asyncio.Queue[tuple[int, P]] = asyncio.Queue()
    threading.Thread(target=_read, args=(pipe, loop, payloads, main), name="dgym-pipe", daemon=True).start()
    with ThreadPoolExecutor(1, thread_name_prefix="dgym-events") as sender:

        async def run_one(run: Run[P, E, R], key: int, payload: P) -> None:
            try:
                value = await run(payload, lambda event: send(key, Reported(event)))
            except Exception as error:
                traceback.print_exc()
                send(key, RunFailed(f"{type(error).__name__}: {error}"))
            except asyncio.CancelledError as error:
                if not main.cancelling():
                    send(key, RunFailed(type(error).__name__))
                raise
            else:
                send(key, Returned(value))

        def send(key: int, message: Message[E, R]) -> None:
            # If the pipe is closed, the future keeps the error and the reader handles it.
            sender.submit(pipe.send, (key, message))

        async with work() as run, asyncio.TaskGroup() as group:
            while True:
                key, payload = await payloads.get()
                group.create_task(run_one(run, key, payload), name=f"dgym-payload-{key}")


def _read(
    pipe: "Connection[Any, tuple[int, P]]",
    loop: asyncio.AbstractEventLoop,
    payloads: "asyncio.Queue[tuple[int, P]]",
    main: "asyncio.Task[Any]",
) -> None:
    """Pass payloads from the pipe to the event loop.

    When the pipe is closed, cancel everything, and end the process if that takes too long.
    """
    try:
        with contextlib.suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(payloads.put_nowait, pipe.recv())
    finally:
        with contextlib.suppress(RuntimeError):  # The loop may be closed already.
            loop.call_soon_threadsafe(main.cancel)
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)
