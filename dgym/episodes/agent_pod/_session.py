"""A session in a sandbox pod, for a player or for an external driver.

It resumes the steps of earlier attempts, which are read from the results store.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dgym.agents import Exchange, Tools
from dgym.api import DebugTask
from dgym.env import AsyncRepoEnv, prepare, read_steps
from dgym.episodes._player import EpisodeRun
from dgym.episodes.agent_pod._assignments import AssignmentProgress, SharedResources
from dgym.errors import (
    AccessRefused,
    ConflictError,
    DgymError,
    EpisodeOver,
    ModelError,
    SandboxLost,
    SandboxStartFailed,
    Superseded,
)
from dgym.results import TimedStep, UnansweredStep
from dgym.session import EpisodeLimits, RecordedTrajectory, death_observation
from dgym.tracing import Span
from dgym.wire import EndReason, Observation, Result, Step, ToolCall, calls, read_cost, write_cost
from dgym.wire.assignments import Assignment, AssignmentState, OmittedStep
from dgym.wire.client import PodClient
from dgym.wire.http import DRIVER_REASONS, REPLAY_LIMIT, ReleaseRequest, Usage

_log = logging.getLogger("dgym.episodes.episode")
LOST = (SandboxLost, SandboxStartFailed, AccessRefused)
"""The sandbox pod is gone, or belongs to another episode. Nothing is stored, since another attempt follows."""
_MARGIN_SECONDS = 6 * 3600.0
_MESSAGE_CHARACTERS = 4096
_RELEASE_SECONDS = 5.0
_MOST_STEPS = 10_000
"""The highest number of a step, since it is the maximum of ``maxSteps``."""
_UNRECORDED = ToolCall.invalid("The call was not recorded.")
_LOST = Observation(text="This step is missing in the trajectory, so it was not executed again.", ok=False)


class PodSession:
    """The session of one assignment. ``release`` allows the sandbox pod to terminate.

    Implements ``EpisodeSession`` for dgym's own agents. For an external driver it prepares the episode and waits for
    its end.
    """

    retryable: tuple[type[Exception], ...] = (Superseded, ModelError, *LOST)

    def __init__(self, assignment: Assignment, shared: SharedResources, progress: AssignmentProgress) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self.past: Past | None = None
        """The earlier steps that the reset replays if the pod is not prepared yet."""
        waiting = msgspec.structs.replace(
            shared.retry_limits, running_seconds=assignment.remaining_seconds + _MARGIN_SECONDS
        )
        self._client = PodClient(
            assignment.sidecar_url, assignment.prepare_token, epoch=assignment.epochs.prepare, retry_limits=waiting
        )
        brief = min(waiting.silence_seconds, _RELEASE_SECONDS)
        self._at_release = msgspec.structs.replace(waiting, silence_seconds=brief)

    @contextlib.asynccontextmanager
    async def open(self, run: EpisodeRun) -> AsyncIterator[AsyncRepoEnv]:
        """Prepare the pod, unless an earlier agent pod has, and connect to it."""
        if await self._is_prepared():
            self._progress.resumed()
        else:
            await self.prepare(run.task, run.tools, run.limits)
        self._progress.enter(AssignmentState.RUNNING)
        assignment = self._assignment
        with self._progress.timed("play"):
            async with AsyncRepoEnv.connect(
                assignment.sidecar_url,
                assignment.drive_token,
                epochs=assignment.epochs,
                prepare_token=assignment.prepare_token,
                reset_key=f"{assignment.episode_uid}-{assignment.attempt}",
                retry_limits=self._shared.retry_limits,
            ) as env:
                yield env

    async def finish(self, env: AsyncRepoEnv, reason: EndReason | None) -> Result:
        """End and score the episode.

        If the deadline has passed, the sidecar ends the episode by itself, since it has the clock. Then this method
        waits for the result.
        """
        self._progress.enter(AssignmentState.CLOSING)
        with self._progress.timed("close"):
            if reason is EndReason.DEADLINE_EXCEEDED:
                await self.result()
            return await env.finish(*((reason,) if reason in DRIVER_REASONS else ()))

    async def result_after(self, over: EpisodeOver) -> Result:
        """Wait for the result in the pod. Raises SandboxLost if there is none, because the sidecar was restarted."""
        if isinstance(over, Superseded):
            raise over
        try:
            async with asyncio.timeout(self._shared.retry_limits.silence_seconds):
                return await self.result()
        except TimeoutError:
            raise SandboxLost(str(over)) from None

    async def prepare(
        self, task: DebugTask, tools: Tools, limits: EpisodeLimits, *, driver_idle_seconds: float | None = None
    ) -> None:
        """Send the repository and the task to the pod.

        Raises:
            SourceFailed: The repository could not be fetched.
            ManifestError: The task, a tool or a limit is invalid.
            ConflictError: The attempt was prepared with other data.
        """
        source = task.spec.source
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._progress.timed("prepare"))
            path = None
            if source is not None:
                packed = self._shared.sources.packed(source, self._assignment.namespace)
                path = await stack.enter_async_context(packed)
            await prepare(
                self._client,
                task,
                source=path,
                tools=tools,
                limits=limits,
                driver_idle_seconds=driver_idle_seconds,
                trajectory=self.past.trajectory if self.past is not None else None,
                usage=self.past.usage if self.past is not None else None,
            )

    async def prepare_for_driver(self, task: DebugTask, tools: Tools, limits: EpisodeLimits) -> None:
        """Send the repository and the task for an external driver, unless an earlier agent pod has.

        Raises:
            SourceFailed: The repository could not be fetched.
            ManifestError: The task, a tool or a limit is invalid.
        """
        if await self._is_prepared():
            _log.info("an earlier agent pod has prepared the sandbox pod")
            return
        try:
            await self.prepare(task, tools, limits, driver_idle_seconds=self._assignment.driver_idle_seconds)
        except ConflictError as error:
            _log.info("prepared before: %s", error)

    async def result(self) -> Result:
        """Wait for the result of the episode, independent of the driver that ends it."""
        return (await self._client.call(calls.RESULT)).result

    async def steps(self, start: int) -> list[Step]:
        """The recorded steps from number ``start`` on."""
        return await read_steps(self._client, start)

    async def spans(self) -> tuple[Span, ...]:
        """The sidecar's spans of the trace. Empty if it does not answer."""
        try:
            return (await self._client.call(calls.SPANS, retry_limits=self._at_release)).spans
        except DgymError as error:
            _log.info("the sidecar's spans were not fetched: %s", error)
            return ()

    async def release(self, *, result_uri: str, reason: EndReason | None, message: str) -> None:
        """Release the sandbox pod, after the result was stored at ``result_uri``.

        ``reason`` is the cause of a failed attempt, else None. It is not an error if the sidecar does not answer,
        because it was released already or is gone, or if it refuses the token, because another pod has the address of a
        pod that is gone.
        """
        request = ReleaseRequest(result_uri=result_uri, reason=reason, message=message[:_MESSAGE_CHARACTERS])
        try:
            await self._client.call(calls.RELEASE, request, retry_limits=self._at_release)
        except Superseded:
            raise
        except (SandboxLost, EpisodeOver, AccessRefused) as error:
            _log.info("the pod was not released: %s", error)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def _is_prepared(self) -> bool:
        """Whether an earlier agent pod has prepared the pod, perhaps from an older state of the sources."""
        try:
            await self._client.call(calls.STEPS)
        except ConflictError:
            return False
        return True


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The steps and exchanges of earlier attempts.

    Attributes:
        steps: The steps. The first is the reset; its text is empty if it was not recorded.
        poisoned: Numbers of the steps during which sandboxes died.
        pending_exchanges: Exchanges that did not lead to a recorded step. Their requests are repeated.
    """

    steps: tuple[TimedStep, ...]
    poisoned: tuple[int, ...] = ()
    pending_exchanges: tuple[Any, ...] = ()

    @property
    def trajectory(self) -> RecordedTrajectory:
        """The steps that the new pod replays."""
        steps = (Step(seq=step.seq, call=step.call, observation=step.observation) for step in self.steps)
        return RecordedTrajectory(steps=tuple(steps), poisoned=self.poisoned)

    @property
    def copied(self) -> tuple[TimedStep, ...]:
        """The first steps in the trajectory of the new attempt: all but the last. Empty if the reset was not recorded.

        The last step is recorded when the session returns it from the reset, since it may end the episode then.
        """
        return self.steps[:-1] if self.steps[0].observation.text else ()

    @property
    def unrecorded(self) -> dict[int, tuple[Any, ...]]:
        """The exchanges that are not ``copied``, by the number of the step that they led to."""
        following = self.steps[len(self.copied) :]
        return {step.seq: tuple(step.exchanges or ()) for step in following} | {len(self.steps): self.pending_exchanges}

    @property
    def usage(self) -> Usage:
        """The model's tokens and their price."""
        exchanges = [each for step in self.steps for each in step.exchanges or ()]
        used = [msgspec.convert(each, Exchange).usage for each in (*exchanges, *self.pending_exchanges)]
        prices = [usage.price for usage in used if usage.price is not None]
        return Usage(
            input_tokens=sum(usage.input_tokens for usage in used),
            output_tokens=sum(usage.output_tokens for usage in used),
            price=write_cost(sum(map(read_cost, prices), Decimal(0))) if prices else None,
        )


