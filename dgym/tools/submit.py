"""The tool ``submit``, which ends the episode."""

from dgym.tools._base import Tool
from dgym.tools._context import ToolContext, ToolResult


class Submit(Tool):
    """End the episode. The changes made so far are then scored on a fresh copy of the repository.

    Args:
        evaluate: Whether the changes are scored. False: the episode ends as Submitted, without a score.
    """

    mutates = False
    verbatim = "message"
    examples = ("submit", "submit the cache key left out the locale")

    def __init__(self, *, evaluate: bool = True) -> None:
        self.evaluate = evaluate

    @property
    def description(self) -> str:
        """See ``Tool.description``."""
        return super().description if self.evaluate else "End the episode. The changes made so far are kept."

    async def use(self, context: ToolContext, message: str = "") -> ToolResult:  # noqa: ARG002 - every tool gets it
        """Submit.

        Args:
            context: The episode's files, breakpoints and sandbox.
            message: The cause and how it was repaired, for people who read the trajectory.
        """
        text = f"Submitted: {message}" if message else "Submitted."
        return ToolResult(text=text, submitted=True, unscored=not self.evaluate)
