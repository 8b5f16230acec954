"""One attempt of an episode, from the uploaded workspace to the verdict. Knows no HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, TypeVar

import msgspec

from dgym.api import DebugTask
from dgym.errors import ConflictError, EpisodeOver, InfrastructureError
from dgym.session import EpisodeLimits, Killing, Session, sandbox_spec
from dgym.sidecar.answers import CallError, episode_state, history_page, tool_descriptions, utf8
from dgym.sidecar.ongoing import Ongoing
from dgym.sidecar.preparation import Uploads
from dgym.sidecar.runners import PodProvider, Runners
from dgym.sidecar.settings import Settings
from dgym.sidecar.termination import Termination
from dgym.tools import load_tools
from dgym.wire import EndReason, Observation, Result
from dgym.wire.http import (
    DRIVER_REASONS,
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
    Usage,
    VerifyResponse,
    WorkspaceResponse,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Attempt:
    """What the calls mean.

    Args:
        settings: Where files are, how long things may take.
        runners: The pod's two runners.
        over: Why nothing can be done in this attempt any more; None: it can.
        on_end: Told when there is a result, or a failure that will not pass.
    """

    def __init__(
        self,
        settings: Settings,
        runners: Runners,
        *,
        over: str | None = None,
        on_end: Callable[["Attempt"], None] = lambda _attempt: None,
    ) -> None:
        self.failure: Exception | None = None
        self.result: Result | None = None
        self.ended = asyncio.Event()
        self.released = asyncio.Event()
        self.release: ReleaseRequest | None = None
        self.usage = Usage()
        self.session: Session | None = None
        self._settings = settings
        self._runners = runners
        self._over = over
        self._on_end = on_end
        self._termination = Termination(
            timeout_seconds=settings.stop_timeout_seconds, patience_seconds=settings.confirmation_seconds
        )
        self._uploads = Uploads(settings.directory)
        self._ongoing = Ongoing(settings.answer_seconds)
        self._prepared: PrepareRequest | None = None
        self._reset_key: str | None = None
        self._solution: Observation | None = None
        self._begun = False
        self._cancelled = False
        self._background: set[asyncio.Task[None]] = set()

    @property
    def problem(self) -> str | None:
        """Why the pod is not ready to be driven, if it is not."""
        if self._over is not None or self.failure is not None:
            return self._over or str(self.failure)
        if self._termination.overdue:
            # The kubelet publishes this with the states of all containers, and the operator reports the sandbox's.
            return "the end of the sandbox is not confirmed"
        ending = self.session is not None and self.session.ending.is_set()
        return None if ending else self._runners.missing

    @property
    def poisoned_step(self) -> int | None:
        """The last step under which the sandbox died."""
        return max(self.session.poisoned, default=None) if self.session is not None else None

    # What the role "prepare" may do

    async def receive_workspace(self, chunks: AsyncIterator[bytes]) -> WorkspaceResponse:
        """Take the repository."""
        self._refuse_if_over()
        if self._prepared is not None:
            raise CallError(ErrorCode.CONFLICT, "the attempt is prepared: its workspace cannot be changed any more")
        return await self._uploads.receive(chunks)

    def prepare(self, request: PrepareRequest) -> tuple[str, ...]:
        """Take the task; the same again is harmless. Returns the names of the tools."""
        self._refuse_if_over()
        if self._prepared is not None and self.session is not None:
            # What is left of the deadline is less for whoever takes over.
            same = msgspec.structs.replace(request, remaining_seconds=self._prepared.remaining_seconds)
            if same != self._prepared:
                raise CallError(ErrorCode.CONFLICT, "the attempt was prepared for another task, or otherwise")
            return tuple(self.session.tools)
        task = _read_task(request.task)
        self._check_workspace(task, request)
        tools = load_tools(_only_installed(request))
        self.session = Session(
            task,
            provider=PodProvider(self._runners, sandbox_spec(task, None)),
            tools=tools,
            source=self._uploads.path if request.workspace_sha256 is not None else None,
            limits=EpisodeLimits(
                max_steps=request.max_steps,
                max_rewrites=request.max_rewrites,
                deadline_seconds=request.remaining_seconds,
            ),
            killing=Killing(confirmed=self._termination.confirmed, timeout_seconds=self._settings.stop_timeout_seconds),
        )
        self._prepared = request
        self._in_background(self._watch(self.session))
        return tuple(self.session.tools)

    async def apply_solution(self) -> Observation:
        """Apply the gold patch; once, since it would not apply again."""
        session = self._running()
        if self._solution is None:
            self._solution = await self._once("solution", session.apply_solution)
        return self._solution

    async def wait_for_result(self) -> Result:
        """The verdict, whoever or whatever brings it about; for who stores it."""
        await self._once("result", self.ended.wait)
        if self.result is not None:
            return self.result
        assert self.failure is not None
        raise self.failure

    def let_go(self, request: ReleaseRequest) -> None:
        """The result is stored; the pod may end."""
        self.release = self.release or request
        self._on_end(self)
        self.released.set()

    # What the role "drive" may do

    async def reset(self, key: str, request: ResetRequest) -> StepResponse:
        """Begin the episode; once, however often the same key asks."""
        self._refuse_if_over()
        session = self._prepared_session()
        if request.evaluate and "eval" not in session.tools:
            raise CallError(ErrorCode.INVALID_ARGUMENT, "evaluate needs the tool eval, which was not prepared")
        if self._reset_key not in (None, key):
            raise CallError(ErrorCode.CONFLICT, "the attempt was reset under another key; it can be reset once")
        if self._runners.starting:
            raise CallError(ErrorCode.BUSY, self._runners.missing or "the runners come up")
        self._reset_key = key
        if self.failure is not None and not self._begun:
            raise self.failure
        if not self._begun:
            await self._once("reset", lambda: self._begin(session, evaluate=request.evaluate))
        else:
            session.deadline.run()
            # Whoever takes the episode up decides what comes next by all that was done, the step in flight included.
            await self._once(("settled", session.next_seq), session.settled)
        return StepResponse(step=session.history()[0], state=episode_state(session, self.usage))

    async def step(self, seq: int, request: StepRequest) -> StepResponse:
        """Execute one call, once."""
        session = self._running()
        self._note_usage(request.usage)
        action = _action(request)
        call = msgspec.json.encode((request.tool, request.arguments), order="deterministic")
        await self._once(("step", seq, call), lambda: self._step(session, seq, action))
        return StepResponse(step=session.history(start=seq)[0], state=episode_state(session, self.usage))

    async def peek(self, request: StepRequest) -> Observation:
        """Look without a step."""
        session = self._running()
        call = msgspec.json.encode((request.tool, request.arguments), order="deterministic")
        action = _action(request)
        return await self._once(("peek", session.next_seq, call), lambda: session.peek(action))

    def steps(self, start: int) -> StepsResponse:
        """Recorded steps from number ``start`` on, as many as one answer takes."""
        return history_page(self._running(), start)

    def tools(self) -> ToolsResponse:
        """What the agent may use now."""
        self._refuse_if_over()
        return tool_descriptions(self._prepared_session())

    async def diff(self) -> str:
        """What the agent has changed."""
        session = self._running()
        if session.result is not None:
            return utf8(session.result.patch)
        changes = await self._once(("diff", session.next_seq), session.changes)
        return utf8(changes.patch.decode("utf-8", "surrogateescape"))

    async def close_episode(self, request: CloseRequest) -> Result:
        """End the episode and wait for its verdict."""
        if request.reason not in DRIVER_REASONS:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"{request.reason} is not for a driver to give")
        if self.result is not None:
            return self.result
        session = self._running()
        self._note_usage(request.usage)
        return self._final(await self._once("finish", lambda: session.finish(request.reason)))

    # What the role "operate" may do

    def sandbox_has_ended(self) -> VerifyResponse:
        """The sandbox's container is seen to have terminated."""
        self._termination.report_terminated()
        expected = self.result is not None or (self.session is not None and self.session.ending.is_set())
        return VerifyResponse(expected=expected, poisoned_step=self.poisoned_step)

    def sandbox_still_runs(self, request: RunningRequest) -> bool:
        """Record the report that the sandbox's container was running; False while the report is no evidence."""
        return self._termination.report_running(request.observed)

    def pause(self) -> None:
        """Stop the deadline's clock, since the operator has lost the agent; the next call of a driver starts it."""
        if self.session is not None and self._begun:
            self.session.deadline.pause()

    def cancel(self) -> bool:
        """End the episode as cancelled, scored where there is anything to score; returns whether it has ended."""
        if self.ended.is_set() or self._cancelled:
            return self.ended.is_set()
        self._refuse_if_over()
        self._cancelled = True
        if self.session is not None and self._begun:
            self._in_background(self._finish_cancelled(self.session))
        elif self._reset_key is None and self.result is None:
            self._over = "the episode was cancelled before it began"
            self._conclude(Result(resolved=False, reason=EndReason.CANCELLED, message=self._over))
        return self.ended.is_set()

    async def close(self) -> None:
        """End everything, without scoring what was not finished."""
        await self._ongoing.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.session is not None:
            await self.session.close()
        await self._runners.close()

    # How

    async def _begin(self, session: Session, *, evaluate: bool) -> None:
        try:
            await session.reset(evaluate=evaluate)
        except Exception as error:
            self._fail(error)
            raise
        self._begun = True
        if self._cancelled:
            self._in_background(self._finish_cancelled(session))

    async def _step(self, session: Session, seq: int, action: Any) -> None:
        try:
            await session.step(seq, action)
        except ConflictError as error:
            code = ErrorCode.GAP if seq > session.next_seq else ErrorCode.CONFLICT
            raise CallError(code, str(error)) from None
        except EpisodeOver as error:
            limited = self.result is not None and self.result.reason.is_truncation
            raise CallError(ErrorCode.LIMIT_REACHED if limited else ErrorCode.ATTEMPT_OVER, str(error)) from None

    async def _watch(self, session: Session) -> None:
        """However the episode ends, the deadline included, what came of it is written down."""
        await session.ending.wait()
        try:
            self._conclude(await session.finish())
        except Exception as error:
            self._fail(error)

    async def _finish_cancelled(self, session: Session) -> None:
        try:
            await session.finish(EndReason.CANCELLED)
        except InfrastructureError as error:
            _log.warning("the cancelled episode was not scored: %s", error)

    def _conclude(self, result: Result) -> None:
        self.result = self._final(result)
        self.ended.set()
        self._on_end(self)

    def _fail(self, error: Exception) -> None:
        _log.error("the attempt failed: %s", error, exc_info=not isinstance(error, InfrastructureError))
        self.failure = error
        self.ended.set()
        self._on_end(self)

    def _final(self, result: Result) -> Result:
        usage = self.usage
        return msgspec.structs.replace(
            result,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            patch=utf8(result.patch),
        )

    def _note_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage = Usage(
                input_tokens=max(usage.input_tokens, self.usage.input_tokens),
                output_tokens=max(usage.output_tokens, self.usage.output_tokens),
            )

    async def _once(self, key: Hashable, execute: Callable[[], Awaitable[T]]) -> T:
        return await self._ongoing.answer(key, execute)

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise CallError(ErrorCode.ATTEMPT_OVER, self._over)
        if self.released.is_set():
            raise CallError(ErrorCode.ATTEMPT_OVER, "the attempt was released")

    def _prepared_session(self) -> Session:
        if self.session is None:
            raise CallError(ErrorCode.CONFLICT, "the attempt is not prepared")
        return self.session

    def _running(self) -> Session:
        self._refuse_if_over()
        session = self._prepared_session()
        if self.failure is not None and not self._begun:
            raise self.failure
        if not self._begun:
            raise CallError(ErrorCode.CONFLICT, "the attempt was not reset")
        session.deadline.run()
        return session

    def _check_workspace(self, task: DebugTask, request: PrepareRequest) -> None:
        latest = self._uploads.latest
        if request.workspace_sha256 is None:
            if task.spec.source is not None:
                raise CallError(ErrorCode.INVALID_ARGUMENT, "the task has a source; upload it and name its SHA-256")
        elif latest is None or latest.sha256 != request.workspace_sha256:
            raise CallError(ErrorCode.CONFLICT, "no workspace of this SHA-256 was uploaded")


def _action(request: StepRequest) -> Any:
    """The request's call; without a tool, the action that the session parses."""
    return request.call if request.tool else request.arguments.get("action", request.call)


def _read_task(value: dict[str, Any]) -> DebugTask:
    try:
        return msgspec.convert(value, DebugTask)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"task: {error}") from None


def _only_installed(request: PrepareRequest) -> list[Any]:
    """The tools; a dotted path would import what the pod's image happens to hold."""
    for tool in request.tools:
        name = tool if isinstance(tool, str) else tool.name
        if ":" in name:
            raise CallError(
                ErrorCode.INVALID_ARGUMENT,
                f"tool {name!r}: a cluster knows the installed tools alone",
            )
    return list(request.tools)
