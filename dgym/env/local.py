"""Drive a session of this process."""

import contextlib
from collections.abc import Sequence

from dgym.api import DebugTask, ToolSpec
from dgym.env.driver import Action, EpisodeView
from dgym.env.opening import Opening, open_source, suite_cache
from dgym.env.views import instructions, schema
from dgym.errors import EpisodeOver
from dgym.session import EpisodeLimits, Session
from dgym.tools.base import Tool
from dgym.tools.registry import load_tools
from dgym.wire import EndReason, Observation, Result, Step
from dgym.wire.http import Usage


class LocalDriver:
    """A fresh session for every reset."""

    def __init__(
        self,
        task: DebugTask,
        *,
        tools: Sequence[str | ToolSpec | Tool],
        limits: EpisodeLimits,
        opening: Opening,
    ) -> None:
        self.task = task
        self._tools = tuple(tools)
        self._limits = limits
        self._opening = opening
        self._session: Session | None = None
        self._resources = contextlib.AsyncExitStack()

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self._session.result if self._session is not None else None

    async def reset(self, *, evaluate: bool, task: DebugTask | None) -> Observation:
        """Start a fresh episode; the one before is discarded."""
        if task is not None:
            self.task = task
        await self.close()
        session = await self._open()
        try:
            observation = await session.reset(evaluate=evaluate)
        except BaseException:
            await self.close()
            raise
        self._session = session
        return observation

    async def step(self, action: Action) -> Observation:
        """Execute the next step."""
        session = self._running()
        return await session.step(session.next_seq, action)

    async def peek(self, action: Action) -> Observation:
        """Look without a step."""
        return await self._running().peek(action)

    async def finish(self, reason: EndReason) -> Result:
        """End the episode and score it."""
        return await self._running().finish(reason)

    async def patch(self) -> str:
        """What the agent has changed."""
        if self.result is not None:
            return self.result.patch
        return (await self._running().changes()).patch.decode("utf-8", "surrogateescape")

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution."""
        return await self._running().apply_solution()

    def history(self) -> list[Step]:
        """The steps so far."""
        return self._running().history()

    def view(self) -> EpisodeView:
        """Where the episode stands."""
        session = self._running()
        return EpisodeView(
            steps=session.steps,
            rewrites=session.rewrites,
            evaluation=session.evaluation,
            breakpoints=session.breakpoints,
            focus_file=session.focus_file,
            notices=tuple(session.notices),
            instructions=instructions(session.task.spec.instructions, session.tools),
            tools=tuple(schema(tool) for tool in session.tools.values()),
        )

    @property
    def usage(self) -> Usage:
        """None: nobody drove this session before."""
        return Usage()

    def note_usage(self, *, input_tokens: int, output_tokens: int) -> None:
        """Whoever drives a session of its own process keeps account by itself."""

    async def close(self) -> None:
        """End the session, if there is one."""
        self._session = None
        resources, self._resources = self._resources, contextlib.AsyncExitStack()
        await resources.aclose()

    def _running(self) -> Session:
        if self._session is None:
            raise EpisodeOver("call reset() first")
        return self._session

    async def _open(self) -> Session:
        opened = await self._opening.open(self.task)
        source = await open_source(self.task)
        session = Session(
            self.task,
            provider=opened.provider,
            tools=load_tools(self._tools),
            source=source,
            limits=self._limits,
            suite_cache=suite_cache(self.task, source, opened.programs),
        )
        self._resources.push_async_callback(session.close)
        return session
