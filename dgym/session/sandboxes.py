"""The two sandboxes of an episode: opened and prepared alike, the agent's replaced after its death, terminated."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import EpisodeOver, SandboxLost
from dgym.sandbox import Sandbox, SandboxProvider
from dgym.session.execution import execute
from dgym.session.preparation import Baseline, prepare, tool_settings
from dgym.session.scoring import ChangeSet, collect
from dgym.tools import Tool, ToolContext
from dgym.wire import Breakpoint, Observation, Step, ToolCall

REPLAY_TIMEOUT_SECONDS = 600.0
LAST_DEATH = 2
"""A second sandbox that dies under the agent's steps ends the episode."""


class SandboxTermination(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is terminated before its episode is scored: a process that survives could interfere with the tests.

    ``confirmed`` observes the end of the sandbox where stopping it is only an order: True for one that has terminated,
    False for one that was seen running ``timeout_seconds`` after the order.
    """

    confirmed: Callable[[], Awaitable[bool]] | None = None
    timeout_seconds: float = 30.0

    async def terminate(self, sandbox: Sandbox) -> bool:
        """Terminate the sandbox; False where it still runs ``timeout_seconds`` later.

        Raises:
            SandboxLost: ``confirmed`` could not observe the sandbox.
        """
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await sandbox.stop()
        except TimeoutError:
            if self.confirmed is None:
                return False
        return self.confirmed is None or await self.confirmed()

    @property
    def failed(self) -> str:
        """The message of a result whose sandbox did not terminate."""
        return f"the sandbox still ran {self.timeout_seconds:g} s after it was told to end; nothing was scored"


class Sandboxes:
    """The agent's sandbox with the tools' context on it, and the verifier, which no agent touches.

    Args:
        task: The bug.
        provider: Opens both.
        tools: Replay the agent's calls in a new sandbox.
        source: A tar of the repository; None when the sandbox's image holds it.
    """

    def __init__(
        self, task: DebugTask, provider: SandboxProvider, tools: Mapping[str, Tool], source: Path | None
    ) -> None:
        self.context: ToolContext | None = None
        self.poisoned: set[int] = set()
        """Numbers of the steps under which a sandbox died."""
        self._task = task
        self._provider = provider
        self._tools = tools
        self._source = source
        self._sandbox: Sandbox | None = None
        self._baseline: Baseline | None = None
        self._verifier: Sandbox | None = None
        self._preparing_verifier = asyncio.Lock()
        self._replacing = asyncio.Lock()

    async def open(self) -> ToolContext:
        """Open the agent's sandbox; with setup commands the verifier beside it.

        Raises:
            SandboxStartFailed, SetupFailed: The episode cannot start.
        """
        try:
            async with asyncio.TaskGroup() as group:
                opening = group.create_task(self._open_sandbox())
                if self._task.spec.setup_commands:
                    group.create_task(self.verifier())
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        return opening.result()

    async def verifier(self) -> Sandbox:
        """The verifier, prepared at the first call."""
        # A call for the changes may run while the deadline ends the episode: one verifier, and none half prepared.
        async with self._preparing_verifier:
            if self._verifier is None:
                self._verifier = await self.another_verifier()
            return self._verifier

    async def another_verifier(self) -> Sandbox:
        """A verifier of its own, which the caller stops."""
        verifier = await self._provider.verifier()
        try:
            await prepare(verifier, self._task, self._source)
        except BaseException:
            await verifier.stop()
            raise
        return verifier

    def current(self) -> tuple[Sandbox, Baseline]:
        """The agent's sandbox and its state before the first action.

        Raises:
            EpisodeOver: There is none.
        """
        if self._sandbox is None or self._baseline is None:
            raise EpisodeOver("the session was not reset, or is closed")
        return self._sandbox, self._baseline

    async def changes(self) -> ChangeSet:
        """The agent's changes so far."""
        sandbox, baseline = self.current()
        return await collect(sandbox, await self.verifier(), baseline)

    async def final_changes(self, steps: Sequence[Step], running: int | None = None, *, replays: int = 1) -> ChangeSet:
        """The agent's changes; where its sandbox has died since the last step, those of a replay in a new one.

        Args:
            steps: The steps to replay.
            running: The number of the step that is being executed; a death poisons it.
            replays: How many deaths are answered by a replay.
        """
        verifier = await self.verifier()
        async with self._replacing:
            sandbox, baseline = self.current()
        try:
            return await collect(sandbox, verifier, baseline)
        except SandboxLost as death:
            await verifier.stat(["."])  # the death of the verifier is no reason to replay
            if not replays:
                return ChangeSet(changes={}, unscorable=f"two sandboxes died before their changes were read ({death})")
            if running is not None:
                self.poisoned.add(running)
            await self.replace(sandbox, death, steps)
        return await self.final_changes(steps, running, replays=replays - 1)

    async def replace(
        self, dead: Sandbox, death: SandboxLost, steps: Sequence[Step], breakpoints: tuple[Breakpoint, ...] = ()
    ) -> int | None:
        """Replay ``steps`` in a new sandbox, unless ``dead`` has been replaced already.

        Returns the first step that kills the new sandbox, too; the replay ends before it.

        Raises:
            SandboxLost: No sandbox survived.
        """
        async with self._replacing:
            if self._sandbox is not dead:
                return None
            return await self._replace(death, steps, breakpoints)

    async def _replace(
        self, death: SandboxLost, steps: Sequence[Step], breakpoints: tuple[Breakpoint, ...]
    ) -> int | None:
        steps = [step for step in steps if step.seq not in self.poisoned]
        first_killer = None
        for _ in range(LAST_DEATH):
            if self._sandbox is not None:
                await self._sandbox.stop()
            killer = await _replay(self._tools, await self._open_sandbox(), steps, breakpoints)
            if killer is None:
                return first_killer
            # The calls before that one did not kill it: their changes are scored.
            self.poisoned.add(killer)
            first_killer = first_killer or killer
            steps = [step for step in steps if step.seq < killer]
        raise SandboxLost(f"three sandboxes died in a row ({death})")

    async def terminate(self, termination: SandboxTermination) -> bool:
        """Terminate the agent's sandbox; False where it still runs."""
        sandbox, _ = self.current()
        terminated = await termination.terminate(sandbox)
        self._sandbox = None
        return terminated

    async def stop(self) -> None:
        """Stop both sandboxes. Idempotent."""
        sandboxes = [sandbox for sandbox in (self._sandbox, self._verifier) if sandbox is not None]
        self._sandbox = self._verifier = None
        for sandbox in sandboxes:
            await sandbox.stop()

    async def _open_sandbox(self) -> ToolContext:
        self._sandbox = await self._provider.sandbox()
        self._baseline = await prepare(self._sandbox, self._task, self._source)
        self.context = ToolContext(self._sandbox, self._baseline.policy, tool_settings(self._task))
        return self.context


async def _replay(
    tools: Mapping[str, Tool], context: ToolContext, steps: Sequence[Step], breakpoints: tuple[Breakpoint, ...]
) -> int | None:
    """Execute the calls of ``steps`` again and set ``breakpoints``.

    Returns the number of the step under which this sandbox died, too; None when all were executed.

    Raises:
        SandboxLost: It took longer than ``REPLAY_TIMEOUT_SECONDS``.
    """
    try:
        async with asyncio.timeout(REPLAY_TIMEOUT_SECONDS):
            for step in steps:
                try:
                    await _execute_again(tools, context, step)
                except SandboxLost:
                    return step.seq
            await context.table.replace(breakpoints)
    except TimeoutError:
        raise SandboxLost(f"replaying the episode took longer than {REPLAY_TIMEOUT_SECONDS:.0f} s") from None
    return None


async def _execute_again(tools: Mapping[str, Tool], context: ToolContext, step: Step) -> None:
    tool = tools.get(step.call.tool) if step.call is not None else None
    if step.call is not None and tool is not None and tool.mutates:
        await execute(tools, context, step.call)


def death_observation(call: ToolCall, death: SandboxLost, killer: int | None) -> Observation:
    """The observation of ``call``, under which a sandbox died, and ``killer``, under which the next one did."""
    if killer is None:
        text = (
            f"sandbox killed ({death}). A new one was started and your earlier changes were made again in it; "
            "this call was not repeated."
        )
    else:
        text = f"sandbox killed ({death}). A new one was killed by step {killer}, which was made again in it."
    return Observation(text=text, tool=call.tool, ok=False)
