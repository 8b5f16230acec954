"""An episode whose session is in a pod: the client that drives its sidecar, and the preparation of the pod."""

import asyncio
import hashlib
import io
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.errors import AccessRefused, ConflictError, EpisodeOver
from dgym.session import EpisodeLimits, RecordedTrajectory
from dgym.wire import EndReason, Observation, Result, Step, ToolCall, calls
from dgym.wire.client import AlreadyFinished, PodClient, RetryLimits, Route, Upload
from dgym.wire.episode import Action
from dgym.wire.http import (
    Epochs,
    FinishRequest,
    PrepareRequest,
    ResetRequest,
    StepRequest,
    StepState,
    ToolsResponse,
    ToolWithOptions,
    Usage,
)
from dgym.wire.signing import content_digest

_CHUNK_BYTES = 256 * 1024


class RemoteEpisode:
    """Client of the sidecar of one attempt. See ``AsyncRepoEnv.connect`` for the arguments."""

    def __init__(
        self,
        url: str | Route,
        token: str,
        *,
        epochs: Epochs | None = None,
        prepare_token: str | None = None,
        reset_key: str | None = None,
        retry_limits: RetryLimits = RetryLimits(),  # noqa: B008 - immutable
    ) -> None:
        drive, prepare = (epochs.drive, epochs.prepare) if epochs is not None else (None, None)
        self._client = PodClient(url, token, epoch=drive, retry_limits=retry_limits)
        self._preparing = (
            PodClient(url, prepare_token, epoch=prepare, retry_limits=retry_limits)
            if prepare_token is not None
            else None
        )
        self._reset_key = reset_key or uuid.uuid4().hex
        self._steps: list[Step] = []
        self._state: StepState | None = None
        self._toolset: ToolsResponse | None = None
        self._result: Result | None = None
        self._usage: Usage | None = None

    @property
    def result(self) -> Result | None:
        """The result of the episode; None until it has ended."""
        return self._result

    @property
    def state(self) -> StepState:
        """The state of the episode after the last call."""
        return self._reset_once()[0]

    @property
    def toolset(self) -> ToolsResponse:
        """The task's instructions and the tools that are available now."""
        return self._reset_once()[1]

    async def reset(self, *, evaluate: bool = False) -> Observation:
        """Start or resume the episode. Return the last observation."""
        first = await self._client.call(calls.RESET, ResetRequest(evaluate=evaluate), key=self._reset_key)
        self._steps = [first.step]
        if first.state.steps:
            self._steps += await read_steps(self._client, 1)
        await self._update(first.state)
        self._usage = first.state.usage
        last = self._steps[-1].observation
        if last.end_reason is not None:
            await self.finish(EndReason.UNRESOLVED)
        return last

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, once."""
        self._reset_once()
        response = await self._client.call(calls.STEP, _request(action, self._usage), seq=seq)
        if seq == len(self._steps):
            self._steps.append(response.step)
        await self._update(response.state)
        if response.step.observation.end_reason is not None:
            await self.finish(EndReason.UNRESOLVED)
        return response.step.observation

    async def peek(self, action: Action) -> Observation:
        """Call a tool that changes nothing, without a step."""
        return (await self._client.call(calls.PEEK, _request(action))).observation

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode and wait for its result.

        The pod may terminate before its response arrives. Then the result is read from the Episode.
        """
        if self._result is None:
            self._reset_once()
            body = FinishRequest(reason=reason, usage=self._usage)
            try:
                self._result = (await self._client.call(calls.FINISH, body)).result
            except AlreadyFinished as finished:
                if finished.result is None:
                    raise
                self._result = finished.result
        return self._result

    async def patch(self) -> str:
        """The agent's changes as a patch."""
        if self._result is not None:
            return self._result.patch
        self._reset_once()
        return (await self._client.call(calls.PATCH)).patch

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution. Only the role "prepare" may do this."""
        if self._preparing is None:
            raise AccessRefused("applying the solution needs the token of the role 'prepare'")
        return (await self._preparing.call(calls.APPLY_SOLUTION)).observation

    def trajectory(self, *, start: int = 0) -> list[Step]:
        """The steps from number ``start`` on, including those of earlier drivers."""
        return self._steps[start:]

    def record_usage(self, usage: Usage) -> None:
        """Record the model's tokens so far. They are sent with the next step."""
        self._usage = usage

    async def close(self) -> None:
        """Close the connections. The episode continues."""
        await self._client.close()
        if self._preparing is not None:
            await self._preparing.close()

    async def _update(self, state: StepState) -> None:
        """Record ``state``, and fetch the tools if they have changed."""
        before, self._state = self._state, state
        if self._toolset is None or before is None or before.tools != state.tools:
            self._toolset = await self._client.call(calls.TOOLS)

    def _reset_once(self) -> tuple[StepState, ToolsResponse]:
        if self._state is None or self._toolset is None:
            raise EpisodeOver("call reset() first")
        return self._state, self._toolset


