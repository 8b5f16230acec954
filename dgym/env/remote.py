"""An episode whose session is in a pod: the clients of its sidecar that drive it, and that prepare and release it."""

import asyncio
import hashlib
import io
import logging
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env.http_client import HttpClient, Patience
from dgym.env.route import Finished, Route
from dgym.errors import AccessRefused, ConflictError, DgymError, EpisodeOver, SandboxLost, Superseded
from dgym.session import EpisodeLimits, RecordedHistory
from dgym.tracing import Span
from dgym.wire import EndReason, Observation, Result, Step, ToolCall, action_problem
from dgym.wire.episode import Action
from dgym.wire.http import (
    IDEMPOTENCY_HEADER,
    Accepted,
    CloseRequest,
    CloseResponse,
    DiffResponse,
    EpisodeState,
    Epochs,
    NamedTool,
    PeekResponse,
    PrepareRequest,
    PrepareResponse,
    ReleaseRequest,
    ResetRequest,
    SpansResponse,
    StepRequest,
    StepResponse,
    StepsResponse,
    ToolsResponse,
    UploadResponse,
    Usage,
)
from dgym.wire.http import Path as CallPath
from dgym.wire.signing import content_digest

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 256 * 1024
_RELEASE_SECONDS = 5.0


class RemoteEpisode:
    """The client of the sidecar of one attempt. See ``AsyncRepoEnv.connect`` for the arguments."""

    def __init__(
        self,
        url: str | Route,
        token: str,
        *,
        epochs: Epochs | None = None,
        prepare_token: str | None = None,
        reset_key: str | None = None,
        patience: Patience = Patience(),  # noqa: B008 - immutable
    ) -> None:
        drive, prepare = (epochs.drive, epochs.prepare) if epochs is not None else (None, None)
        self._client = HttpClient(url, token, epoch=drive, patience=patience)
        self._preparing = (
            HttpClient(url, prepare_token, epoch=prepare, patience=patience) if prepare_token is not None else None
        )
        self._reset_key = reset_key or uuid.uuid4().hex
        self._steps: list[Step] = []
        self._state: EpisodeState | None = None
        self._toolset: ToolsResponse | None = None
        self._result: Result | None = None
        self._usage: Usage | None = None

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self._result

    @property
    def state(self) -> EpisodeState:
        """The state of the episode after the last call."""
        return self._reset_once()[0]

    @property
    def toolset(self) -> ToolsResponse:
        """The task's instructions and the tools that are available now."""
        return self._reset_once()[1]

    async def reset(self, *, evaluate: bool = False) -> Observation:
        """Start the episode, or resume it; returns the last observation so far."""
        first = await self._client.call(
            "POST",
            CallPath.RESET,
            StepResponse,
            body=ResetRequest(evaluate=evaluate),
            headers={IDEMPOTENCY_HEADER: self._reset_key},
        )
        self._steps = [first.step]
        if first.state.steps:
            self._steps += await read_history(self._client, 1)
        await self._update(first.state)
        self._usage = first.state.usage
        last = self._steps[-1].observation
        if last.end_reason is not None:
            await self.finish(EndReason.UNRESOLVED)
        return last

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, once."""
        self._reset_once()
        response = await self._client.call(
            "POST",
            f"{CallPath.STEPS}/{seq}",
            StepResponse,
            body=_request(action, self._usage),
        )
        if seq == len(self._steps):
            self._steps.append(response.step)
        await self._update(response.state)
        if response.step.observation.end_reason is not None:
            await self.finish(EndReason.UNRESOLVED)
        return response.step.observation

    async def peek(self, action: Action) -> Observation:
        """The answer of a tool that changes nothing, without a step."""
        return (await self._client.call("POST", CallPath.PEEK, PeekResponse, body=_request(action))).observation

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode and wait for its verdict.

        The sandbox may have ended with the verdict before it answers: then it is the one that the Episode shows.
        """
        if self._result is None:
            self._reset_once()
            body = CloseRequest(reason=reason, usage=self._usage)
            try:
                self._result = (await self._client.call("POST", CallPath.CLOSE, CloseResponse, body=body)).result
            except Finished as finished:
                if finished.result is None:
                    raise
                self._result = finished.result
        return self._result

    async def changes(self) -> str:
        """The agent's changes as a patch."""
        if self._result is not None:
            return self._result.patch
        self._reset_once()
        return (await self._client.call("GET", CallPath.DIFF, DiffResponse)).patch

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution, which only the role "prepare" may."""
        if self._preparing is None:
            raise AccessRefused("applying the solution needs the token of the role 'prepare'")
        return (await self._preparing.call("POST", CallPath.SOLUTION, PeekResponse)).observation

    def history(self, *, start: int = 0) -> list[Step]:
        """The steps from number ``start`` on, those of drivers before this one included."""
        return self._steps[start:]

    def record_usage(self, usage: Usage) -> None:
        """Record the model's tokens so far; they travel with the next step."""
        self._usage = usage

    async def close(self) -> None:
        """Close the connections; the episode goes on."""
        await self._client.close()
        if self._preparing is not None:
            await self._preparing.close()

    async def _update(self, state: EpisodeState) -> None:
        """Record ``state``, and get the tools where they have changed."""
        before, self._state = self._state, state
        if self._toolset is None or before is None or before.tools != state.tools:
            self._toolset = await self._client.call("GET", CallPath.TOOLS, ToolsResponse)

    def _reset_once(self) -> tuple[EpisodeState, ToolsResponse]:
        if self._state is None or self._toolset is None:
            raise EpisodeOver("call reset() first")
        return self._state, self._toolset


