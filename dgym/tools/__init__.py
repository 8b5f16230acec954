"""The tools of an agent, and what is needed to write one.

A tool is a class with a docstring and one typed method; see docs/writing-a-tool.md. Each tool has its own module and is
loaded by the name of its entry point or by a dotted path.
"""

from dgym.tools._base import (
    Tool,
    available_tools,
    describe_options,
    find_tool,
    import_dotted,
    load_tool,
    load_tools,
    parse_action,
    read_options,
    validate_arguments,
)
from dgym.tools._context import ToolContext, ToolError, ToolResult, ToolSettings
from dgym.tools._schema import Signature, ToolParameter

__all__ = [
    "Signature",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolParameter",
    "ToolResult",
    "ToolSettings",
    "available_tools",
    "describe_options",
    "find_tool",
    "import_dotted",
    "load_tool",
    "load_tools",
    "parse_action",
    "read_options",
    "validate_arguments",
]
