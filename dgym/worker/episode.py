"""Plays one episode from its job to its stored result."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import msgspec

from dgym.agents import Agent, AgentContext, StopEpisode, load_agent
from dgym.agents.chat import Chat
from dgym.agents.exchange import Exchange
from dgym.api import ToolSpec
from dgym.env import AsyncRepoEnv
from dgym.errors import DgymError, EpisodeOver, InfrastructureError
from dgym.results import StoredResult, TrajectoryWriter
from dgym.sandbox.container_choice import SandboxKind
from dgym.sandbox.container_engine import EngineName
from dgym.wire import EndReason, Result, Step
from dgym.worker.jobs import Finished, Job, Report, Started, Stepped, Told, effective_tools
from dgym.worker.logs import NOTICE, episode_log
from dgym.worker.models import Models
from dgym.worker.narration import tell_exchange, tell_step
from dgym.worker.recording import RecordingEnv
from dgym.worker.storing import store


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Called in the worker's process: after each step, and after each reply of a model before it is acted on."""

    on_step: Callable[[Step], None] | None = None
    on_exchange: Callable[[Exchange, list[Step]], None] | None = None


async def run_episode(
    job: Job, report: Report, *, models: Models | None = None, hooks: Hooks | None = None
) -> StoredResult:
    """Run ``job`` and store what it leaves: whatever happens, the trajectory; except when cancelled, a result.

    An episode without a result runs again when the same command is given again. Any number of episodes may run in one
    event loop; those that are given the same ``models`` share connections and limits.
    """
    attempt = job.folder.new_attempt()
    start_time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    report(Started(str(attempt.path)))
    with episode_log(attempt.log, report) as log:
        agent = load_agent(job.agent.name)
        tools = effective_tools(job, agent)
        header = job.header(
            attempt=attempt.number,
            start_time=start_time,
            version=version("dgym"),
            tools=tuple(msgspec.to_builtins(tools)),
        )
        log.info("episode %s, attempt %d: agent %s, task %s", job.episode, attempt.number, job.agent.name, header.task)
        with TrajectoryWriter(attempt.trajectory, header) as trajectory:
            play = _Play(job, agent, tools, trajectory, report, hooks or Hooks(), log)
            async with _opened(models) as shared:
                result = await play.run(shared)
        log.info("finished: %s, score %d of %d", result.reason, result.score, result.max_score)
        stored = store(job, attempt, result, start_time=start_time, price=play.price)
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


class _Play:
    """One run of one agent in one environment."""

    def __init__(
        self,
        job: Job,
        agent: type[Agent],
        tools: tuple[str | ToolSpec, ...],
        trajectory: TrajectoryWriter,
        report: Report,
        hooks: Hooks,
        log: logging.Logger,
    ) -> None:
        self._job = job
        self._agent = agent
        self._tools = tools
        self._trajectory = trajectory
        self._report = report
        self._hooks = hooks
        self._log = log
        self._recording: RecordingEnv | None = None
        self._chat: Chat | None = None

    async def run(self, models: Models) -> Result:
        """The verdict, or the infrastructure failure in the form of a result."""
        started = time.monotonic()
        try:
            self._chat = self._open_chat(models)
            result = await self._drive()
        except InfrastructureError as error:
            result = self._failed(EndReason(error.reason), str(error))
            self._log.error("%s: %s", result.reason, error)
        except DgymError as error:
            result = self._failed(EndReason.INVALID_SPEC, str(error))
            self._log.error("%s", error)
        except Exception as error:
            result = self._failed(EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            self._log.error("the agent or dgym failed:\n%s", traceback.format_exc())
        finally:
            if self._chat is not None:
                self._chat.close()
        if not result.duration_seconds:
            result = msgspec.structs.replace(result, duration_seconds=round(time.monotonic() - started, 3))
        return self._with_usage(result)

    @property
    def price(self) -> str | None:
        """What the model's tokens cost, where that is known."""
        price = self._chat.price if self._chat is not None else None
        return None if price is None else format(price, "f")

    async def _drive(self) -> Result:
        job = self._job
        async with AsyncRepoEnv(
            job.task,
            tools=self._tools,
            sandbox=cast("SandboxKind", job.sandbox),
            engine=cast("EngineName", job.engine),
            python=job.python,
            max_steps=job.agent.max_steps,
            max_rewrites=job.agent.max_rewrites,
            deadline_seconds=float(job.spec.active_deadline_seconds),
            progress=lambda text: self._log.log(NOTICE, "%s", text),
        ) as env:
            recording = RecordingEnv(env, self._trajectory, on_reset=self._start_clock, on_step=self._stepped)
            self._recording = recording
            try:
                reason = await self._agent().run(recording, self._context())
            except StopEpisode as stop:
                reason = stop.reason
            except EpisodeOver:
                # The verdict stands, whether or not the agent noticed that it was given.
                if env.result is None:
                    raise
                reason = None
            result = await env.finish(*(() if reason is None else (reason,)))
            recording.record()
            return result

    def _open_chat(self, models: Models) -> Chat | None:
        agent = self._job.agent
        if not self._agent.uses_model or agent.model is None:
            return None
        return Chat(
            models.open(agent.model, self._job.llm_config),
            session=f"{self._job.episode}-{self._job.digest[:16]}",
            seed=self._job.seed,
            temperature=agent.temperature,
            token_budget=agent.token_budget,
            listener=self._said,
        )

    def _context(self) -> AgentContext:
        job = self._job
        return AgentContext(
            task_name=job.task.metadata.name,
            parameters=job.agent.parameters,
            model=job.agent.model,
            seed=job.seed,
            base=Path(job.base),
            solution=job.task.spec.solution if self._agent.needs_solution else None,
            chat=self._chat,
            log=lambda text: self._log.info("%s", text),
        )

    def _start_clock(self) -> None:
        if self._chat is not None:
            self._chat.deadline = asyncio.get_running_loop().time() + self._job.spec.active_deadline_seconds

    def _said(self, exchange: Exchange) -> None:
        assert self._recording is not None
        self._recording.say(exchange)
        if self._job.verbose and (text := tell_exchange(exchange)):
            self._report(Told(text))
        if self._hooks.on_exchange is not None:
            self._hooks.on_exchange(exchange, self._recording.recorded)

    def _stepped(self, step: Step) -> None:
        observation = step.observation
        tool = "reset" if step.call is None else step.call.tool or "no call"
        self._log.debug("step %d: %s (%s, %.3f s)", step.seq, tool, observation.ok, observation.duration_seconds)
        self._report(Stepped(step.seq, tool, observation.ok, observation.duration_seconds))
        if self._job.verbose:
            self._report(Told(tell_step(step)))
        if self._hooks.on_step is not None:
            self._hooks.on_step(step)

    def _failed(self, reason: EndReason, message: str) -> Result:
        recorded = self._recording.recorded if self._recording is not None else []
        rewrites = sum(
            step.call is not None and step.call.tool == "rewrite" and step.observation.ok for step in recorded
        )
        return Result(
            resolved=False, reason=reason, message=message, steps=max(0, len(recorded) - 1), rewrites=rewrites
        )

    def _with_usage(self, result: Result) -> Result:
        if self._chat is None:
            return result
        return msgspec.structs.replace(
            result, input_tokens=self._chat.input_tokens, output_tokens=self._chat.output_tokens
        )
