"""One attempt of an episode, from the upload of the workspace to the result. Independent of HTTP."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from dgym.errors import ConflictError, EpisodeOver, InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.session import SandboxTermination, Session
from dgym.sidecar._access import Access
from dgym.sidecar._preparation import Runners, TerminationReports, Upload, Uploads, make_session
from dgym.sidecar.settings import Settings
from dgym.wire import EndReason, Result, Step, checked_action
from dgym.wire.http import (
    DRIVER_REASONS,
    TRAJECTORY_PAGE_LIMIT,
    Accepted,
    AttemptState,
    CallError,
    ErrorCode,
    FinishRequest,
    FinishResponse,
    PatchResponse,
    PauseRequest,
    PeekResponse,
    PrepareRequest,
    PrepareResponse,
    ReleaseRequest,
    ResetRequest,
    Role,
    RunningRequest,
    StepRequest,
    StepResponse,
    StepsResponse,
    TerminatedResponse,
    ToolsResponse,
    UploadResponse,
    Usage,
)
from dgym.wire.outcome import Evidence
from dgym.wire.signing import sign_outcome

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RECORDED_SECONDS = 15.0
"""Interval of updates of the termination message, because a killed sidecar cannot write it at its end."""
_WITH_THE_POD_SECONDS = 2.0
"""A sandbox that ended within this time before the sidecar's shutdown was terminated with its pod."""


class DriverLease:
    """The time since the driver's last call, by the monotonic clock."""

    def __init__(self) -> None:
        self._calls = 0
        self._renewed = time.monotonic()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Context of a driver's call. The lease is suspended during the call and renewed at its end."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._renewed = time.monotonic()

    async def expired(self, seconds: float) -> None:
        """Wait until there has been no call for ``seconds``. The time begins now."""
        self._renewed = time.monotonic()
        while True:
            left = self.left(seconds)
            if left <= 0:
                return
            await asyncio.sleep(left)

    def left(self, seconds: float) -> float:
        """Return the time in seconds until the driver has made no call for ``seconds``: all of it during a call."""
        return seconds if self._calls else self._renewed + seconds - time.monotonic()


class StillRunning(Exception):
    """The call has not finished yet. A repetition of the call waits for the same operation."""