async def read_steps(client: PodClient, start: int) -> list[Step]:
    """The recorded steps from number ``start`` on."""
    steps: list[Step] = []
    following: int | None = start
    while following is not None:
        page = await client.call(calls.STEPS, start=following)
        steps += page.steps
        following = page.next
    return steps


def _request(action: Action, usage: Usage | None = None) -> StepRequest:
    """The request for ``action``. Text and mappings are sent unchanged, because the session parses them."""
    if isinstance(action, ToolCall):
        return StepRequest(tool=action.tool, arguments=action.arguments, usage=usage)
    return StepRequest(action=dict(action) if isinstance(action, Mapping) else action, usage=usage)


async def prepare(
    client: PodClient,
    task: DebugTask,
    *,
    source: Path | None,
    tools: Sequence[str | ToolSpec],
    limits: EpisodeLimits,
    driver_idle_seconds: float | None = None,
    trajectory: RecordedTrajectory | None = None,
    usage: Usage | None = None,
) -> tuple[str, ...]:
    """Send the repository, the trajectory and the task to a sidecar. Return the names of the tools.

    Args:
        client: A client with the role "prepare".
        task: The task.
        source: A tar of the repository. None: the image has the repository.
        tools: The tools of the episode.
        limits: The limits. ``deadline_seconds`` is the remaining time.
        driver_idle_seconds: How long an external driver may be idle.
        trajectory: The steps that the reset replays.
        usage: The tokens that the model has used for ``trajectory``.

    Raises:
        ManifestError: The task, a tool or a limit is invalid, or the repository or the trajectory is too large.
        ConflictError: The attempt was prepared with other data.
    """
    lines = b"" if trajectory is None else b"\n".join(msgspec.json.encode(step) for step in trajectory.steps)
    request = PrepareRequest(
        task=_without_files(task),
        tools=tuple(
            tool if isinstance(tool, str) else ToolWithOptions(name=tool.name, options=tool.options) for tool in tools
        ),
        workspace_sha256=await asyncio.to_thread(_digest, source) if source is not None else None,
        max_steps=limits.max_steps,
        max_rewrites=limits.max_rewrites,
        remaining_seconds=limits.deadline_seconds,
        driver_idle_seconds=driver_idle_seconds,
        trajectory_sha256=None if trajectory is None else content_digest(lines),
        poisoned_steps=() if trajectory is None else trajectory.poisoned,
        usage=usage,
    )
    try:
        return (await client.call(calls.PREPARE, request)).tools
    except ConflictError:
        # A file is missing in the pod, or the attempt was prepared with other data. In the second case the upload
        # fails, too.
        if source is None and trajectory is None:
            raise
    if source is not None:
        await client.call(calls.WORKSPACE, Upload(lambda: _chunks(source), request.workspace_sha256 or ""))
    if trajectory is not None:
        await client.call(calls.TRAJECTORY, Upload(lambda: io.BytesIO(lines), request.trajectory_sha256 or ""))
    return (await client.call(calls.PREPARE, request)).tools


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
