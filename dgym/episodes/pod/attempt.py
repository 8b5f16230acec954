"""One assignment, run to its end: the verdict stored and the pod released, or the reason why another must try."""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec

from dgym.agents import STANDARD_TOOLS, Agent, Exchange, Tools, load_agent
from dgym.api import AgentSpec, DebugTask, ToolSpec, digest
from dgym.episodes.job import effective_tools
from dgym.episodes.player import EpisodeRun, Hooks, Player, failure_cause
from dgym.episodes.pod.logs import EpisodeLog, logging_into
from dgym.episodes.pod.past import Past, make_past
from dgym.episodes.pod.progress import Ending, Progress, Report, Shared
from dgym.episodes.pod.session import LOST, PodSession
from dgym.episodes.provenance import begin_provenance
from dgym.errors import DgymError, EpisodeOver, ManifestError, ModelError, ModelUnavailable, Superseded
from dgym.results import Record, StoredResult, TrajectoryHeader, attempt_path
from dgym.session import EpisodeLimits
from dgym.tracing import OpenSpan
from dgym.wire import EndReason, Outcome, Result, read_cost
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState
from dgym.wire.provenance import Provenance
from dgym.wire.signing import patch_is_signed

T = TypeVar("T")

_log = logging.getLogger("dgym.episodes.episode")

_MAX_STEPS = 10_000
"""An external driver knows when to stop."""
_STEPS_SECONDS = 2.0
"""Between two requests for the new steps of an external driver."""