class Attempt:
    """Serves the calls of one attempt with one session. ``Api`` routes each call to a method.

    A method raises ``StillRunning`` if the call takes longer than ``Settings.answer_seconds``.

    Args:
        settings: Digests of tokens, directories and time limits.
        runners: The pod's two runners.
        over: Why the attempt does not accept calls any more; None if it does.
        record: Called when the evidence, the result or the failure has changed.
    """

    def __init__(
        self,
        settings: Settings,
        runners: Runners,
        *,
        over: str | None = None,
        record: Callable[["Attempt"], None],
    ) -> None:
        self.access = Access(settings.digests)
        self.failure: Exception | None = None
        self.result: Result | None = None
        self.ended = asyncio.Event()
        self.released = asyncio.Event()
        self.released_with: ReleaseRequest | None = None
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
        """Why the pod is not ready; None if it is ready."""
        if self._over is not None or self.failure is not None:
            return self._over or str(self.failure)
        if self._reports.overdue:
            # The kubelet then publishes the states of all containers, and the operator reports that of the sandbox.
            return "the end of the sandbox is not confirmed"
        return None if self._ending else self._runners.missing

    @property
    def evidence(self) -> Evidence:
        """What the sidecar reports about the attempt. Frozen when shutdown begins."""
        if self._last_evidence is not None or self.session is None:
            return self._last_evidence or Evidence()
        return _evidence_of(self.session)

    # The role "prepare"

    async def upload_workspace(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Store the repository."""
        return await self._receive(self._uploads.workspace, chunks)

    async def upload_trajectory(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Store the steps of an earlier attempt."""
        return await self._receive(self._uploads.trajectory, chunks)

    def prepare(self, request: PrepareRequest) -> PrepareResponse:
        """Create the session for the task. Idempotent."""
        self._refuse_if_over()
        if self._prepared is not None and self.session is not None:
            # The remaining seconds differ if another agent pod repeats the call.
            same = msgspec.structs.replace(request, remaining_seconds=self._prepared.remaining_seconds)
            if same != self._prepared:
                raise CallError(ErrorCode.CONFLICT, "the attempt was prepared for another task or with other values")
            return PrepareResponse(tools=tuple(self.session.tools))
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
            self.access.ignore_epochs(Role.DRIVE)
            self._in_background(self._watch_driver(self.session, request.driver_idle_seconds))
        return PrepareResponse(tools=tuple(self.session.tools))

    async def apply_solution(self) -> PeekResponse:
        """Apply the gold patch. A repeated call does not apply it again."""
        return PeekResponse(observation=await self._in_time(self._running().apply_solution()))

    async def wait_for_result(self) -> FinishResponse:
        """Wait for the end of the episode and return the result."""
        await self._in_time(self.ended.wait())
        if self.result is not None:
            return FinishResponse(result=self.result)
        assert self.failure is not None
        raise self.failure

    def release(self, request: ReleaseRequest) -> Accepted:
        """Release the pod after the result was stored."""
        self.released_with = self.released_with or request
        self._record(self)
        self.released.set()
        return Accepted()

    # The role "drive"

    async def reset(self, request: ResetRequest, *, key: str) -> StepResponse:
        """Start the episode. A repeated call with the same key resumes it."""
        self._refuse_if_over()
        session = self._prepared_session()
        if self._runners.starting:
            raise CallError(ErrorCode.BUSY, self._runners.missing or "the runners are starting")
        await self._in_time(session.reset(evaluate=request.evaluate, key=key))
        return StepResponse(step=session.trajectory()[0], state=session.state)

    async def step(self, request: StepRequest, *, seq: int) -> StepResponse:
        """Execute step ``seq``. A repeated call returns the same step."""
        session = self._running(request.usage)
        if seq == session.next_seq and session.step_in_flight is None and not self._ending:
            # Raises here if the sandbox ended before this step was sent, so that the step is not poisoned.
            self._runners.get("sandbox")
        try:
            await self._in_time(session.step(seq, checked_action(request.given)))
        except ConflictError as error:
            code = ErrorCode.GAP if seq > session.next_seq else ErrorCode.CONFLICT
            raise CallError(code, str(error)) from None
        except EpisodeOver as error:
            limited = self.result is not None and self.result.reason.is_truncation
            raise CallError(ErrorCode.LIMIT_REACHED if limited else ErrorCode.ATTEMPT_OVER, str(error)) from None
        return StepResponse(step=session.trajectory(start=seq)[0], state=session.state)

    async def peek(self, request: StepRequest) -> PeekResponse:
        """Execute a call that changes nothing. It is not recorded as a step."""
        return PeekResponse(observation=await self._in_time(self._running().peek(checked_action(request.given))))

    def steps(self, *, start: int) -> StepsResponse:
        """Return the recorded steps from number ``start`` that fit into one answer; none before the reset."""
        self._refuse_if_over()
        session = self._prepared_session()
        begun = session.next_seq > 0 or self.failure is not None
        return trajectory_page(self._running() if begun else session, start)

    def tools(self) -> ToolsResponse:
        """Return the tools that are currently available."""
        self._refuse_if_over()
        return self._prepared_session().toolset

    async def patch(self) -> PatchResponse:
        """Return the agent's changes as a patch."""
        return PatchResponse(patch=utf8(await self._in_time(self._running().patch())))

    async def finish(self, request: FinishRequest) -> FinishResponse:
        """End the episode and wait for its result."""
        if request.reason not in DRIVER_REASONS:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"a driver cannot give the reason {request.reason}")
        if self.result is None:
            result = await self._in_time(self._running(request.usage).finish(request.reason))
            return FinishResponse(result=self._signed(result))
        if request.usage is not None:
            self._count_tokens(self.result, request.usage)
        return FinishResponse(result=self.result)

    # The role "operate"

    def terminated(self) -> TerminatedResponse:
        """Record the operator's report that the sandbox's container has terminated."""
        self._reports.report_terminated()
        lost = isinstance(self.failure, SandboxLost | SandboxStartFailed)
        expected = self.result is not None or (self._ending and not lost)
        step = self.evidence.poisoned_step
        # While a call is in flight, its failure decides whether it terminated the sandbox.
        over = self._runners.is_lost("sandbox") and (self.session is None or not self.session.busy)
        return TerminatedResponse(expected=expected, poisoned_step=step, known=expected or over or step is not None)

    def running(self, request: RunningRequest) -> Accepted:
        """Record the operator's report that the sandbox's container was still running.

        Raises:
            StillRunning: The container need not have terminated at that time; see ``TerminationReports``.
        """
        if not self._reports.report_running(request.observed):
            raise StillRunning
        return Accepted()

    def pause(self, request: PauseRequest) -> Accepted:
        """Pause the deadline, because the operator has lost the agent pod. The next call of a driver continues it."""
        if self.session is not None and not self.access.has_newer(request.epoch):
            self.session.deadline.pause()
        return Accepted()

    def cancel(self) -> Accepted:
        """End the episode as cancelled. It is scored if it was started."""
        if not self.ended.is_set() and not self._cancelled:
            self._refuse_if_over()
            self._cancelled = True
            if self.session is not None and self.session.reset_requested:
                self._in_background(self._finish_session(self.session, EndReason.CANCELLED))
            elif self.result is None:
                self._end_unbegun(EndReason.CANCELLED, "the episode was cancelled before it began")
        if not self.ended.is_set():
            raise StillRunning
        return Accepted()

    def state(self) -> AttemptState:
        """Return the clocks and the steps of the attempt."""
        return _state_of(self.session, ended=self.ended.is_set())

    # The end of the sidecar

    def request_shutdown(self) -> None:
        """Freeze the evidence at shutdown: containers that end from now on are terminated with the pod."""
        self._last_evidence = _last_evidence(self.session)
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
        """Wait for ``work`` for at most ``answer_seconds``. After that it continues in the session.

        Raises:
            StillRunning: ``work`` takes longer.
        """
        try:
            async with asyncio.timeout(self._settings.answer_seconds) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise StillRunning from None

    async def _watch(self, session: Session) -> None:
        """Wait for the end of the episode, and record the result or the failure."""
        await session.ending.wait()
        self._record(self)
        try:
            self._finish_with(await session.finish())
        except Exception as error:
            _log.error("the attempt failed: %s", error, exc_info=not isinstance(error, InfrastructureError))
            self.failure = error
            self.ended.set()
            self._record(self)

    async def _keep_record(self) -> None:
        """Record the deadline clock regularly, in case the sidecar is killed."""
        while not self.ended.is_set():
            self._record(self)
            await asyncio.sleep(_RECORDED_SECONDS)

    async def _watch_driver(self, session: Session, seconds: float) -> None:
        """End the episode when its external driver has not made a call for ``seconds``."""
        await self.lease.expired(seconds)
        if self._ending or self.ended.is_set() or self.released.is_set():
            return
        _log.warning("the driver is idle: no call for %g s", seconds)
        if session.reset_requested:
            await self._finish_session(session, EndReason.DRIVER_IDLE)
        else:
            self._end_unbegun(EndReason.DRIVER_IDLE, f"a driver did not begin the episode within {seconds:g} s")

    async def _finish_session(self, session: Session, reason: EndReason) -> None:
        with contextlib.suppress(Exception):  # ``_watch`` records the exception.
            await session.finish(reason)

    def _end_unbegun(self, reason: EndReason, message: str) -> None:
        """End an episode before its reset, without scoring."""
        self._over = message
        self._finish_with(Result(resolved=False, reason=reason, message=message))

    def _finish_with(self, result: Result) -> None:
        self.result = self._signed(result)
        self.ended.set()
        self._record(self)

    def _count_tokens(self, result: Result, usage: Usage) -> None:
        """Count tokens that a driver reports after the end, because an episode may end during a model request."""
        counted = Usage(input_tokens=result.input_tokens, output_tokens=result.output_tokens, price=result.price)
        if (total := counted.merged(usage)) != counted:
            tokens = msgspec.structs.asdict(total)
            self._finish_with(msgspec.structs.replace(result, **tokens))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _receive(self, upload: Upload, chunks: AsyncIterator[bytes]) -> UploadResponse:
        self._refuse_if_over()
        if self._prepared is not None:
            raise CallError(ErrorCode.CONFLICT, "the attempt is prepared: its workspace can no longer be changed")
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
        """Return the session after its reset. Continues the deadline clock and records ``usage``."""
        self._refuse_if_over()
        session = self._prepared_session()
        if session.next_seq == 0:
            raise self.failure or CallError(ErrorCode.CONFLICT, "the attempt was not reset")
        session.deadline.run()
        if usage is not None:
            session.record_usage(usage)
        return session

    def _signed(self, result: Result) -> Result:
        """Return the result to be sent: its patch is valid UTF-8, and it has the signature of this sidecar."""
        settings = self._settings
        result = msgspec.structs.replace(result, patch=utf8(result.patch))
        signature = sign_outcome(
            settings.operate_sha256, result, episode_uid=settings.episode_uid, attempt=settings.attempt
        )
        return msgspec.structs.replace(result, signature=signature)


