"""Replay recorded calls in a new sandbox, after the one they ran in has died."""

import asyncio
from collections.abc import Mapping, Sequence

from dgym.errors import SandboxLost
from dgym.session.execution import execute
from dgym.tools.base import Tool
from dgym.tools.context import ToolContext
from dgym.wire import Breakpoint, Observation, Step, ToolCall

REPLAY_TIMEOUT_SECONDS = 600.0


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
