"""A pool of worker processes, one episode in each at a time.

A process per episode, because an episode can take its process with it (memory, a crash in an extension) and must take
nothing else. Processes are forked from a server that has imported what an episode needs, so that one more costs
milliseconds and few pages. The main process does nothing but wait for pipes.
"""

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import cast

import msgspec

from dgym.episodes.job import Event, Finished, Job, Stepped
from dgym.episodes.local import run_episode, store_lost
from dgym.episodes.player import Hooks
from dgym.episodes.schedule import Schedule
from dgym.episodes.worker_process import serve
from dgym.results import StoredResult
from dgym.session import SETUP_TIMEOUT_SECONDS

_FETCH_SECONDS = 2 * 3600.0
"""Pulling an image, fetching sources, installing requirements (and waiting while another process does)."""
_BUILD_SECONDS = 1800.0
_COPY_SECONDS = 1200.0
"""Carrying the changes over, and back what is protected."""
_RUNS = 3
"""Runs of the entrypoint at scoring: collecting, the tests, the canary."""
MARGIN_SECONDS = 120.0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of the job to the first observation, and from there to the result."""

    prepare: float
    play: float


def bounds_of(job: Job) -> Bounds:
    """The bounds of ``job``: deadline, verification and a margin once it has begun."""
    task = job.task.spec
    setup = len(task.setup_commands) * SETUP_TIMEOUT_SECONDS
    entrypoint = float(task.entrypoint_timeout_seconds)
    verification = setup + len(task.build_commands) * _BUILD_SECONDS + _RUNS * entrypoint + _COPY_SECONDS
    return Bounds(
        prepare=_FETCH_SECONDS + 2 * setup + entrypoint + MARGIN_SECONDS,
        play=job.spec.active_deadline_seconds + verification + MARGIN_SECONDS,
    )


Listener = Callable[[Job, Event], None]

STOP_SECONDS = 3.5
"""How long cancelled episodes may take to clean up after Ctrl-C before their processes are killed."""

_RETRIES = 1
_TICK_SECONDS = 0.5


def preloaded(jobs: Sequence[Job]) -> tuple[str, ...]:
    """What every worker shares with the process it is forked from; a model's client takes a second to import."""
    asks_a_model = any(job.agent.model is not None for job in jobs)
    return (
        ("dgym.episodes.worker_process", "dgym.llm.openai_client")
        if asks_a_model
        else ("dgym.episodes.worker_process",)
    )


