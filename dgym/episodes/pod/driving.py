"""An agent of ours drives the episode."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from dgym.agents.chat import Exchange
from dgym.env import AsyncRepoEnv
from dgym.env.http_client import HttpClient
from dgym.env.preparation import RemotePreparation
from dgym.episodes.player import Hooks, Play, Script
from dgym.episodes.pod.preparing import prepare
from dgym.episodes.pod.progress import Progress, Shared
from dgym.episodes.pod.script import header_of, read_script
from dgym.errors import ConflictError
from dgym.results import Record, StoreUnavailable
from dgym.session import EpisodeLimits
from dgym.wire import EndReason, Result, Step
from dgym.wire.assignments import Assignment, AssignmentState
from dgym.wire.http import DRIVER_REASONS, Path, ToolsResponse

_log = logging.getLogger("dgym.episodes.episode")

_LAST_WORDS_SECONDS = 2.0


class Driving:
    """One assignment in the mode "run"."""

    def __init__(
        self,
        assignment: Assignment,
        shared: Shared,
        progress: Progress,
        record: Record,
        preparation: RemotePreparation,
    ) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self._record = record
        self._preparation = preparation
        self._play: Play | None = None

    async def run(self, started: str) -> Result:
        """The verdict."""
        script = read_script(self._assignment)
        spec, task = script.spec, script.task
        begun = await self._record.load(header_of(self._assignment, task, script.tools, started, agent=spec))
        self._play = Play(script, self._record, log=_log, hooks=self._hooks(), begun=begun)
        async with self._saving():
            self._play.open_chat(self._shared.models)
            if await self._is_prepared():
                self._progress.taken_up()
            else:
                await self._prepare(script)
            self._progress.become(AssignmentState.RUNNING)
            with self._progress.timed("play"):
                return await self._drive(self._play)

    def failed(self, reason: EndReason, message: str) -> Result:
        """A failure in the form of a result."""
        if self._play is None:
            return Result(resolved=False, reason=reason, message=message)
        return self._play.with_usage(self._play.failed(reason, message))

    @property
    def price(self) -> str | None:
        """What the model's tokens cost, where that is known."""
        return self._play.price if self._play is not None else None

    def close(self) -> None:
        """Nothing more is asked of the model."""
        if self._play is not None:
            self._play.close()

    async def _drive(self, play: Play) -> Result:
        assignment = self._assignment
        env = AsyncRepoEnv.connect(
            assignment.sidecar_url,
            assignment.drive_token,
            epoch=assignment.epoch,
            prepare_token=assignment.prepare_token,
            reset_key=f"{assignment.episode_uid}-{assignment.attempt}",
            patience=self._shared.patience,
        )

        async def finish(reason: EndReason | None) -> Result:
            self._progress.become(AssignmentState.CLOSING)
            with self._progress.timed("close"):
                if reason is EndReason.DEADLINE_EXCEEDED:
                    # The sidecar has the episode's clock, and ends it by itself.
                    return await self._preparation.result()
                known = reason if reason in DRIVER_REASONS else None
                return await env.finish(*(() if known is None else (known,)))

        async with env:
            return await play.drive(env, finish)

    async def _is_prepared(self) -> bool:
        """Whether an agent before this one has prepared the pod; its sources may have moved since."""
        assignment = self._assignment
        client = HttpClient(
            assignment.sidecar_url, assignment.drive_token, epoch=assignment.epoch, patience=self._shared.patience
        )
        try:
            await client.call("GET", Path.TOOLS, ToolsResponse)
        except ConflictError:
            return False
        finally:
            await client.close()
        return True

    async def _prepare(self, script: Script) -> None:
        spec = script.spec
        limits = EpisodeLimits(
            max_steps=spec.max_steps,
            max_rewrites=spec.max_rewrites,
            deadline_seconds=self._assignment.remaining_seconds,
        )
        await prepare(
            self._preparation,
            script.task,
            tools=script.tools,
            limits=limits,
            shared=self._shared,
            progress=self._progress,
        )

    @contextlib.asynccontextmanager
    async def _saving(self) -> AsyncIterator[None]:
        """Save what is recorded, also when the episode goes to another worker."""
        saving = asyncio.create_task(self._record.keep_saving(), name="dgym-saving")
        try:
            yield
        finally:
            saving.cancel()
            await asyncio.wait([saving])
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self._record.save()

    def _hooks(self) -> Hooks:
        def on_step(step: Step) -> None:
            self._progress.stepped(step)

        def on_exchange(exchange: Exchange, _recorded: list[Step]) -> None:
            self._progress.spoke(exchange)

        return Hooks(on_step=on_step, on_exchange=on_exchange)
