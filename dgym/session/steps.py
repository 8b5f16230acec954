"""Execution of the agent's calls in its sandbox, and in a new one where that has died."""

from collections.abc import Callable, Mapping, Sequence

from dgym.errors import RunnerFailed, SandboxLost
from dgym.session.execution import Execution, execute
from dgym.session.replay import LAST_DEATH, death_observation
from dgym.session.sandboxes import Sandboxes
from dgym.tools import Tool
from dgym.wire import Observation, Step, ToolCall

_MOST_LOSSES = 2
"""So many sandboxes may be lost that no step has killed, as by ``backoffLimit`` in a cluster."""


class StepExecution:
    """Executes one call after the other.

    A sandbox that dies under a call poisons its step. A call that was sent to a dead sandbox, and of which no part has
    begun, is executed in the new one.

    Args:
        sandboxes: Where the calls are executed.
        is_over: Whether the episode has ended meanwhile: a sandbox that is stopped then has not died.
    """

    def __init__(self, sandboxes: Sandboxes, is_over: Callable[[], bool]) -> None:
        self._sandboxes = sandboxes
        self._is_over = is_over
        self._acknowledged = 0
        self._losses = 0

    @property
    def begun(self) -> bool:
        """Whether the sandbox has begun the last call or a part of it."""
        context = self._sandboxes.context
        return context is not None and context.sandbox.acknowledged > self._acknowledged

    async def execute(
        self, tools: Mapping[str, Tool], call: ToolCall, problem: str, history: Sequence[Step]
    ) -> Execution:
        """Execute ``call`` as the step after ``history``; see ``dgym.session.execution.execute``.

        Raises:
            SandboxLost: There is no new sandbox, or too many were lost that no step has killed.
        """
        context = self._sandboxes.context
        assert context is not None
        self._acknowledged = context.sandbox.acknowledged
        try:
            execution = await execute(tools, context, call, problem)
            tool = tools.get(call.tool)
            writes = tool is not None and tool.mutates and not execution.submitted
            return await self._sandboxes.digested(execution) if writes else execution
        except SandboxLost as death:
            if self._is_over():
                text = "The episode was ended while this ran."
                return Execution(observation=Observation(text=text, tool=call.tool, ok=False))
            begun = isinstance(death, RunnerFailed) or context.sandbox.acknowledged > self._acknowledged
            if begun:
                self._sandboxes.poison(len(history))
            else:
                self._losses += 1
                if self._losses > _MOST_LOSSES:
                    raise
            killer = await self._sandboxes.replace(context.sandbox, history, context.breakpoints)
            killed = len(self._sandboxes.poisoned) >= LAST_DEATH
            if begun or killed:
                return Execution(observation=death_observation(call, death, killer), killed_sandbox=killed)
        return await self.execute(tools, call, problem, history)
