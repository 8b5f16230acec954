"""A session in a pod, as a player drives it and as an external driver finds it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec

from dgym.agents import Tools
from dgym.api import DebugTask
from dgym.env import AsyncRepoEnv, HttpClient, RemotePreparation
from dgym.episodes.player import EpisodeRun
from dgym.episodes.pod.past import Past
from dgym.episodes.pod.progress import Progress, Shared
from dgym.errors import (
    AccessRefused,
    ConflictError,
    EpisodeOver,
    ModelError,
    SandboxLost,
    SandboxStartFailed,
    Superseded,
)
from dgym.session import EpisodeLimits
from dgym.tracing import Span
from dgym.wire import EndReason, Result, Step
from dgym.wire.assignments import Assignment, AssignmentState
from dgym.wire.http import DRIVER_REASONS, Path, ToolsResponse

_log = logging.getLogger("dgym.episodes.episode")

LOST = (SandboxLost, SandboxStartFailed, AccessRefused)
"""The pod is gone, or is another's. Nothing is stored: another attempt follows."""

_MARGIN_SECONDS = 6 * 3600.0
_MESSAGE_CHARACTERS = 4096


class PodSession:
    """The session of one assignment; ``release`` lets the pod end.

    Implements ``EpisodeSession`` for an agent of ours; an external driver's episode is prepared and then waited for.
    """

    retryable: tuple[type[Exception], ...] = (Superseded, ModelError, *LOST)

    def __init__(self, assignment: Assignment, shared: Shared, progress: Progress) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self.past: Past | None = None
        """What the reset of a pod that is not prepared yet replays first."""
        waiting = msgspec.structs.replace(
            shared.patience, running_seconds=assignment.remaining_seconds + _MARGIN_SECONDS
        )
        self._preparation = RemotePreparation(
            assignment.sidecar_url, assignment.prepare_token, epoch=assignment.epochs.prepare, patience=waiting
        )

    @contextlib.asynccontextmanager
    async def open(self, run: EpisodeRun) -> AsyncIterator[AsyncRepoEnv]:
        """Prepare the pod, unless an earlier agent has, and connect to it."""
        if await self._is_prepared():
            self._progress.resumed()
        else:
            limits = EpisodeLimits(
                max_steps=run.spec.max_steps,
                max_rewrites=run.spec.max_rewrites,
                deadline_seconds=self._assignment.remaining_seconds,
            )
            await self.prepare(run.task, run.tools, limits)
        self._progress.enter(AssignmentState.RUNNING)
        assignment = self._assignment
        with self._progress.timed("play"):
            async with AsyncRepoEnv.connect(
                assignment.sidecar_url,
                assignment.drive_token,
                epochs=assignment.epochs,
                prepare_token=assignment.prepare_token,
                reset_key=f"{assignment.episode_uid}-{assignment.attempt}",
                patience=self._shared.patience,
            ) as env:
                yield env

    async def finish(self, env: AsyncRepoEnv, reason: EndReason | None) -> Result:
        """End and score the episode; the sidecar itself ends one whose deadline has passed, since it has the clock."""
        self._progress.enter(AssignmentState.CLOSING)
        with self._progress.timed("close"):
            if reason is EndReason.DEADLINE_EXCEEDED:
                await self.result()
            return await env.finish(*((reason,) if reason in DRIVER_REASONS else ()))

    async def result_after(self, over: EpisodeOver) -> Result:
        """The verdict in the pod; a sidecar that was restarted has none."""
        if isinstance(over, Superseded):
            raise over
        try:
            async with asyncio.timeout(self._shared.patience.silence_seconds):
                return await self.result()
        except TimeoutError:
            raise SandboxLost(str(over)) from None

    async def prepare(
        self, task: DebugTask, tools: Tools, limits: EpisodeLimits, *, driver_idle_seconds: float | None = None
    ) -> None:
        """Deliver the repository and the task.

        Raises:
            SourceFailed: The repository could not be obtained.
            ManifestError: The task, a tool or a limit is wrong.
            ConflictError: The attempt was prepared otherwise.
        """
        source = task.spec.source
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._progress.timed("prepare"))
            path = None
            if source is not None:
                packed = self._shared.sources.packed(source, self._assignment.namespace)
                path = await stack.enter_async_context(packed)
            await self._preparation.prepare(
                task,
                source=path,
                tools=tools,
                limits=limits,
                driver_idle_seconds=driver_idle_seconds,
                history=self.past.history if self.past is not None else None,
                usage=self.past.usage if self.past is not None else None,
            )

    async def prepare_for_driver(self, task: DebugTask, tools: Tools, limits: EpisodeLimits) -> None:
        """Deliver the repository and the task for an external driver, unless an earlier agent has.

        Raises:
            SourceFailed: The repository could not be obtained.
            ManifestError: The task, a tool or a limit is wrong.
        """
        if await self._preparation.is_prepared():
            _log.info("an earlier agent has prepared the pod")
            return
        try:
            await self.prepare(task, tools, limits, driver_idle_seconds=self._assignment.driver_idle_seconds)
        except ConflictError as error:
            _log.info("prepared before: %s", error)

    async def result(self) -> Result:
        """Wait for the verdict, whichever driver ends the episode."""
        return await self._preparation.result()

    async def steps(self, start: int) -> list[Step]:
        """The recorded steps from number ``start`` on."""
        return await self._preparation.steps(start)

    async def spans(self) -> tuple[Span, ...]:
        """The spans that the sidecar made of this trace."""
        return await self._preparation.spans()

    async def release(self, *, result_uri: str, reason: EndReason | None, message: str) -> None:
        """Tell the sidecar that the result is stored and the pod may end."""
        await self._preparation.release(result_uri=result_uri, reason=reason, message=message[:_MESSAGE_CHARACTERS])

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._preparation.close()

    async def _is_prepared(self) -> bool:
        """Whether an earlier agent has prepared the pod; its sources may have moved since."""
        assignment = self._assignment
        client = HttpClient(
            assignment.sidecar_url,
            assignment.drive_token,
            epoch=assignment.epochs.drive,
            patience=self._shared.patience,
        )
        try:
            await client.call("GET", Path.TOOLS, ToolsResponse)
        except ConflictError:
            return False
        finally:
            await client.close()
        return True
