"""Runs one assignment to its end.

Either the result is stored and the sandbox pod released, or a retryable failure is returned.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec

from dgym.agents import BaseAgent, Exchange, Tools, load_agent
from dgym.api import STANDARD_TOOLS, AgentSpec, DebugTask, ToolSpec, digest
from dgym.episodes._local import effective_tools
from dgym.episodes._player import EpisodeRun, Hooks, Player, begin_provenance, failure_cause
from dgym.episodes.agent_pod._assignments import AssignmentProgress, Ending, Report, SharedResources, failure
from dgym.episodes.agent_pod._session import LOST, Past, PodSession, make_past
from dgym.episodes.agent_pod._telemetry import EpisodeLog, logging_into
from dgym.errors import DgymError, EpisodeOver, ManifestError, ModelError, ModelUnavailable, Superseded
from dgym.results import Record, StoredResult, TrajectoryHeader, attempt_path
from dgym.session import EpisodeLimits
from dgym.tracing import OpenSpan
from dgym.wire import AttemptOutcome, EndReason, Result, read_cost
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState
from dgym.wire.outcome import Provenance
from dgym.wire.signing import patch_is_signed

T = TypeVar("T")

_log = logging.getLogger("dgym.episodes.episode")

_MAX_STEPS = 10_000
"""Practically unlimited, because an external driver limits its own steps."""
_STEPS_SECONDS = 2.0
"""Pause between two requests for the new steps of an external driver."""


async def run_assignment(assignment: Assignment, shared: SharedResources, *, report: Report) -> Ending | None:
    """Run an assignment to its end. Return None if another agent pod has the episode now.

    A retryable failure is returned as such, and the sandbox pod is kept. ``report`` is called with every change of the
    stage.
    """
    log = EpisodeLog(
        namespace=assignment.namespace,
        episode=assignment.episode,
        attempt=assignment.attempt,
        epoch=assignment.epoch,
    )
    uid, name = assignment.episode_uid, f"attempt {assignment.attempt}"
    with logging_into(log), shared.tracer.attempt(uid, name, traceparent=assignment.traceparent) as tracing:
        _log.info("assigned: attempt %d, epoch %d, %s", assignment.attempt, assignment.epoch, assignment.mode.value)
        model = str((assignment.agent or {}).get("model") or "")
        progress = AssignmentProgress(report, shared.metrics, namespace=assignment.namespace, model=model)
        try:
            ending = await _Attempt(assignment, shared, log, progress, tracing).run()
        except Superseded as error:
            _log.info("dropped: %s", error)
            return None
        except LOST as error:
            ending = failure(EndReason.SANDBOX_LOST, str(error))
        except ModelError as error:
            ending = failure(EndReason.MODEL_ERROR, str(error), outage=isinstance(error, ModelUnavailable))
        if tracing is not None:
            describe(tracing, assignment, ending)
        outcome = ending.outcome
        _log.info("over: %s %s", ending.state.value, outcome.reason, extra={"fields": {"why": outcome.message}})
    shared.metrics.ended(assignment.namespace, outcome.reason.value)
    return ending


class _Attempt:
    def __init__(
        self,
        assignment: Assignment,
        shared: SharedResources,
        log: EpisodeLog,
        progress: AssignmentProgress,
        tracing: OpenSpan | None,
    ) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self._tracing = tracing
        self._session = PodSession(assignment, shared, progress)
        self._record = self._record_of(assignment.attempt, log)
        self._provenance: Provenance | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    async def run(self) -> Ending:
        assignment = self._assignment
        if assignment.mode is AssignmentMode.RECOVER:
            # An agent pod that is considered lost may still be storing. It must not continue during a new attempt.
            stored = await self._record.give_up()
            if stored is None:
                return failure(EndReason.SANDBOX_LOST, "the store does not contain a result of this attempt")
            if stored.reason.is_counted and not patch_is_signed(await self._record.patch(), stored):
                return failure(EndReason.SANDBOX_LOST, "the sidecar has not signed the stored outcome and patch")
            return _finished(stored)
        stored = await self._record.result()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._session.close)
            if stored is None:
                result = await self._result()
                self._progress.enter(AssignmentState.STORING)
                with self._progress.timed("store"):
                    stored = await self._store(self._described(result))
            if self._tracing is not None:
                spans = await self._session.spans()
                self._shared.tracer.forward(spans, self._tracing.trace_id, service="dgym-sidecar")
            await self._session.release(
                result_uri=stored.result_uri,
                reason=None if stored.reason.is_counted else stored.reason,
                message=stored.message,
            )
        return _finished(stored)

    async def _result(self) -> Result:
        """The result of the episode. A failure that a retry would not fix is returned as a result."""
        try:
            if self._assignment.mode is AssignmentMode.RUN:
                with self._shared.breakers.guard(self._model, self):
                    return await self._play()
            try:
                return await self._prepare_for_driver()
            except EpisodeOver as over:
                return await self._session.result_after(over)
        except LOST:
            # Another pod continues from the recorded steps.
            await self._record.save_within(self._shared.store_patience_seconds)
            raise
        except self._session.retryable:
            raise
        except Exception as error:
            reason, message = failure_cause(error, _log)
            return Result(resolved=False, reason=reason, message=message)

    async def _play(self) -> Result:
        """Run the episode's agent."""
        run = read_run(self._assignment)
        past = self._session.past = await self._past()
        replayed = self._assignment.replay_attempt if past is not None else 0
        header = header_of(self._assignment, run.task, run.tools, self._started, agent=run.spec, replayed=replayed)
        begun = await self._record.load(header, past.copied if past is not None else ())
        pending_exchanges = past.unrecorded if past is not None else {}
        if (unanswered := self._record.unanswered) is not None:
            pending_exchanges = {**pending_exchanges, unanswered.seq: unanswered.exchanges}
        self._progress.report_earlier_steps(begun)
        hooks = Hooks(
            on_step=self._progress.step_recorded,
            on_exchange=lambda exchange, _steps: self._model_replied(exchange, player.price),
            on_wait=self._progress.waits,
        )
        player = Player(
            run, self._session, self._record, log=_log, hooks=hooks, begun=begun, pending_exchanges=pending_exchanges
        )
        try:
            return await player.play(self._shared.models)
        finally:
            self._provenance = player.provenance

    @property
    def _model(self) -> str:
        return str((self._assignment.agent or {}).get("model") or "")

    def _model_replied(self, exchange: Exchange, price: str | None) -> None:
        self._shared.breakers.answered(self._model)
        self._progress.model_replied(exchange, price)

    async def _past(self) -> Past | None:
        """The steps of the attempt that this attempt continues. None if the episode starts from the beginning."""
        if not self._assignment.replay_attempt:
            return None
        steps, in_flight = await self._record_of(self._assignment.replay_attempt).steps()
        past = make_past(steps, in_flight, self._assignment.poisoned_steps)
        if past is None:
            _log.warning("attempt %d has no trajectory to replay", self._assignment.replay_attempt)
        return past

    def _record_of(self, attempt: int, log: EpisodeLog | None = None) -> Record:
        assignment, shared = self._assignment, self._shared
        return Record(
            shared.store,
            attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, attempt),
            None if log is None else log.text,
            unavailable=self._progress.store_unavailable,
            longest_pause_seconds=shared.store_retry_seconds,
        )

    async def _prepare_for_driver(self) -> Result:
        """Prepare the sandbox pod for an external driver, and record the driver's steps until the episode has ended."""
        task, tools = read_task(self._assignment), read_tools(self._assignment) or STANDARD_TOOLS
        self._record.provenance = self._provenance = _begun(self._assignment, task)
        begun = await self._record.load(header_of(self._assignment, task, tools, self._started))
        limits = EpisodeLimits(max_steps=_MAX_STEPS, deadline_seconds=self._assignment.remaining_seconds)
        await self._session.prepare_for_driver(task, tools, limits)
        self._progress.enter(AssignmentState.RUNNING)
        if begun:
            self._progress.resumed()
        with self._progress.timed("play"):
            async with self._record.saving():
                return await self._driven(len(begun))

    async def _driven(self, following: int) -> Result:
        """Wait for the result. Meanwhile record the driver's steps from number ``following`` on."""
        result = asyncio.create_task(self._session.result(), name="dgym-result")
        try:
            while not result.done():
                await asyncio.wait((result,), timeout=_STEPS_SECONDS)
                if result.done():
                    result.result()
                # Before the reset, the sidecar refuses this call. The request for the result reports other errors too.
                with contextlib.suppress(DgymError):
                    for step in await self._session.steps(following):
                        self._record.write(step)
                        self._progress.step_recorded(step)
                        following = step.seq + 1
            return result.result()
        finally:
            result.cancel()
            await asyncio.gather(result, return_exceptions=True)

    async def _store(self, result: StoredResult) -> StoredResult:
        """Store the result. Retry while the sandbox pod also has the result, and for a limited time after that.

        If the result is neither stored nor in the pod, its message reports this. Then only the operator receives it.
        """
        storing = asyncio.create_task(self._record.finish(result), name="dgym-storing")
        watching = asyncio.create_task(self._pod_is_gone(), name="dgym-watching")
        try:
            await asyncio.wait((storing, watching), return_when=asyncio.FIRST_COMPLETED)
            if not storing.done():
                watching.result()
                await asyncio.wait((storing,), timeout=self._shared.store_patience_seconds)
            if storing.done():
                return storing.result()
        finally:
            for task in (storing, watching):
                task.cancel()
            await asyncio.gather(storing, watching, return_exceptions=True)
        problem = f"the pod is gone, and the result could not be stored: {self._progress.store_problem}"
        _log.error("%s", problem)
        return msgspec.structs.replace(result, message=f"{result.message}; {problem}".removeprefix("; "))

    async def _pod_is_gone(self) -> None:
        """Wait until the sidecar stops answering, or refuses the episode.

        Raises:
            Superseded: Another agent pod has the episode. It can read the result from the sandbox pod.
        """
        while True:
            await asyncio.sleep(self._shared.store_retry_seconds)
            try:
                await self._session.result()
            except Superseded:
                raise
            except (*LOST, EpisodeOver) as error:
                seconds = self._shared.store_patience_seconds
                _log.warning("the pod is gone, and storing is tried for %g s more: %s", seconds, error)
                return
            except DgymError:
                continue  # This is the failure that is being stored.

    def _described(self, result: Result) -> StoredResult:
        assignment = self._assignment
        agent = assignment.agent or {}
        metadata = assignment.task.get("metadata") or {}
        return StoredResult.of(
            result,
            namespace=assignment.namespace,
            episode=assignment.episode,
            task=str(metadata.get("name", "")),
            agent=str(agent.get("name", "")),
            model=str(agent.get("model") or ""),
            sample=assignment.sample,
            arm=assignment.arm,
            task_labels=metadata.get("labels") or {},
            attempt=assignment.attempt,
            digest=assignment.episode_uid,
            start_time=self._started,
            provenance=self._provenance,
        )


