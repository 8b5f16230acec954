"""Replacement and termination of a sandbox: recorded calls are replayed in a new one after the first has died."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from dgym.errors import SandboxLost
from dgym.sandbox import Sandbox
from dgym.session.execution import execute
from dgym.tools import Tool, ToolContext
from dgym.wire import Breakpoint, Observation, Step, ToolCall

REPLAY_TIMEOUT_SECONDS = 600.0


class Killing(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is terminated before its episode is scored: a process that survives could interfere with the tests.

    ``confirmed`` observes the end of the sandbox where stopping it is only an order: True for one that has terminated,
    False for one that was seen running ``timeout_seconds`` after the order.
    """

    confirmed: Callable[[], Awaitable[bool]] | None = None
    timeout_seconds: float = 30.0

    async def kill(self, sandbox: Sandbox) -> bool:
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
        """What the result says where the sandbox lived on."""
        return f"the sandbox still ran {self.timeout_seconds:g} s after it was told to end; nothing was scored"


async def replay(
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


async def _execute_again(tools: Mapping[str, Tool], context: ToolContext, step: Step) -> None:
    tool = tools.get(step.call.tool) if step.call is not None else None
    if step.call is not None and tool is not None and tool.mutates:
        await execute(tools, context, step.call)
