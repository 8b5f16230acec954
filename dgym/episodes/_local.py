"""Runs one episode on this machine, from its job to its stored result."""

import contextlib
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dgym.agents import BaseAgent, Exchange, Tools, load_agent, read_exchanges
from dgym.api import AgentSpec, DebugTask, EpisodeSpec, ToolSpec
from dgym.env import AsyncRepoEnv, LocalEpisodes, Opening
from dgym.episodes._events import (
    NOTICE,
    Narrated,
    Report,
    Started,
    Stepped,
    Waits,
    describe_exchange,
    describe_step,
    episode_log,
)
from dgym.episodes._player import EpisodeRun, Hooks, Models, Player, begin_provenance
from dgym.errors import DgymError, EpisodeOver
from dgym.llm import Model, capturing_model
from dgym.results import (
    Attempt,
    DirectoryStore,
    EpisodeFolder,
    Record,
    StoredResult,
    TimedStep,
    TrajectoryHeader,
    episode_path,
    parse_trajectory,
    trajectory_lines,
)
from dgym.tracing import Tracer, start_tracer
from dgym.wire import EndReason, Result, Step, read_cost, write_cost
from dgym.wire.outcome import Provenance


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``dgym run`` that are not part of an Episode.

    Args:
        opening: The sandbox and the interpreter for the programs of tasks.
        results: The results directory.
        llm_config: The file that configures models. None: the user's own.
        verbose: Whether every step is reported with a description.
    """

    opening: Opening = Opening()
    results: str = "results"
    llm_config: str | None = None
    verbose: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One episode to run.

    Attributes:
        digest: Hash of task, agent and sample.
        manifest: The file of the episode.
        base: The directory of relative paths in the manifest.
        group: The EpisodeSet of the episode; empty if it has none. ``parallelism``, ``max_failed`` and ``cost_limit``
            apply to the whole group.
        arm: The arm of the set; empty in a set without arms.
    """

    namespace: str
    episode: str
    sample: int
    arm: str = ""
    task: DebugTask
    task_digest: str
    agent: AgentSpec
    spec: EpisodeSpec
    digest: str
    manifest: str
    base: str
    options: RunOptions = RunOptions()
    priority: int = 0
    group: str = ""
    parallelism: int | None = None
    max_failed: int | None = None
    cost_limit: str | None = None

    @property
    def seed(self) -> int | None:
        """The seed of this sample. It differs between the samples of a task and is the same in every run."""
        return None if self.agent.seed is None else self.agent.seed + self.sample

    @property
    def folder(self) -> EpisodeFolder:
        """The folder with this episode's attempts."""
        return EpisodeFolder(Path(self.options.results) / self.results_path)

    @property
    def results_path(self) -> str:
        """The path of this episode's folder in the results store."""
        return episode_path(self.namespace, self.episode, self.digest)

    def new_record(self) -> Record:
        """The record of a new attempt."""
        return Record.new(Path(self.options.results), self.results_path)

    def record_of(self, attempt: int) -> Record:
        """The record of an earlier attempt."""
        return Record(DirectoryStore(Path(self.options.results), local=True), f"{self.results_path}/{attempt}")

    def describe(self, result: Result, *, start_time: str = "", provenance: Provenance | None = None) -> StoredResult:
        """Convert ``result`` to the stored form, with the identity of this episode."""
        return StoredResult.of(
            result,
            namespace=self.namespace,
            episode=self.episode,
            task=self.task.metadata.name,
            agent=self.agent.name,
            model=self.agent.model or "",
            sample=self.sample,
            arm=self.arm,
            task_labels=self.task.metadata.labels,
            digest=self.digest,
            start_time=start_time,
            provenance=provenance,
        )

    def header(self, *, attempt: int, start_time: str, version: str, tools: tuple[str, ...]) -> TrajectoryHeader:
        """The first line of this episode's trajectory. ``tools`` are those of ``effective_tools``."""
        return TrajectoryHeader(
            dgym_version=version,
            namespace=self.namespace,
            episode=self.episode,
            sample=self.sample,
            arm=self.arm,
            attempt=attempt,
            task=self.task.metadata.name,
            task_digest=self.task_digest,
            entrypoint=self.task.spec.entrypoint,
            digest=self.digest,
            manifest=self.manifest,
            agent=msgspec.to_builtins(self.agent),
            tools=tools,
            sandbox=self.options.opening.sandbox,
            start_time=start_time,
        )