def describe(tracing: OpenSpan, assignment: Assignment, ending: Ending) -> None:
    """Set the attributes of an attempt's span. A failed attempt is marked as an error."""
    tracing.set("dgym.namespace", assignment.namespace)
    tracing.set("dgym.episode", assignment.episode)
    tracing.set("dgym.attempt", assignment.attempt)
    tracing.set("dgym.epoch", assignment.epoch)
    reason = ending.outcome.reason
    tracing.set("dgym.reason", reason.value)
    if not reason.is_counted:
        tracing.fail(reason.value)


def _finished(stored: StoredResult) -> Ending:
    return Ending(state=AssignmentState.FINISHED, outcome=AttemptOutcome.of(stored))


def read_task(assignment: Assignment) -> DebugTask:
    """The assignment's task.

    Raises:
        ManifestError: The task is invalid.
    """
    return _convert(assignment.task, DebugTask, "task")


def read_tools(assignment: Assignment) -> Tools:
    """The tools that the Episode lists."""
    return tuple(
        tool if isinstance(tool, str) else ToolSpec(name=tool.name, options=tool.options) for tool in assignment.tools
    )


def header_of(
    assignment: Assignment,
    task: DebugTask,
    tools: Tools,
    started: str,
    *,
    agent: AgentSpec | None = None,
    replayed: int = 0,
) -> TrajectoryHeader:
    """The first line of the attempt's trajectory. Without ``agent`` the driver is external."""
    return TrajectoryHeader(
        dgym_version=version("dgym"),
        namespace=assignment.namespace,
        episode=assignment.episode,
        sample=assignment.sample,
        arm=assignment.arm,
        attempt=assignment.attempt,
        task=task.metadata.name,
        task_digest=digest(task, None),
        entrypoint=task.spec.entrypoint,
        digest=assignment.episode_uid,
        agent={} if agent is None else msgspec.to_builtins(agent),
        tools=tuple(msgspec.to_builtins(tools)),
        sandbox="pod",
        start_time=started,
        replayed_attempt=replayed or msgspec.UNSET,
    )


