"""Runs many episodes at a time, in shared event loops or, if an episode may block, in a separate process.

Episodes that use only dgym's own agents and tools share one process per CPU. Each process has one event loop, and its
episodes share the models' connections and limits. A user's agent or tool may block its event loop or end its process,
so such an episode runs in a separate process. The main process only waits for pipes. So a process that runs out of
memory or crashes in an extension does not end the run, and the CPUs share the work.

Preparing an episode uses the CPU. So only a few episodes are prepared at once, and another one is started every few
seconds while these wait for downloads. Then episodes are at different stages and do not all run their tests at the same
time.

When a shared process dies, it is not known which of its episodes caused it. Each of its unfinished episodes runs again
in a separate process, and only the death of that process counts against the episode.
"""

import asyncio
import functools
import os
import resource
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from dgym.agents import load_agent
from dgym.episodes._events import Event, Finished, Started, Stepped
from dgym.episodes._local import Job, SetCosts, effective_tools, run_episode, share_models, store_lost
from dgym.episodes._player import Hooks
from dgym.episodes._processes import Message, Reported, RunFailed, WorkerProcess, ready
from dgym.results import Attempt, StoredResult
from dgym.session import SETUP_TIMEOUT_SECONDS
from dgym.tools import load_tools

_FETCH_SECONDS = 2 * 3600.0
"""Time to pull an image, fetch sources and install requirements, or to wait for a process that does it."""
_BUILD_SECONDS = 1800.0
_COPY_SECONDS = 1200.0
"""Time to copy the agent's changes to the verifier and to restore protected files."""
_RUNS = 3
"""Number of entrypoint runs during scoring: collection, tests, canary."""
MARGIN_SECONDS = 120.0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits in seconds: from the start of the job to the first observation, and from there to the result."""

    prepare: float
    play: float


def bounds_of(job: Job) -> Bounds:
    """The time limits of ``job``. The second one includes the deadline, scoring and a margin."""
    task = job.task.spec
    setup = len(task.setup_commands) * SETUP_TIMEOUT_SECONDS
    entrypoint = float(task.entrypoint_timeout_seconds)
    scoring = setup + len(task.build_commands) * _BUILD_SECONDS + _RUNS * entrypoint + _COPY_SECONDS
    return Bounds(
        prepare=_FETCH_SECONDS + 2 * setup + entrypoint + MARGIN_SECONDS,
        play=job.spec.active_deadline_seconds + scoring + MARGIN_SECONDS,
    )


class Schedule:
    """Selects the next job: in order, within the parallelism, ``maxFailed`` and ``costLimit`` of each set.

    A job that waits for its group does not delay later jobs of other groups. ``costs`` are the costs of the sets.
    """

    def __init__(self, jobs: Iterable[Job], costs: SetCosts | None = None) -> None:
        self._waiting = deque(jobs)
        self._active: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._costs = costs or SetCosts(())

    @property
    def finished(self) -> bool:
        """Whether no job is waiting or running."""
        return not self._waiting and not self._active.total()

    def next(self) -> Job | None:
        """The next job that may start now, or None."""
        held_back: deque[Job] = deque()
        found = None
        while self._waiting and found is None:
            job = self._waiting.popleft()
            if self._beyond_max_failed(job) or self._costs.spent(job) is not None:
                continue
            if self._full(job):
                held_back.append(job)
            else:
                found = job
        self._waiting.extendleft(reversed(held_back))
        if found is not None:
            self._active[found.group] += 1
        return found

    def again(self, job: Job) -> None:
        """Put a started job back to the front of the queue."""
        self._active[job.group] -= 1
        self._waiting.appendleft(job)

    def done(self, job: Job, result: StoredResult) -> None:
        """Count a started job that has ended."""
        self._active[job.group] -= 1
        self._failed[job.group] += not result.reason.is_counted
        self._costs.add(job, result)

    def _full(self, job: Job) -> bool:
        return bool(job.group) and job.parallelism is not None and self._active[job.group] >= job.parallelism

    def _beyond_max_failed(self, job: Job) -> bool:
        return bool(job.group) and job.max_failed is not None and self._failed[job.group] > job.max_failed


Listener = Callable[[Job, Event], None]

STOP_SECONDS = 3.5
"""Time for cancelled episodes to clean up after Ctrl-C, before their processes are killed."""

_RETRIES = 1
_TICK_SECONDS = 0.5
_PREPARING_PER_CPU = 2
_START_CPU_SECONDS = 4.0
"""Each CPU starts another episode after this time, even if many episodes are being prepared."""
_DESCRIPTORS = 24
"""File descriptors of one episode: two sandboxes, its log, connections."""


class _Process(WorkerProcess[Job, Event, StoredResult]):
    """A worker process for many episodes or, if ``shared`` is False, for one at a time."""

    def __init__(self, *, shared: bool, preload: Sequence[str]) -> None:
        super().__init__(share_models, preload=preload)
        self.shared = shared


class WorkerProcesses:
    """Runs jobs in worker processes and calls ``listener`` with their events in the calling thread.

    Args:
        workers: Maximum number of jobs at a time.
        listener: Called with each event and its job.
        tick: Called after each wait for messages, which takes at most 0.5 s.
        bounds: Time limits of a job.
        may_share: Whether a job may run in one event loop with others. Default: if it runs only dgym's own code.
        processes: Number of processes for jobs that may share. Default: the number of CPUs, or more if the limit of
            open files requires it.
        costs: The costs of the jobs' sets.
    """

    def __init__(
        self,
        *,
        workers: int,
        listener: Listener,
        tick: Callable[[], None] = lambda: None,
        bounds: Callable[[Job], Bounds] = bounds_of,
        may_share: Callable[[Job], bool] | None = None,
        processes: int | None = None,
        costs: SetCosts | None = None,
    ) -> None:
        self._size = workers
        self._bounds = bounds
        self._listener = listener
        self._tick = tick
        self._may_share = may_share or OwnCode().runs
        self._costs = costs
        self._most_shared = processes or _shared_processes(workers)
        self._preparing: set[int] = set()
        self._last_start = float("-inf")
        self._processes: list[_Process] = []
        self._attempts: dict[int, str] = {}
        self._alone: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._preload: tuple[str, ...] = ()

    def run(self, jobs: Sequence[Job]) -> None:
        """Run every job and store its result. Raises ``KeyboardInterrupt`` after all processes have ended."""
        schedule = Schedule(jobs, self._costs)
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
        """Start jobs up to the maximum number of jobs at a time."""
        active = sum(len(process.payloads) for process in self._processes)
        while active < self._size and self._may_start() and (job := schedule.next()) is not None:
            self._process_for(job).send(id(job), job, seconds=self._bounds(job).prepare)
            self._preparing.add(id(job))
            self._last_start = time.monotonic()
            active += 1

    def _may_start(self) -> bool:
        few = len(self._preparing) < _PREPARING_PER_CPU * cpus()
        return few or time.monotonic() - self._last_start > _START_CPU_SECONDS / cpus()

    def _process_for(self, job: Job) -> _Process:
        """The process with the fewest jobs in which ``job`` may run. A new process if more are allowed."""
        shared = id(job) not in self._alone and self._may_share(job)
        processes = [process for process in self._processes if process.shared is shared and not process.overdue]
        process = min(processes, key=lambda each: len(each.payloads), default=None)
        if process is None or (process.payloads and (not shared or len(processes) < self._most_shared)):
            process = _Process(shared=shared, preload=self._preload)
            self._processes.append(process)
        return process

    def _wait(self, schedule: Schedule) -> None:
        """Handle messages of processes, and processes that have ended."""
        for process in ready(self._processes, seconds=_TICK_SECONDS):
            try:
                _, job, message = process.receive()
            except EOFError:
                self._process_ended(process, schedule)
            else:
                self._handle(process, job, message, schedule)
        for process in self._processes:
            process.kill_if_overdue()

    def _handle(self, process: _Process, job: Job, message: Message[Event, StoredResult], schedule: Schedule) -> None:
        if not isinstance(message, Reported):
            self._preparing.discard(id(job))
        if isinstance(message, RunFailed):
            self._lost(process, job, f"last with {message.error}", schedule)
        elif not isinstance(message, Reported):
            self._finished(job, message.value, schedule)
        else:
            if isinstance(message.event, Started):
                self._attempts[id(job)] = message.event.path
            if isinstance(message.event, Stepped) and message.event.seq == 0:
                process.limit(id(job), seconds=self._bounds(job).play)
                self._preparing.discard(id(job))
            self._listener(job, message.event)

    def _process_ended(self, process: _Process, schedule: Schedule) -> None:
        self._processes.remove(process)
        process.end()
        for job in reversed(process.payloads.values()):
            self._preparing.discard(id(job))
            self._lost(process, job, _last_death(process), schedule)

    def _lost(self, process: _Process, job: Job, cause: str, schedule: Schedule) -> None:
        """Run a job whose process died again, in a separate process. After a second death there the job has failed."""
        path = self._attempts.pop(id(job), None)
        if path is not None and (stored := Attempt(Path(path)).load()) is not None:
            self._finished(job, stored, schedule)
            return
        self._alone.add(id(job))
        self._deaths[id(job)] += not process.shared
        if self._deaths[id(job)] <= _RETRIES:
            schedule.again(job)
            return
        result = asyncio.run(store_lost(job, f"the worker process died {_RETRIES + 1} times, {cause}"))
        self._finished(job, result, schedule)

    def _finished(self, job: Job, result: StoredResult, schedule: Schedule) -> None:
        schedule.done(job, result)
        self._listener(job, Finished(result))

    def _stop(self) -> None:
        """End every process: running episodes are cancelled, and killed if they take too long."""
        end = time.monotonic()
        try:
            for process in self._processes:
                process.terminate()
            end += STOP_SECONDS
        finally:
            for process in self._processes:
                process.end(seconds=end - time.monotonic())
            self._processes.clear()


def preloaded(jobs: Sequence[Job]) -> tuple[str, ...]:
    """Modules that the fork server imports, because the client of a model takes a second to import."""
    asks_a_model = any(job.agent.model is not None for job in jobs)
    return ("dgym.episodes._local", *(("dgym.llm._openai_client",) if asks_a_model else ()))


class OwnCode:
    """Finds jobs that run only dgym's own code, not an agent or a tool of the user."""

    def __init__(self) -> None:
        self._known: dict[bytes, bool] = {}

    def runs(self, job: Job) -> bool:
        """Whether only dgym's own code runs in the job's process."""
        key = msgspec.json.encode((job.agent.name, job.agent.parameters, job.spec.tools))
        if key not in self._known:
            agent = load_agent(job.agent.name)
            tools = load_tools(effective_tools(job.spec.tools, job.agent, agent))
            self._known[key] = all(
                kind.__module__.partition(".")[0] == "dgym" for kind in (agent, *(type(tool) for tool in tools))
            )
        return self._known[key]


def _shared_processes(workers: int) -> int:
    """One process per CPU, or more if the limit of open files requires it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is not raised, because sandboxes inherit it and their tests may depend on it.
    each = workers if soft == resource.RLIM_INFINITY else max(1, soft // _DESCRIPTORS)
    return max(min(cpus(), workers), -(-workers // each))


def cpus() -> int:
    """The number of CPUs that this process may use."""
    # macOS does not have os.sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _last_death(process: _Process) -> str:
    if process.overdue:
        return "the last time because it did not answer any more, long after the episode's deadline, and was killed"
    return f"last with status {process.exit_status}"


def run_inline(
    jobs: Sequence[Job],
    listener: Listener,
    *,
    hooks: Callable[[Job], Hooks] = lambda _: Hooks(),
    costs: SetCosts | None = None,
) -> None:
    """Run the jobs in this process, one after the other: for a person at the terminal, or in a debugger."""
    schedule = Schedule(jobs, costs)
    while (job := schedule.next()) is not None:
        result = asyncio.run(run_episode(job, functools.partial(listener, job), hooks=hooks(job)))
        schedule.done(job, result)
        listener(job, Finished(result))