def effective_tools(
    tools: tuple[str | ToolSpec, ...], spec: AgentSpec, agent: type[BaseAgent]
) -> tuple[str | ToolSpec, ...]:
    """The episode's tools, or the agent's default tools, without those that the agent bans, with its options.

    Raises:
        ManifestError: The agent's parameters are wrong.
    """
    wanted: tuple[str | ToolSpec, ...] = tools or agent.default_tools
    names = (tool if isinstance(tool, str) else tool.name for tool in wanted)
    allowed = tuple(tool for tool, name in zip(wanted, names, strict=True) if name not in agent.banned_tools)
    return agent.arrange_tools(allowed, spec.parameters)


async def run_episode(
    job: Job,
    report: Report,
    *,
    models: Models | None = None,
    tracer: Tracer | None = None,
    hooks: Hooks | None = None,
) -> StoredResult:
    """Run ``job`` and store its trajectory and, unless it is cancelled, its result.

    An episode without a result runs again when the same command is repeated. Many episodes may run in one event loop;
    episodes with the same ``models`` share connections and limits. If ``tracer`` is None, the OTEL_* environment
    variables configure it.
    """
    async with _opened(models) as shared, _traced(tracer) as traces:
        uid, name = uuid.uuid4().hex, f"episode {job.episode}"
        with traces.episode(uid, name, conversation=job.digest) as tracing:
            result = await _run(job, report, shared, hooks or Hooks())
            if tracing is not None:
                tracing.set("dgym.episode", job.episode)
                tracing.set("dgym.reason", result.reason.value)
                if not result.reason.is_counted:
                    tracing.fail(result.reason.value)
            return result


async def _run(job: Job, report: Report, models: Models, hooks: Hooks) -> StoredResult:
    record = job.new_record()
    attempt = Attempt(job.folder.path / str(record.attempt))
    start_time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    report(Started(str(attempt.path)))
    with episode_log(attempt.log, report) as log:
        agent = load_agent(job.agent.name)
        tools = effective_tools(job.spec.tools, job.agent, agent)
        header = job.header(
            attempt=attempt.number,
            start_time=start_time,
            version=version("dgym"),
            tools=tuple(msgspec.to_builtins(tools)),
        )
        log.info("episode %s, attempt %d: agent %s, task %s", job.episode, attempt.number, job.agent.name, header.task)
        record.begin(header)
        opening = msgspec.structs.replace(job.options.opening, progress=lambda text: log.log(NOTICE, "%s", text))
        player = Player(
            _episode_run(job, agent, tools),
            LocalSession(opening),
            record,
            log=log,
            hooks=_reporting(job, report, hooks),
        )
        result = await player.play(models)
        log.info("finished: %s, score %d of %d", result.reason, result.score, result.max_score)
        return await record.finish(job.describe(result, start_time=start_time, provenance=player.provenance))


@contextlib.asynccontextmanager
async def share_models() -> AsyncIterator[Callable[[Job, Report], Awaitable[StoredResult]]]:
    """Yield a ``run_episode`` for the episodes of one event loop, which share models, connections and limits."""
    async with _opened(None) as models, _traced(None) as tracer:
        yield lambda job, report: run_episode(job, report, models=models, tracer=tracer)


@contextlib.asynccontextmanager
async def _opened(models: Models | None) -> AsyncIterator[Models]:
    """Yield the given models, or new ones for this episode."""
    if models is not None:
        yield models
        return
    own = Models()
    try:
        yield own
    finally:
        await own.close()


@contextlib.asynccontextmanager
async def _traced(tracer: Tracer | None) -> AsyncIterator[Tracer]:
    """Yield the given tracer, or a new one for this episode."""
    own = tracer or start_tracer("dgym")
    try:
        yield own
    finally:
        if tracer is None:
            own.close()


class LocalSession:
    """An ``EpisodeSession`` in this process."""

    retryable: tuple[type[Exception], ...] = ()

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    def open(self, run: EpisodeRun) -> AsyncRepoEnv:
        """The environment. Its reset opens the sandbox."""
        return AsyncRepoEnv.over(LocalEpisodes(run.task, tools=run.tools, limits=run.limits, opening=self._opening))

    async def finish(self, env: AsyncRepoEnv, reason: EndReason | None) -> Result:
        """End and score the episode."""
        return await env.finish(*(() if reason is None else (reason,)))

    async def result_after(self, over: EpisodeOver) -> Result:
        """Always raises ``over``: an episode of this process cannot end without its player."""
        raise over


def _episode_run(job: Job, agent: type[BaseAgent], tools: Tools) -> EpisodeRun:
    return EpisodeRun(
        task=job.task,
        spec=job.agent,
        agent=agent,
        tools=tools,
        provenance=begin_provenance(job.task_digest),
        session=f"{job.episode}-{job.digest[:16]}",
        seed=job.seed,
        deadline_seconds=float(job.spec.active_deadline_seconds),
        base=Path(job.base),
        llm_config=job.options.llm_config,
        earlier_cost=lost_cost(job.folder),
    )