def read_run(assignment: Assignment) -> EpisodeRun:
    """The run that ``assignment`` describes.

    Raises:
        ManifestError: The task, the agent or its parameters are invalid, or the agent needs a terminal.
        PluginError: The agent does not exist.
    """
    task = read_task(assignment)
    spec = _convert(assignment.agent or {}, AgentSpec, "agent")
    agent = _load(spec)
    return EpisodeRun(
        task=task,
        spec=spec,
        agent=agent,
        tools=effective_tools(read_tools(assignment), spec, agent),
        session=f"{assignment.episode}-{assignment.episode_uid[:16]}",
        seed=None if spec.seed is None else spec.seed + assignment.sample,
        deadline_seconds=assignment.remaining_seconds,
        earlier_cost=read_cost(assignment.earlier_price),
        provenance=_begun(assignment, task),
    )


def _begun(assignment: Assignment, task: DebugTask) -> Provenance:
    provenance = begin_provenance(digest(task, None), image=assignment.image_digest)
    return msgspec.structs.replace(provenance, sandbox="pod")


def _load(spec: AgentSpec) -> type[BaseAgent]:
    if ":" in spec.name:
        raise ManifestError(f"agent {spec.name!r}: a cluster has only the agents that are installed in its image")
    agent = load_agent(spec.name)
    if agent.interactive:
        raise ManifestError(f"agent {spec.name} needs a terminal, which a cluster does not have; use dgym run")
    return agent


def _convert(value: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{what}: {error}") from None
