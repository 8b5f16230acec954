"""``Episode``: how an episode is driven, whether its session is in this process or behind a pod's sidecar."""

from collections.abc import Mapping
from typing import Any, Protocol

from dgym.wire.http import EpisodeState, ToolsResponse, Usage
from dgym.wire.messages import EndReason, Observation, Result, Step, ToolCall

Action = ToolCall | Mapping[str, Any] | str
"""A call, the same as a mapping ``{"tool": …, "arguments": {…}}``, or a line of text."""


class Episode(Protocol):
    """One episode from its reset to its verdict.

    Only ``reset``, ``result``, ``history`` and ``close`` may be used before the reset; the others raise
    ``EpisodeOver``.
    """

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        ...

    @property
    def state(self) -> EpisodeState:
        """Counts, breakpoints, focus file and names of the tools after the last step."""
        ...

    @property
    def toolset(self) -> ToolsResponse:
        """The task's instructions, and the tools that can be called now."""
        ...

    async def reset(self, *, evaluate: bool = False) -> Observation:
        """Start the episode, or resume one that was started under the same key; returns the last observation.

        With ``evaluate`` the first observation ends with the output of the tests.
        """
        ...

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, once; steps count from 1.

        The same number with the same action answers with the recorded observation. An action that cannot be executed
        is a step too, and its observation says why.

        Raises:
            EpisodeOver: The episode has ended, and an earlier observation said so.
            ConflictError: The number was used for another action, or a number was left out.
            InfrastructureError: A fault that is not the agent's doing.
        """
        ...

    async def peek(self, action: Action) -> Observation:
        """The answer of ``view``, ``listdir`` or another tool that changes nothing, without a step."""
        ...

    def history(self, *, start: int = 0) -> list[Step]:
        """The recorded steps from number ``start`` on; number 0 is the reset."""
        ...

    async def changes(self) -> str:
        """The agent's changes so far as ``git apply`` takes them; bytes that are not UTF-8 are surrogate escapes."""
        ...

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode and score it; the verdict of an episode that has ended. ``reason`` is the driver's own."""
        ...

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution; for agents that check tasks."""
        ...

    def record_usage(self, usage: Usage) -> None:
        """Record the tokens that the agent's model has used so far."""
        ...

    async def close(self) -> None:
        """Release what this process holds of the episode, without scoring. Idempotent."""
        ...