def _reporting(job: Job, report: Report, hooks: Hooks) -> Hooks:
    """Return ``hooks`` that also report events."""

    def on_exchange(exchange: Exchange, recorded: list[Step]) -> None:
        if job.options.verbose and (text := describe_exchange(exchange)):
            report(Narrated(text))
        if hooks.on_exchange is not None:
            hooks.on_exchange(exchange, recorded)

    def on_step(step: Step) -> None:
        observation = step.observation
        report(Stepped(step.seq, step.shown_tool, observation.ok, observation.duration_seconds))
        if job.options.verbose:
            report(Narrated(describe_step(step)))
        if hooks.on_step is not None:
            hooks.on_step(step)

    return Hooks(on_step=on_step, on_exchange=on_exchange, on_wait=lambda text: report(Waits(text)))


async def store_lost(job: Job, message: str) -> StoredResult:
    """Store the failure of an episode whose worker process died. The last attempt has its trajectory."""
    attempts = job.folder.attempts()
    begun = attempts and attempts[-1].load() is None
    record = job.record_of(attempts[-1].number) if begun else job.new_record()
    cost = lost_cost(job.folder)
    price = write_cost(cost) if cost else None
    result = Result(resolved=False, reason=EndReason.AGENT_POD_LOST, message=message, price=price)
    return await record.finish(job.describe(result))


class _CapturingModels(Models):
    """Models that collect the bodies of requests in ``bodies`` and send nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    async def open(self, name: str, config: str | None) -> Model:
        return capturing_model(name, self.catalog(config).settings(name), self.bodies.append)


async def first_request(job: Job) -> bytes:
    """The body of the first request of ``job`` to its model.

    The sandbox is started and the tests run. Nothing is stored.

    Raises:
        DgymError: The episode failed before its agent sent a request. The message has the cause.
    """
    models = _CapturingModels()
    with TemporaryDirectory(prefix="dgym-show-") as directory:
        options = msgspec.structs.replace(job.options, results=directory)
        result = await run_episode(msgspec.structs.replace(job, options=options), lambda _event: None, models=models)
    if not models.bodies:
        raise DgymError(f"task {job.task.metadata.name}: no request was made: {result.reason}: {result.message}")
    return models.bodies[0]


def lost_cost(folder: EpisodeFolder) -> Decimal:
    """The cost of the newest attempts without a result, because their process died or was interrupted.

    The result of the next attempt includes this cost.
    """
    total = Decimal(0)
    for attempt in reversed(folder.attempts()):
        if attempt.load() is not None:
            break
        total += _recorded_cost(attempt)
    return total


class SetCosts:
    """The costs of the episodes of each set with a ``costLimit``.

    Args:
        jobs: All jobs of the sets, including those that do not run again: their results count.
        afresh: Whether all of them run again, so that earlier results do not count.
    """

    def __init__(self, jobs: Iterable[Job], *, afresh: bool = False) -> None:
        self._spent: defaultdict[str, Decimal] = defaultdict(Decimal)
        self._lost: dict[str, Decimal] = {}
        for job in jobs:
            if job.cost_limit is not None:
                self._lost[job.results_path] = lost = lost_cost(job.folder)
                self._spent[job.group] += lost + (Decimal(0) if afresh else _stored_cost(job.folder))

    def add(self, job: Job, result: StoredResult) -> None:
        """Add the cost of a finished job. Its result includes the lost attempts before it."""
        if job.cost_limit is not None:
            self._spent[job.group] += read_cost(result.price) - self._lost.get(job.results_path, Decimal(0))
            self._lost[job.results_path] = Decimal(0)

    def spent(self, job: Job) -> str | None:
        """The cost of the job's set if it has reached its ``costLimit``, else None."""
        spent = self._spent[job.group]
        return write_cost(spent) if job.cost_limit is not None and spent >= read_cost(job.cost_limit) else None


def _stored_cost(folder: EpisodeFolder) -> Decimal:
    """The cost of all attempts with a result. A result includes the cost of lost attempts before it."""
    results = (attempt.load() for attempt in folder.attempts())
    return sum((read_cost(result.price) for result in results if result is not None), Decimal(0))


def _recorded_cost(attempt: Attempt) -> Decimal:
    steps = parse_trajectory(trajectory_lines(attempt.trajectory), TimedStep).steps
    exchanges = (exchange for step in steps for exchange in read_exchanges(step.exchanges))
    return sum((read_cost(exchange.usage.price) for exchange in exchanges if exchange is not None), Decimal(0))
