"""Plays one episode from its job to its stored result."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import msgspec

from dgym.agents import Agent, AgentContext, load_agent
from dgym.api import ToolSpec
from dgym.env import AsyncRepoEnv
from dgym.errors import DgymError, InfrastructureError
from dgym.results import StoredResult, TrajectoryWriter
from dgym.sandbox.container_choice import SandboxKind
from dgym.sandbox.container_engine import EngineName
from dgym.wire import EndReason, Result, Step
from dgym.worker.jobs import Finished, Job, Logged, Report, Started, Stepped, effective_tools
from dgym.worker.recording import RecordingEnv
from dgym.worker.storing import store

NOTICE = 25
"""The level of log lines that everyone at the terminal sees; between INFO and WARNING."""

OnStep = Callable[[Step], None]


async def run_episode(job: Job, report: Report, *, on_step: OnStep | None = None) -> StoredResult:
    """Run ``job`` and store what it leaves: whatever happens, the trajectory; except when cancelled, a result.

    An episode without a result runs again when the same command is given again. ``on_step`` is called in this
    process after every step, before the agent goes on.
    """
    attempt = job.folder.new_attempt()
    start_time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    report(Started(str(attempt.path)))
    with _episode_log(attempt.log, report) as log:
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
            result = await _Play(job, agent, tools, trajectory, report, on_step, log).run()
        log.info("finished: %s, score %d of %d", result.reason, result.score, result.max_score)
        stored = store(job, attempt, result, start_time=start_time)
    report(Finished(stored))
    return stored


class _Play:
    """One run of one agent in one environment."""

    def __init__(
        self,
        job: Job,
        agent: type[Agent],
        tools: tuple[str | ToolSpec, ...],
        trajectory: TrajectoryWriter,
        report: Report,
        on_step: OnStep | None,
        log: logging.Logger,
    ) -> None:
        self._job = job
        self._agent = agent
        self._tools = tools
        self._trajectory = trajectory
        self._report = report
        self._on_step = on_step
        self._log = log
        self._recorded: list[Step] = []

    async def run(self) -> Result:
        """The verdict, or the infrastructure failure in the form of a result."""
        started = time.monotonic()
        try:
            return await self._drive()
        except InfrastructureError as error:
            reason, message = EndReason(error.reason), str(error)
            self._log.error("%s: %s", reason, message)
        except DgymError as error:
            reason, message = EndReason.INVALID_SPEC, str(error)
            self._log.error("%s", message)
        except Exception as error:
            reason, message = EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"
            self._log.error("the agent or dgym failed:\n%s", traceback.format_exc())
        return Result(
            resolved=False,
            reason=reason,
            message=message,
            steps=max(0, len(self._recorded) - 1),
            rewrites=sum(
                step.call is not None and step.call.tool == "rewrite" and step.observation.ok for step in self._recorded
            ),
            duration_seconds=round(time.monotonic() - started, 3),
        )

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
            recording = RecordingEnv(env, self._trajectory, self._stepped)
            self._recorded = recording.recorded
            reason = await self._agent().run(recording, self._context())
            result = await env.finish(*(() if reason is None else (reason,)))
            recording.record()
            return result

    def _context(self) -> AgentContext:
        job = self._job
        return AgentContext(
            task_name=job.task.metadata.name,
            parameters=job.agent.parameters,
            model=job.agent.model,
            seed=job.agent.seed,
            base=Path(job.base),
            solution=job.task.spec.solution if self._agent.needs_solution else None,
            log=lambda text: self._log.info("%s", text),
        )

    def _stepped(self, step: Step) -> None:
        observation = step.observation
        tool = step.call.tool if step.call is not None else "reset"
        self._log.debug("step %d: %s (%s, %.3f s)", step.seq, tool, observation.ok, observation.duration_seconds)
        self._report(Stepped(step.seq, tool, observation.ok, observation.duration_seconds))
        if self._on_step is not None:
            self._on_step(step)


@contextlib.contextmanager
def _episode_log(path: Path, report: Report) -> Iterator[logging.Logger]:
    """Everything dgym logs while the episode runs goes into its file; what matters to a person is reported too.

    A process runs one episode at a time, so the package's logger can be lent to it.
    """
    logger = logging.getLogger("dgym")
    to_file = logging.FileHandler(path, encoding="utf-8")
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    to_file.setFormatter(formatter)
    to_report = _ReportHandler(report)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logging.addLevelName(NOTICE, "NOTICE")
    logger.propagate = False
    for handler in (to_file, to_report):
        logger.addHandler(handler)
    try:
        yield logging.getLogger("dgym.worker.episode")
    except asyncio.CancelledError:
        logger.info("interrupted; the episode has no result and will run again")
        raise
    finally:
        for handler in (to_file, to_report):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate


class _ReportHandler(logging.Handler):
    """Reports what is logged at INFO and above."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(Logged(record.getMessage(), notice=NOTICE <= record.levelno < logging.ERROR))