def make_past(
    steps: Sequence[TimedStep], in_flight: UnansweredStep | None, poisoned: Iterable[OmittedStep]
) -> Past | None:
    """The past of the new attempt. None if the episode starts from the beginning.

    The observation of a poisoned step reports the death of its sandbox, even if the call was not recorded. Steps before
    it that are missing in the trajectory keep their numbers, so no later step gets the number of a poisoned one. A
    step in flight that did not kill its sandbox is not replayed; the agent may repeat it.
    """
    reasons = {each.step: each.reason or "it died" for each in poisoned if each.step <= _MOST_STEPS}
    past = _past(steps, in_flight, reasons)
    size = sum(len(msgspec.json.encode(step)) + 1 for step in past.trajectory.steps) if past is not None else 0
    if size <= REPLAY_LIMIT:
        return past
    _log.error("the recorded steps have %d bytes; at most %d are replayed", size, REPLAY_LIMIT)
    return _past((), None, reasons)


def _past(steps: Sequence[TimedStep], in_flight: UnansweredStep | None, reasons: Mapping[int, str]) -> Past | None:
    if not steps and not reasons:
        return None
    known = [_poisoned(step, reasons[step.seq]) if step.seq in reasons else step for step in steps]
    if not known:
        known = [TimedStep(seq=0, call=None, observation=Observation(text="", tool="reset"), elapsed_seconds=0.0)]
    pending_exchanges = tuple(in_flight.exchanges) if in_flight is not None else ()
    elapsed = known[-1].elapsed_seconds
    for seq in range(len(known), max(reasons, default=0) + 1):
        sent = in_flight if in_flight is not None and in_flight.seq == seq else None
        call = sent.call if sent is not None else _UNRECORDED
        observation = death_observation(call, reasons[seq]) if seq in reasons else _LOST
        exchanges = tuple(sent.exchanges) if sent is not None else ()
        known.append(
            TimedStep(seq=seq, call=call, observation=observation, elapsed_seconds=elapsed, exchanges=exchanges)
        )
        pending_exchanges = () if sent is not None else pending_exchanges
    return Past(steps=tuple(known), poisoned=tuple(sorted(reasons)), pending_exchanges=pending_exchanges)


def _poisoned(step: TimedStep, reason: str) -> TimedStep:
    if step.call is None:
        return step
    return msgspec.structs.replace(step, observation=death_observation(step.call, reason))