def trajectory_page(session: Session, start: int) -> StepsResponse:
    """Return the steps from number ``start`` that fit into one answer, but at least one."""
    steps = session.trajectory(start=start)
    page: list[Step] = []
    size = 0
    for step in steps:
        size += len(msgspec.json.encode(step))
        if page and size > TRAJECTORY_PAGE_LIMIT:
            break
        page.append(step)
    return StepsResponse(steps=tuple(page), next=start + len(page) if len(page) < len(steps) else None)


def utf8(text: str) -> str:
    """Return ``text`` with "?" for characters that UTF-8 cannot encode (surrogates)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _evidence_of(session: Session) -> Evidence:
    return Evidence(
        elapsed_seconds=round(session.deadline.elapsed, 3),
        step_in_flight=_step_in_flight(session),
        poisoned_step=next(reversed(session.own_poisoned_steps), None),
    )


def _last_evidence(session: Session | None) -> Evidence:
    """Return the evidence at shutdown. A sandbox that ended just before is not evidence against a step."""
    if session is None:
        return Evidence(shutdown_requested=True)
    now, death = _evidence_of(session), session.last_death
    if death is not None and time.monotonic() - death < _WITH_THE_POD_SECONDS:
        now = msgspec.structs.replace(now, step_in_flight=now.poisoned_step or now.step_in_flight, poisoned_step=None)
    return msgspec.structs.replace(now, shutdown_requested=True)


def _state_of(session: Session | None, *, ended: bool) -> AttemptState:
    """Return the clocks and steps of the attempt. ``ended``: there is a result, or the attempt has failed."""
    if session is None:
        return AttemptState(ended=ended)
    deadline, ending = session.deadline, session.ending.is_set()
    return AttemptState(
        elapsed_seconds=round(deadline.elapsed, 3),
        remaining_seconds=None if deadline.remaining is None else round(max(0.0, deadline.remaining), 3),
        running=deadline.running and not ending,
        steps=session.steps,
        step_in_flight=_step_in_flight(session),
        poisoned_steps=session.own_poisoned_steps,
        ending=ending,
        ended=ended,
    )


def _step_in_flight(session: Session) -> int | None:
    """Return the step that is being executed; None while the tests run after the step that submits."""
    return None if session.ending.is_set() else session.step_in_flight
