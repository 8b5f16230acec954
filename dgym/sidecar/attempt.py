"""One attempt of an episode, from the uploaded workspace to the verdict. Knows no HTTP."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from dgym.errors import ConflictError, EpisodeOver, InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.session import SandboxTermination, Session
from dgym.sidecar.access import CallError
from dgym.sidecar.evidence import Evidence, evidence_of, last_evidence, state_of
from dgym.sidecar.lease import DriverLease
from dgym.sidecar.preparation import Upload, Uploads, make_session
from dgym.sidecar.runners import Runners, TerminationReports
from dgym.sidecar.settings import Settings
from dgym.wire import EndReason, Observation, Result, Step
from dgym.wire.http import (
    DRIVER_REASONS,
    HISTORY_LIMIT,
    AttemptState,
    CloseRequest,
    ErrorCode,
    PrepareRequest,
    ReleaseRequest,
    ResetRequest,
    RunningRequest,
    StepRequest,
    StepResponse,
    StepsResponse,
    ToolsResponse,
    UploadResponse,
    Usage,
    VerifyResponse,
)
from dgym.wire.signing import sign_verdict

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RECORDED_SECONDS = 15.0
"""How old the clock in the termination message may be: a sidecar that is killed says no more."""


class StillRunning(Exception):
    """The call has not ended yet; a repetition joins it."""


class Attempt:
    """Serves the calls of one attempt over one session.

    Args:
        settings: Directories and time limits.
        runners: The pod's two runners.
        over: Why the attempt accepts no calls any more; None: it does.
        record: Called whenever the evidence, the result or the failure has changed.
    """

    def __init__(
        self,
        settings: Settings,
        runners: Runners,
        *,
        over: str | None = None,
        record: Callable[["Attempt"], None],
    ) -> None:
        self.failure: Exception | None = None
        self.result: Result | None = None
        self.ended = asyncio.Event()
        self.released = asyncio.Event()
        self.release: ReleaseRequest | None = None
        self.session: Session | None = None
        self._settings = settings
        self._runners = runners
        self._over = over
        self._record = record
        self._reports = TerminationReports(
            timeout_seconds=settings.stop_timeout_seconds, patience_seconds=settings.confirmation_seconds
        )
        self.lease = DriverLease()
        self._uploads = Uploads(settings.directory)
        self._prepared: PrepareRequest | None = None
        self._cancelled = False
        self._last_evidence: Evidence | None = None
        self._background: set[asyncio.Task[None]] = set()

    @property
    def problem(self) -> str | None:
        """Why the pod is not ready to be driven, if it is not."""
        if self._over is not None or self.failure is not None:
            return self._over or str(self.failure)
        if self._reports.overdue:
            # The kubelet publishes this with the states of all containers, and the operator reports the sandbox's.
            return "the end of the sandbox is not confirmed"
        return None if self._ending else self._runners.missing

    @property
    def evidence(self) -> Evidence:
        """The sidecar's word about the attempt; once it is told to end, that of then."""
        if self._last_evidence is not None or self.session is None:
            return self._last_evidence or Evidence()
        return evidence_of(self.session)

    @property
    def state(self) -> AttemptState:
        """The clocks of the attempt."""
        return state_of(self.session, ended=self.ended.is_set())

    # The role "prepare"

    async def receive_workspace(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Store the repository."""
        return await self._receive(self._uploads.workspace, chunks)

    async def receive_history(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Store the steps of an earlier attempt."""
        return await self._receive(self._uploads.history, chunks)

    def prepare(self, request: PrepareRequest) -> tuple[str, ...]:
        """Make the session for the task; idempotent. Returns the names of the tools."""
        self._refuse_if_over()
        if self._prepared is not None and self.session is not None:
            # The remaining seconds differ where another agent repeats the call.
            same = msgspec.structs.replace(request, remaining_seconds=self._prepared.remaining_seconds)
            if same != self._prepared:
                raise CallError(ErrorCode.CONFLICT, "the attempt was prepared for another task, or otherwise")
            return tuple(self.session.tools)
        termination = SandboxTermination(
            confirmed=self._reports.confirmed,
            timeout_seconds=self._settings.stop_timeout_seconds,
            clear_shared=self._runners.clear_shared,
        )
        record = lambda: self._record(self)  # noqa: E731
        self.session = make_session(request, self._uploads, self._runners, termination, record)
        self._prepared = request
        self._in_background(self._watch(self.session))
        self._in_background(self._keep_record())
        if request.driver_idle_seconds is not None:
            self._in_background(self._watch_driver(self.session, request.driver_idle_seconds))
        return tuple(self.session.tools)

    async def apply_solution(self) -> Observation:
        """Apply the gold patch, once."""
        return await self._in_time(self._running().apply_solution())

    async def wait_for_result(self) -> Result:
        """The verdict, whatever ends the episode."""
        await self._in_time(self.ended.wait())
        if self.result is not None:
            return self.result
        assert self.failure is not None
        raise self.failure

    def record_release(self, request: ReleaseRequest) -> None:
        """Release the pod: the result is stored."""
        self.release = self.release or request
        self._record(self)
        self.released.set()

    # The role "drive"

    async def reset(self, key: str, request: ResetRequest) -> StepResponse:
        """Begin the episode, or resume it under the same key."""
        self._refuse_if_over()
        session = self._prepared_session()
        if self._runners.starting:
            raise CallError(ErrorCode.BUSY, self._runners.missing or "the runners come up")
        await self._in_time(session.reset(evaluate=request.evaluate, key=key))
        return StepResponse(step=session.history()[0], state=session.state)

    async def step(self, seq: int, request: StepRequest) -> StepResponse:
        """Execute one call, once."""
        session = self._running(request.usage)
        if seq == session.next_seq and session.step_in_flight is None and not self._ending:
            # A sandbox that died before the step was sent is lost by none of the agent's steps.
            self._runners.get("sandbox")
        try:
            await self._in_time(session.step(seq, request.call))
        except ConflictError as error:
            code = ErrorCode.GAP if seq > session.next_seq else ErrorCode.CONFLICT
            raise CallError(code, str(error)) from None
        except EpisodeOver as error:
            limited = self.result is not None and self.result.reason.is_truncation
            raise CallError(ErrorCode.LIMIT_REACHED if limited else ErrorCode.ATTEMPT_OVER, str(error)) from None
        return StepResponse(step=session.history(start=seq)[0], state=session.state)

    async def peek(self, request: StepRequest) -> Observation:
        """Execute a call that changes nothing, without a step."""
        return await self._in_time(self._running().peek(request.call))

    def steps(self, start: int) -> StepsResponse:
        """Recorded steps from number ``start`` on, as many as one answer takes; none before the reset."""
        self._refuse_if_over()
        session = self._prepared_session()
        begun = session.next_seq > 0 or self.failure is not None
        return history_page(self._running() if begun else session, start)

    def tools(self) -> ToolsResponse:
        """The tools that are available now."""
        self._refuse_if_over()
        return self._prepared_session().toolset

    async def diff(self) -> str:
        """The agent's changes."""
        return utf8(await self._in_time(self._running().changes()))

    async def close_episode(self, request: CloseRequest) -> Result:
        """End the episode and wait for its verdict."""
        if request.reason not in DRIVER_REASONS:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"{request.reason} is not for a driver to give")
        if self.result is None:
            return self._signed(await self._in_time(self._running(request.usage).finish(request.reason)))
        if request.usage is not None:
            self._count_tokens(self.result, request.usage)
        return self.result

    # The role "operate"

    def sandbox_has_ended(self) -> VerifyResponse:
        """Record the report that the sandbox's container has terminated."""
        self._reports.report_terminated()
        lost = isinstance(self.failure, SandboxLost | SandboxStartFailed)
        expected = self.result is not None or (self._ending and not lost)
        step = self.evidence.poisoned_step
        # The call in flight fails, and shows by that whether the sandbox has died under it.
        over = self._runners.is_lost("sandbox") and (self.session is None or not self.session.busy)
        return VerifyResponse(expected=expected, poisoned_step=step, known=expected or over or step is not None)

    def sandbox_still_runs(self, request: RunningRequest) -> bool:
        """Record the report that the sandbox's container was running; False while the report is no evidence."""
        return self._reports.report_running(request.observed)

    def pause(self) -> None:
        """Stop the deadline's clock, since the operator has lost the agent; the next call of a driver starts it."""
        if self.session is not None:
            self.session.deadline.pause()

    def cancel(self) -> bool:
        """End the episode as cancelled, scored where there is anything to score; returns whether it has ended."""
        if self.ended.is_set() or self._cancelled:
            return self.ended.is_set()
        self._refuse_if_over()
        self._cancelled = True
        if self.session is not None and self.session.reset_requested:
            self._in_background(self._finish_session(self.session, EndReason.CANCELLED))
        elif self.result is None:
            self._end_unbegun(EndReason.CANCELLED, "the episode was cancelled before it began")
        return self.ended.is_set()

    # The end of the sidecar

    def tell_to_end(self) -> None:
        """Fix the evidence: whatever ends from now on ends with the pod."""
        self._last_evidence = last_evidence(self.session)
        self._record(self)

    async def close(self) -> None:
        """Close the session and both runners, without scoring."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.session is not None:
            await self.session.close()
        await self._runners.close()

    @property
    def _ending(self) -> bool:
        return self.session is not None and self.session.ending.is_set()

    async def _in_time(self, work: Awaitable[T]) -> T:
        """The outcome of ``work``, which continues in the session where it takes longer than an answer may.

        Raises:
            StillRunning: It takes longer.
        """
        try:
            async with asyncio.timeout(self._settings.answer_seconds) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise StillRunning from None

    async def _watch(self, session: Session) -> None:
        """Record the result or the failure, whatever ends the episode."""
        await session.ending.wait()
        self._record(self)
        try:
            self._conclude(await session.finish())
        except Exception as error:
            _log.error("the attempt failed: %s", error, exc_info=not isinstance(error, InfrastructureError))
            self.failure = error
            self.ended.set()
            self._record(self)

    async def _keep_record(self) -> None:
        """Record the clock every few seconds, for when the sidecar is killed."""
        while not self.ended.is_set():
            self._record(self)
            await asyncio.sleep(_RECORDED_SECONDS)

    async def _watch_driver(self, session: Session, seconds: float) -> None:
        """End the episode once its external driver has made no call for ``seconds``."""
        await self.lease.expired(seconds)
        if self._ending or self.ended.is_set() or self.released.is_set():
            return
        _log.warning("the driver is idle: no call for %g s", seconds)
        if session.reset_requested:
            await self._finish_session(session, EndReason.DRIVER_IDLE)
        else:
            self._end_unbegun(EndReason.DRIVER_IDLE, f"no driver began the episode within {seconds:g} s")

    async def _finish_session(self, session: Session, reason: EndReason) -> None:
        with contextlib.suppress(Exception):  # ``_watch`` records it.
            await session.finish(reason)

    def _end_unbegun(self, reason: EndReason, message: str) -> None:
        """End an episode before its reset: there is nothing to score."""
        self._over = message
        self._conclude(Result(resolved=False, reason=reason, message=message))

    def _conclude(self, result: Result) -> None:
        self.result = self._signed(result)
        self.ended.set()
        self._record(self)

    def _count_tokens(self, result: Result, usage: Usage) -> None:
        """Count the tokens that a driver reports after the end: an episode may end while its model answers."""
        counted = Usage(input_tokens=result.input_tokens, output_tokens=result.output_tokens, price=result.price)
        if (total := counted.merged(usage)) != counted:
            tokens = msgspec.structs.asdict(total)
            self._conclude(msgspec.structs.replace(result, **tokens))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _receive(self, upload: Upload, chunks: AsyncIterator[bytes]) -> UploadResponse:
        self._refuse_if_over()
        if self._prepared is not None:
            raise CallError(ErrorCode.CONFLICT, "the attempt is prepared: its workspace cannot be changed any more")
        return await upload.receive(chunks)

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise CallError(ErrorCode.ATTEMPT_OVER, self._over)
        if self.released.is_set():
            raise CallError(ErrorCode.ATTEMPT_OVER, "the attempt was released")

    def _prepared_session(self) -> Session:
        if self.session is None:
            raise CallError(ErrorCode.CONFLICT, "the attempt is not prepared")
        return self.session

    def _running(self, usage: Usage | None = None) -> Session:
        """The session after its reset; the deadline runs again, and ``usage`` is recorded."""
        self._refuse_if_over()
        session = self._prepared_session()
        if session.next_seq == 0:
            raise self.failure or CallError(ErrorCode.CONFLICT, "the attempt was not reset")
        session.deadline.run()
        if usage is not None:
            session.record_usage(usage)
        return session

    def _signed(self, result: Result) -> Result:
        """The verdict as it is sent: its text is UTF-8, and it carries the signature of this sidecar."""
        settings = self._settings
        result = msgspec.structs.replace(result, patch=utf8(result.patch))
        signature = sign_verdict(
            settings.operate_sha256, result, episode_uid=settings.episode_uid, attempt=settings.attempt
        )
        return msgspec.structs.replace(result, signature=signature)


def history_page(session: Session, start: int) -> StepsResponse:
    """Steps from number ``start`` on, at least one, as long as they fit into one answer."""
    steps = session.history(start=start)
    page: list[Step] = []
    size = 0
    for step in steps:
        size += len(msgspec.json.encode(step))
        if page and size > HISTORY_LIMIT:
            break
        page.append(step)
    return StepsResponse(steps=tuple(page), next=start + len(page) if len(page) < len(steps) else None)


def utf8(text: str) -> str:
    """``text`` without what UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
