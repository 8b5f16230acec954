"""Runs one episode on this machine, from its job to its stored result."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import msgspec

from dgym.agents import Agent, Exchange, Tools, load_agent
from dgym.env import AsyncRepoEnv
from dgym.episodes.costs import lost_cost
from dgym.episodes.events import (
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
from dgym.episodes.job import Job, effective_tools
from dgym.episodes.player import EpisodeRun, Hooks, Models, Player
from dgym.episodes.provenance import begin_provenance
from dgym.errors import EpisodeOver
from dgym.results import Attempt, StoredResult
from dgym.sandbox import EngineName, SandboxKind
from dgym.tracing import Tracer, start_tracer
from dgym.wire import EndReason, Result, Step, write_cost


async def run_episode(
    job: Job,
    report: Report,
    *,
    models: Models | None = None,
    tracer: Tracer | None = None,
    hooks: Hooks | None = None,
) -> StoredResult:
    """Run ``job`` and store what it leaves: whatever happens, the trajectory; except when cancelled, a result.

    An episode without a result runs again when the same command is given again. Any number of episodes may run in one
    event loop; those that are given the same ``models`` share connections and limits. ``tracer`` None: the one that the
    OTEL_* variables ask for.
    """
    async with _opened(models) as shared, _traced(tracer) as traces:
        uid, name = uuid.uuid4().hex, f"episode {job.episode}"
        with traces.episode(uid, name, conversation=job.digest) as tracing:
            result = await _run(job, report, shared, hooks or Hooks())
            if tracing is not None:
                tracing.set("dgym.episode", job.episode)
                tracing.set("dgym.reason", result.reason.value)
                if not result.reason.is_verdict:
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
        player = Player(
            _episode_run(job, agent, tools),
            LocalSession(job, progress=lambda text: log.log(NOTICE, "%s", text)),
            record,
            log=log,
            hooks=_reporting(job, report, hooks),
        )
        result = await player.play(models)
        log.info("finished: %s, score %d of %d", result.reason, result.score, result.max_score)
        return await record.finish(job.describe(result, start_time=start_time, provenance=player.provenance))


@contextlib.asynccontextmanager
async def share_models() -> AsyncIterator[Callable[[Job, Report], Awaitable[StoredResult]]]:
    """``run_episode`` for many episodes of one event loop, which share models, their connections and limits."""
    async with _opened(None) as models, _traced(None) as tracer:
        yield lambda job, report: run_episode(job, report, models=models, tracer=tracer)


@contextlib.asynccontextmanager
async def _opened(models: Models | None) -> AsyncIterator[Models]:
    """The models given, or some for this episode alone."""
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
    """The tracer given, or one for this episode alone."""
    own = tracer or start_tracer("dgym")
    try:
        yield own
    finally:
        if tracer is None:
            own.close()


class LocalSession:
    """A session of this process."""

    retryable: tuple[type[Exception], ...] = ()

    def __init__(self, job: Job, *, progress: Callable[[str], None]) -> None:
        self._job = job
        self._progress = progress

    def open(self, run: EpisodeRun) -> AsyncRepoEnv:
        """The environment; its sandbox is opened by the reset."""
        job = self._job
        return AsyncRepoEnv(
            run.task,
            tools=run.tools,
            sandbox=cast("SandboxKind", job.sandbox),
            engine=cast("EngineName", job.engine),
            python=job.python,
            build_requirements=job.build_requirements,
            max_steps=run.spec.max_steps,
            max_rewrites=run.spec.max_rewrites,
            deadline_seconds=run.deadline_seconds,
            progress=self._progress,
        )

    async def finish(self, env: AsyncRepoEnv, reason: EndReason | None) -> Result:
        """End and score the episode."""
        return await env.finish(*(() if reason is None else (reason,)))

    async def result_after(self, over: EpisodeOver) -> Result:
        """None: an episode of this process ends with its player."""
        raise over


def _episode_run(job: Job, agent: type[Agent], tools: Tools) -> EpisodeRun:
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
        llm_config=job.llm_config,
        earlier_cost=lost_cost(job.folder),
    )


def _reporting(job: Job, report: Report, hooks: Hooks) -> Hooks:
    """``hooks``, with reports beside them."""

    def on_exchange(exchange: Exchange, recorded: list[Step]) -> None:
        if job.verbose and (text := describe_exchange(exchange)):
            report(Narrated(text))
        if hooks.on_exchange is not None:
            hooks.on_exchange(exchange, recorded)

    def on_step(step: Step) -> None:
        observation = step.observation
        tool = "reset" if step.call is None else step.call.tool or "no call"
        report(Stepped(step.seq, tool, observation.ok, observation.duration_seconds))
        if job.verbose:
            report(Narrated(describe_step(step)))
        if hooks.on_step is not None:
            hooks.on_step(step)

    return Hooks(on_step=on_step, on_exchange=on_exchange, on_wait=lambda text: report(Waits(text)))


async def store_lost(job: Job, message: str) -> StoredResult:
    """Store the failure of an episode whose worker processes died; the last attempt holds its trajectory."""
    attempts = job.folder.attempts()
    begun = attempts and attempts[-1].load() is None
    record = job.record_of(attempts[-1].number) if begun else job.new_record()
    cost = lost_cost(job.folder)
    price = write_cost(cost) if cost else None
    result = Result(resolved=False, reason=EndReason.AGENT_LOST, message=message, price=price)
    return await record.finish(job.describe(result))