class _Worker:
    """One worker process and the job it has."""

    def __init__(self, *, preload: Sequence[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        ours, theirs = context.Pipe()
        self.pipe = cast("Connection[Job | None, Event]", ours)
        self.process: ForkServerProcess = context.Process(target=serve, args=(theirs,), name="dgym-worker")
        with _interrupts_blocked():
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.bounds: Bounds | None = None
        self.ends = 0.0
        self.overdue = False

    def give(self, job: Job, bounds: Bounds) -> None:
        """Start ``job``; a worker that died meanwhile shows when its pipe is read."""
        self.job, self.bounds = job, bounds
        self.ends = time.monotonic() + bounds.prepare
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(job)

    def began(self) -> None:
        """The episode's first observation is there: its clock runs from now."""
        assert self.bounds is not None
        self.ends = time.monotonic() + self.bounds.play

    def kill_if_overdue(self) -> None:
        """A worker that keeps none of the episode's limits any more is blocked and would be forever."""
        if self.job is not None and not self.overdue and time.monotonic() > self.ends:
            self.overdue = True
            self.process.kill()

    def discard(self) -> None:
        """Free what a process that has ended still holds here."""
        self.pipe.close()
        self.process.join()


class Pool:
    """Runs jobs in ``workers`` processes and tells ``listener`` what happens, in the calling thread."""

    def __init__(
        self,
        *,
        workers: int,
        listener: Listener,
        tick: Callable[[], None] = lambda: None,
        bounds: Callable[[Job], Bounds] = bounds_of,
    ) -> None:
        self._size = workers
        self._bounds = bounds
        self._listener = listener
        self._tick = tick
        self._workers: list[_Worker] = []
        self._deaths: Counter[int] = Counter()
        self._preload: tuple[str, ...] = ()

    def run(self, jobs: Sequence[Job]) -> None:
        """Run every job to its stored result. ``KeyboardInterrupt`` passes through once all processes have ended."""
        schedule = Schedule(jobs)
        self._preload = preloaded(jobs)
        try:
            self._fill(schedule)
            while not schedule.finished:
                self._wait(schedule)
                self._fill(schedule)
                self._tick()
        finally:
            self._stop()

    def _fill(self, schedule: Schedule) -> None:
        """Give work to idle workers, starting new ones up to the pool's size."""
        idle = [worker for worker in self._workers if worker.job is None]
        while idle or len(self._workers) < self._size:
            job = schedule.next()
            if job is None:
                return
            if idle:
                worker = idle.pop()
            else:
                worker = _Worker(preload=self._preload)
                self._workers.append(worker)
            worker.give(job, self._bounds(job))

    def _wait(self, schedule: Schedule) -> None:
        """Handle what workers have sent, and the death of those that died."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for ready in wait(list(pipes), timeout=_TICK_SECONDS):
            worker = pipes[cast("Connection[Job | None, Event]", ready)]
            try:
                event = worker.pipe.recv()
            except (EOFError, OSError):
                self._bury(worker, schedule)
            else:
                self._handle(worker, event, schedule)
        for worker in self._workers:
            worker.kill_if_overdue()

    def _handle(self, worker: _Worker, event: Event, schedule: Schedule) -> None:
        job = worker.job
        if job is None:
            return
        if isinstance(event, Stepped) and event.seq == 0:
            worker.began()
        if isinstance(event, Finished):
            worker.job = None
            schedule.done(job, failed=not event.result.reason.is_verdict)
        self._listener(job, event)

    def _bury(self, worker: _Worker, schedule: Schedule) -> None:
        """A worker died: its episode runs once more in another one, then counts as lost."""
        self._workers.remove(worker)
        worker.discard()
        job = worker.job
        if job is None:
            return
        self._deaths[id(job)] += 1
        if self._deaths[id(job)] <= _RETRIES:
            schedule.again(job)
            return
        result = asyncio.run(store_lost(job, f"the worker process died {_RETRIES + 1} times, {_last_death(worker)}"))
        schedule.done(job, failed=True)
        self._listener(job, Finished(result))

    def _stop(self) -> None:
        """End every process: those at work are asked to cancel their episodes, and killed when they take too long."""
        try:
            for worker in self._workers:
                worker.process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for worker in self._workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers:
                if worker.process.is_alive():
                    worker.process.kill()
                worker.discard()
            self._workers.clear()


def _last_death(worker: _Worker) -> str:
    if worker.overdue:
        return "the last time because it did not answer any more, long after the episode's deadline, and was killed"
    return f"last with status {worker.process.exitcode}"


def run_inline(jobs: Sequence[Job], listener: Listener, *, hooks: Callable[[Job], Hooks] = lambda _: Hooks()) -> None:
    """Run the jobs in this process, one after the other: for a person at the terminal, or in a debugger."""
    schedule = Schedule(jobs)
    while (job := schedule.next()) is not None:
        result = asyncio.run(_run_one(job, listener, hooks(job)))
        schedule.done(job, failed=not result.reason.is_verdict)


async def _run_one(job: Job, listener: Listener, hooks: Hooks) -> StoredResult:
    return await run_episode(job, lambda event: listener(job, event), hooks=hooks)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Children start with SIGINT blocked until they can handle it; here it waits until the child is known.

    The resource tracker, which starting a process starts too, would unblock it on its way.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
