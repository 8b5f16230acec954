"""Plays one episode from its job to its stored result."""

import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import msgspec

from dgym.agents import Agent, Tools, load_agent
from dgym.agents.chat import Exchange
from dgym.env import AsyncRepoEnv
from dgym.episodes.job import Finished, Job, Report, Started, Stepped, Told, effective_tools
from dgym.episodes.logs import NOTICE, episode_log
from dgym.episodes.models import Models
from dgym.episodes.narration import tell_exchange, tell_step
from dgym.episodes.player import Hooks, Play, Script
from dgym.errors import DgymError, InfrastructureError
from dgym.results import Attempt, StoredResult
from dgym.sandbox import EngineName, SandboxKind
from dgym.wire import EndReason, Result, Step

__all__ = ["Hooks", "run_episode"]


async def run_episode(
    job: Job, report: Report, *, models: Models | None = None, hooks: Hooks | None = None
) -> StoredResult:
    """Run ``job`` and store what it leaves: whatever happens, the trajectory; except when cancelled, a result.

    An episode without a result runs again when the same command is given again. Any number of episodes may run in one
    event loop; those that are given the same ``models`` share connections and limits.
    """
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
        play = Play(_script(job, agent, tools), record, log=log, hooks=_telling(job, report, hooks or Hooks()))
        async with _opened(models) as shared:
            result = await _run(play, job, tools, shared, log)
        log.info("finished: %s, score %d of %d", result.reason, result.score, result.max_score)
        stored = await record.finish(job.describe(result, start_time=start_time, price=play.price))
    report(Finished(stored))
    return stored


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


async def _run(play: Play, job: Job, tools: Tools, models: Models, log: logging.Logger) -> Result:
    """The verdict, or the infrastructure failure in the form of a result."""
    started = time.monotonic()
    try:
        play.open_chat(models)
        async with _environment(job, tools, log) as env:
            result = await play.drive(env)
    except InfrastructureError as error:
        result = play.failed(EndReason(error.reason), str(error))
        log.error("%s: %s", result.reason, error)
    except DgymError as error:
        result = play.failed(EndReason.INVALID_SPEC, str(error))
        log.error("%s", error)
    except Exception as error:
        result = play.failed(EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        log.error("the agent or dgym failed:\n%s", traceback.format_exc())
    finally:
        play.close()
    if not result.duration_seconds:
        result = msgspec.structs.replace(result, duration_seconds=round(time.monotonic() - started, 3))
    return play.with_usage(result)


def _environment(job: Job, tools: Tools, log: logging.Logger) -> AsyncRepoEnv:
    return AsyncRepoEnv(
        job.task,
        tools=tools,
        sandbox=cast("SandboxKind", job.sandbox),
        engine=cast("EngineName", job.engine),
        python=job.python,
        max_steps=job.agent.max_steps,
        max_rewrites=job.agent.max_rewrites,
        deadline_seconds=float(job.spec.active_deadline_seconds),
        progress=lambda text: log.log(NOTICE, "%s", text),
    )


def _script(job: Job, agent: type[Agent], tools: Tools) -> Script:
    return Script(
        task=job.task,
        spec=job.agent,
        agent=agent,
        tools=tools,
        session=f"{job.episode}-{job.digest[:16]}",
        seed=job.seed,
        deadline_seconds=float(job.spec.active_deadline_seconds),
        base=Path(job.base),
        llm_config=job.llm_config,
    )


def _telling(job: Job, report: Report, hooks: Hooks) -> Hooks:
    """``hooks``, with reports beside them."""

    def on_exchange(exchange: Exchange, recorded: list[Step]) -> None:
        if job.verbose and (text := tell_exchange(exchange)):
            report(Told(text))
        if hooks.on_exchange is not None:
            hooks.on_exchange(exchange, recorded)

    def on_step(step: Step) -> None:
        observation = step.observation
        tool = "reset" if step.call is None else step.call.tool or "no call"
        report(Stepped(step.seq, tool, observation.ok, observation.duration_seconds))
        if job.verbose:
            report(Told(tell_step(step)))
        if hooks.on_step is not None:
            hooks.on_step(step)

    return Hooks(on_step=on_step, on_exchange=on_exchange)


async def store_lost(job: Job, message: str) -> StoredResult:
    """Store the failure of an episode whose worker processes died; the last attempt holds its trajectory."""
    attempts = job.folder.attempts()
    begun = attempts and attempts[-1].load() is None
    record = job.record_of(attempts[-1].number) if begun else job.new_record()
    return await record.finish(job.describe(Result(resolved=False, reason=EndReason.AGENT_LOST, message=message)))
