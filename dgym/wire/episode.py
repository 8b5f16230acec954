"""``EpisodeHandle``: the interface to an episode whose session is in this process or behind a pod's sidecar."""

from collections.abc import Mapping
from typing import Any, Protocol

from dgym.wire.http import StepState, ToolsResponse, Usage
from dgym.wire.messages import Observation, Step, ToolCall
from dgym.wire.outcome import EndReason, Result

Action = ToolCall | Mapping[str, Any] | str
"""A call, an equivalent mapping ``{"tool": …, "arguments": {…}}``, or a line of text."""


class EpisodeHandle(Protocol):
    """An episode from its reset to its result.

    Before the reset, only ``reset``, ``result``, ``trajectory`` and ``close`` may be used. The others raise
    ``EpisodeOver``.
    """

    @property
    def result(self) -> Result | None:
        """The result. None until the episode has ended."""
        ...

    @property
    def state(self) -> StepState:
        """Counters, breakpoints, focus file and names of the tools after the last step."""
        ...

    @property
    def toolset(self) -> ToolsResponse:
        """The task's instructions, and the tools that can be called now."""
        ...

    async def reset(self, *, evaluate: bool = False) -> Observation:
        """Start the episode, or resume an episode that was started with the same key. Return the last observation.

        With ``evaluate`` the first observation ends with the output of the tests.
        """
        ...

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, exactly once. Steps count from 1.

        A repetition with the same number and action returns the recorded observation. An action that cannot be executed
        is a step too. Its observation explains the problem.

        Raises:
            EpisodeOver: The episode has ended, as an earlier observation reported.
            ConflictError: The number was used for another action, or a number was skipped.
            InfrastructureError: A fault that the agent did not cause.
        """
        ...

    async def peek(self, action: Action) -> Observation:
        """Return the answer of ``view``, ``listdir`` or another tool that does not change anything, without a step."""
        ...

    def trajectory(self, *, start: int = 0) -> list[Step]:
        """Return the recorded steps from number ``start``. Number 0 is the reset."""
        ...

    async def patch(self) -> str:
        """Return the agent's changes so far in the format of ``git apply``.

        Bytes that are not UTF-8 are surrogate escapes.
        """
        ...

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode, score it and return the result. If it has ended before, return that result.

        ``reason`` is the reason of the driver.
        """
        ...

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution. This is for agents that check tasks."""
        ...

    def record_usage(self, usage: Usage) -> None:
        """Record the tokens that the agent's model has used so far."""
        ...

    async def close(self) -> None:
        """Release the resources of the episode in this process, without scoring. Idempotent."""
        ...
