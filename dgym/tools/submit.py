"""Ending the episode."""

from dgym.tools.base import Tool
from dgym.tools.context import ToolContext, ToolResult


class Submit(Tool):
    """End the episode. The changes made so far are then scored on a fresh copy of the repository."""

    mutates = False
    verbatim = "message"
    examples = ("submit", "submit the cache key left out the locale")

    async def use(self, context: ToolContext, message: str = "") -> ToolResult:  # noqa: ARG002 - every tool gets it
        """Submit.

        Args:
            context: The episode's files, breakpoints and sandbox.
            message: What was wrong and how it was repaired, for people who read the trajectory.
        """
        return ToolResult(text=f"Submitted: {message}" if message else "Submitted.", submitted=True)
