"""The tools of an agent, and what is needed to write one.

A tool is a class with a docstring and one typed method; see ``dgym.tools.base`` and docs/writing-a-tool.md.
"""

from dgym.tools.base import Tool, ToolError, ToolResult

__all__ = ["Tool", "ToolError", "ToolResult"]