async def run_assignment(assignment: Assignment, shared: Shared, *, report: Report) -> Ending | None:
    """Run to the end; None when another agent has the episode now.

    A failure that another try may cure is returned as such, and the pod is kept. ``report`` gets every change.
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
        progress = Progress(report, shared.metrics, namespace=assignment.namespace, model=model)
        try:
            ending = await _Attempt(assignment, shared, log, progress, tracing).run()
        except Superseded as error:
            _log.info("dropped: %s", error)
            return None
        except LOST as error:
            ending = _failure(EndReason.SANDBOX_LOST, str(error))
        except ModelError as error:
            ending = _failure(EndReason.MODEL_ERROR, str(error), outage=isinstance(error, ModelUnavailable))
        if tracing is not None:
            describe(tracing, assignment, ending)
        _log.info("over: %s %s", ending.state.value, ending.reason, extra={"fields": {"why": ending.message}})
    shared.metrics.ended(assignment.namespace, ending.reason.value)
    return ending


class _Attempt:
    def __init__(
        self, assignment: Assignment, shared: Shared, log: EpisodeLog, progress: Progress, tracing: OpenSpan | None
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
            # An agent that is thought to be lost may still be storing: it must not do so beside a new attempt.
            stored = await self._record.give_up()
            if stored is None:
                return _failure(EndReason.SANDBOX_LOST, "the store holds no result of this attempt")
            if stored.reason.is_verdict and not patch_is_signed(await self._record.patch(), stored):
                return _failure(EndReason.SANDBOX_LOST, "the sidecar has not signed the stored verdict and patch")
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
                reason=None if stored.reason.is_verdict else stored.reason,
                message=stored.message,
            )
        return _finished(stored)

    async def _result(self) -> Result:
        """The verdict, or a failure that no other try would cure in the form of a result."""
        try:
            if self._assignment.mode is AssignmentMode.RUN:
                with self._shared.breakers.guard(self._model, self):
                    return await self._play()
            try:
                return await self._prepare_for_driver()
            except EpisodeOver as over:
                return await self._session.result_after(over)
        except LOST:
            # Another pod goes on with what is recorded.
            await self._record.save_within(self._shared.store_patience_seconds)
            raise
        except self._session.retryable:
            raise
        except Exception as error:
            reason, message = failure_cause(error, _log)
            return Result(resolved=False, reason=reason, message=message)

    async def _play(self) -> Result:
        """Let the episode's agent drive."""
        run = read_run(self._assignment)
        past = self._session.past = await self._past()
        replayed = self._assignment.replay_attempt if past is not None else 0
        header = header_of(self._assignment, run.task, run.tools, self._started, agent=run.spec, replayed=replayed)
        begun = await self._record.load(header, past.copied if past is not None else ())
        said = past.unrecorded if past is not None else {}
        if (unanswered := self._record.unanswered) is not None:
            said = {**said, unanswered.seq: unanswered.exchanges}
        self._progress.went_on(begun)
        hooks = Hooks(
            on_step=self._progress.step_recorded,
            on_exchange=lambda exchange, _steps: self._model_replied(exchange, player.price),
            on_wait=self._progress.waits,
        )
        player = Player(run, self._session, self._record, log=_log, hooks=hooks, begun=begun, said=said)
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
        """The steps of the attempt that this one goes on from; None: the episode begins afresh."""
        if not self._assignment.replay_attempt:
            return None
        steps, in_flight = await self._record_of(self._assignment.replay_attempt).steps()
        past = make_past(steps, in_flight, self._assignment.poisoned_steps)
        if past is None:
            _log.warning("attempt %d has no record to replay", self._assignment.replay_attempt)
        return past

    def _record_of(self, attempt: int, log: EpisodeLog | None = None) -> Record:
        assignment, shared = self._assignment, self._shared
        return Record(
            shared.store,
            attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, attempt),
            log,
            unavailable=self._progress.store_unavailable,
            longest_pause_seconds=shared.store_retry_seconds,
        )

    async def _prepare_for_driver(self) -> Result:
        """Prepare the pod for an external driver, and store its steps until the verdict."""
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
        """The verdict; the driver's steps from number ``following`` on are recorded as they are taken."""
        verdict = asyncio.create_task(self._session.result(), name="dgym-verdict")
        try:
            while not verdict.done():
                await asyncio.wait((verdict,), timeout=_STEPS_SECONDS)
                if verdict.done():
                    verdict.result()
                # Before the reset there are none; what else is wrong shows in the verdict.
                with contextlib.suppress(DgymError):
                    for step in await self._session.steps(following):
                        self._record.write(step)
                        self._progress.step_recorded(step)
                        following = step.seq + 1
            return verdict.result()
        finally:
            verdict.cancel()
            await asyncio.gather(verdict, return_exceptions=True)

    async def _store(self, result: StoredResult) -> StoredResult:
        """Store the result; wait for the store while the pod holds the result too, and for a while after that.

        A result that neither store nor pod holds is returned with that in its message: only the operator gets it.
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
            Superseded: Another agent has the episode, and finds the verdict in the pod.
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
                continue  # the failure that is being stored

    def _described(self, result: Result) -> StoredResult:
        assignment = self._assignment
        agent = assignment.agent or {}
        metadata = assignment.task.get("metadata") or {}
        return StoredResult(
            **{name: getattr(result, name) for name in Result.__struct_fields__},
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
    """Set the attributes of an attempt's span; one that is no verdict is an error."""
    tracing.set("dgym.namespace", assignment.namespace)
    tracing.set("dgym.episode", assignment.episode)
    tracing.set("dgym.attempt", assignment.attempt)
    tracing.set("dgym.epoch", assignment.epoch)
    tracing.set("dgym.reason", ending.reason.value)
    if not ending.reason.is_verdict:
        tracing.fail(ending.reason.value)


def _finished(stored: StoredResult) -> Ending:
    outcome = Outcome(**{name: getattr(stored, name) for name in Outcome.__struct_fields__})
    return Ending(state=AssignmentState.FINISHED, reason=stored.reason, outcome=outcome, message=stored.message)


def _failure(reason: EndReason, message: str, *, outage: bool = False) -> Ending:
    return Ending(state=AssignmentState.FAILED, reason=reason, message=message, outage=outage)


def read_task(assignment: Assignment) -> DebugTask:
    """The assignment's task.

    Raises:
        ManifestError: It is none.
    """
    return _convert(assignment.task, DebugTask, "task")


def read_tools(assignment: Assignment) -> Tools:
    """The tools that the Episode names."""
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
    """The first line of the attempt's trajectory; without ``agent`` an external driver's."""
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
        ManifestError: The task, the agent or its parameters are wrong, or need a terminal.
        PluginError: There is no such agent.
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


def _load(spec: AgentSpec) -> type[Agent]:
    if ":" in spec.name:
        raise ManifestError(f"agent {spec.name!r}: a cluster knows the agents that are installed in its image alone")
    agent = load_agent(spec.name)
    if agent.interactive:
        raise ManifestError(f"agent {spec.name} needs a terminal, which a cluster has not; use dgym run")
    return agent


def _convert(value: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{what}: {error}") from None
