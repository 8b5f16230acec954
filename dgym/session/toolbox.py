"""The tools of one episode: which are available after how many rewrites, and how they introduce themselves."""

from collections.abc import Iterable, Sequence

import msgspec

from dgym.session.execution import Execution, describe_tools, joined
from dgym.tools import Tool, ToolContext
from dgym.tools.rewrite import Rewrite
from dgym.wire.http import ToolsResponse


class Toolbox:
    """Counts the rewrites of an episode, by which tools become available.

    Args:
        tools: All tools of the episode.
        max_rewrites: With 0 there is no tool ``rewrite``.
    """

    def __init__(self, tools: Sequence[Tool], *, max_rewrites: int | None) -> None:
        self._max_rewrites = max_rewrites
        self.all = {tool.name: tool for tool in tools if self._is_allowed(tool)}
        """Those that were removed too: a replay executes their calls."""
        self.rewrites = 0
        self._removed: set[str] = set()
        self._notices: list[str] = []

    @property
    def available(self) -> dict[str, Tool]:
        """The tools that are available now."""
        return {
            name: tool
            for name, tool in self.all.items()
            if tool.after_rewrites <= self.rewrites and name not in self._removed
        }

    def add(self, tool: Tool) -> bool:
        """Add a tool; whether it is available now."""
        if self._is_allowed(tool):
            self.all[tool.name] = tool
            self._removed.discard(tool.name)
        return tool.name in self.available

    def remove(self, name: str) -> None:
        """Remove a tool: no later call finds it."""
        self._removed.add(name)

    def _is_allowed(self, tool: Tool) -> bool:
        return self._max_rewrites != 0 or not isinstance(tool, Rewrite)

    def describe(self, instructions: str) -> ToolsResponse:
        """The task's ``instructions`` and the tools that are available now."""
        return describe_tools(instructions, self.available.values(), self._notices)

    async def greet(self, context: ToolContext, tools: Iterable[Tool]) -> list[str]:
        """The texts by which ``tools``, available from now on, introduce themselves."""
        texts = [text for tool in tools if (text := await tool.on_reset(context))]
        self._notices += texts
        return texts

    async def count(self, execution: Execution, context: ToolContext) -> Execution:
        """Count a rewrite; the observation announces the tools that it brings."""
        before = self.available
        self.rewrites += execution.rewrote
        new = [tool for name, tool in self.available.items() if name not in before]
        if not new:
            return execution
        texts = [f"New from now on, the tool {tool.name}: {tool.description.partition(chr(10))[0]}" for tool in new]
        texts = [execution.observation.text, *texts, *await self.greet(context, new)]
        observation = joined(execution.observation, texts, tool=execution.observation.tool)
        return msgspec.structs.replace(execution, observation=observation)