async def read_history(client: HttpClient, start: int) -> list[Step]:
    """The recorded steps from number ``start`` on."""
    steps: list[Step] = []
    following: int | None = start
    while following is not None:
        page = await client.call("GET", f"{CallPath.STEPS}?from={following}", StepsResponse)
        steps += page.steps
        following = page.next
    return steps


def _request(action: Action, usage: Usage | None = None) -> StepRequest:
    """The request for ``action``; text and mappings travel as they are, for the session to read."""
    if problem := action_problem(action):
        action = ToolCall.mistake(problem)
    if isinstance(action, ToolCall):
        return StepRequest(tool=action.tool, arguments=action.arguments, usage=usage)
    return StepRequest(action=dict(action) if isinstance(action, Mapping) else action, usage=usage)


class RemotePreparation:
    """The client of one attempt's sidecar in the role "prepare". Every request may be repeated."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        epoch: str | None = None,
        patience: Patience = Patience(),  # noqa: B008 - immutable
    ) -> None:
        self._client = HttpClient(url, token, epoch=epoch, patience=patience)
        brief = min(patience.silence_seconds, _RELEASE_SECONDS)
        self._at_release = msgspec.structs.replace(patience, silence_seconds=brief)

    async def prepare(
        self,
        task: DebugTask,
        *,
        source: Path | None,
        tools: Sequence[str | ToolSpec],
        limits: EpisodeLimits,
        driver_idle_seconds: float | None = None,
        history: RecordedHistory | None = None,
        usage: Usage | None = None,
    ) -> tuple[str, ...]:
        """Send the repository, the history and the task; returns the names of the tools.

        ``source`` is a tar; None: the image holds the repository. ``limits.deadline_seconds`` is the rest of the
        deadline, ``driver_idle_seconds`` how long an external driver may make no call. The reset replays ``history``,
        for which the model has used ``usage``.

        Raises:
            ManifestError: The task, a tool or a limit is wrong, or the repository or the history too large.
            ConflictError: The attempt was prepared otherwise.
        """
        lines = b"" if history is None else b"\n".join(msgspec.json.encode(step) for step in history.steps)
        request = PrepareRequest(
            task=_without_files(task),
            tools=tuple(
                tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in tools
            ),
            workspace_sha256=await asyncio.to_thread(_digest, source) if source is not None else None,
            max_steps=limits.max_steps,
            max_rewrites=limits.max_rewrites,
            remaining_seconds=limits.deadline_seconds,
            driver_idle_seconds=driver_idle_seconds,
            history_sha256=None if history is None else content_digest(lines),
            poisoned_steps=() if history is None else history.poisoned,
            usage=usage,
        )
        try:
            return await self._prepare(request)
        except ConflictError:
            # A file is not there yet, or the attempt is prepared otherwise, which the upload finds out too.
            if source is None and history is None:
                raise
        if source is not None:
            await self._upload(CallPath.WORKSPACE, lambda: _chunks(source), request.workspace_sha256)
        if history is not None:
            await self._upload(CallPath.HISTORY, lambda: io.BytesIO(lines), request.history_sha256)
        return await self._prepare(request)

    async def is_prepared(self) -> bool:
        """Whether the attempt is prepared; of an earlier version's sidecar only once it was reset."""
        try:
            await self._client.call("GET", f"{CallPath.STEPS}?from=0", StepsResponse)
        except ConflictError:
            return False
        return True

    async def steps(self, start: int) -> list[Step]:
        """The recorded steps from number ``start`` on, for the trajectory of an episode with an external driver."""
        return await read_history(self._client, start)

    async def result(self) -> Result:
        """Wait for the verdict, whichever client ends the episode."""
        return (await self._client.call("GET", CallPath.RESULT, CloseResponse)).result

    async def spans(self) -> tuple[Span, ...]:
        """The spans that the sidecar made of the calls of a trace; none where it does not answer, or is older."""
        try:
            return (await self._client.call("GET", CallPath.SPANS, SpansResponse, patience=self._at_release)).spans
        except DgymError as error:
            _log.info("the sidecar's spans were not fetched: %s", error)
            return ()

    async def release(self, *, result_uri: str = "", reason: EndReason | None = None, message: str = "") -> None:
        """Release the pod: the result is stored at ``result_uri``. ``reason`` is the cause where there is no verdict.

        A sidecar that does not answer has been released already or is gone; a sidecar that refuses the token belongs to
        another pod, at the address of one that is gone. Neither is an error.
        """
        request = ReleaseRequest(result_uri=result_uri, reason=reason, message=message)
        try:
            await self._client.call("POST", CallPath.RELEASE, Accepted, body=request, patience=self._at_release)
        except Superseded:
            raise
        except (SandboxLost, EpisodeOver, AccessRefused) as error:
            _log.info("the pod was not released: %s", error)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def _prepare(self, request: PrepareRequest) -> tuple[str, ...]:
        return (await self._client.call("POST", CallPath.PREPARE, PrepareResponse, body=request)).tools

    async def _upload(
        self, path: CallPath, content: Callable[[], io.BytesIO | AsyncIterable[bytes]], digest: str | None
    ) -> UploadResponse:
        return await self._client.send("PUT", path, UploadResponse, content=content, digest=digest or "")


def _without_files(task: DebugTask) -> dict[str, Any]:
    """The task without its source, which is uploaded separately."""
    spec = msgspec.structs.replace(task.spec, source=None)
    travelling: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(task, spec=spec))
    return travelling


def _digest(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
