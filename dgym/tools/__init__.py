"""The tools of an agent, and what is needed to write one.

A tool is a class with a docstring and one typed method; see ``dgym.tools.base`` and docs/writing-a-tool.md.
"""

from dgym.tools.base import Tool, ToolError, ToolResult
from dgym.tools.context import ToolContext

__all__ = ["Tool", "ToolContext", "ToolError", "ToolResult"]
