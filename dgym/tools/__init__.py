"""The tools of an agent, and what is needed to write one.

A tool is a class with a docstring and one typed method; see docs/writing-a-tool.md. Each tool is a module of its own,
found by its entry point or a dotted path.
"""

from dgym.tools.base import Tool, find_tool, parse_action, validate_arguments
from dgym.tools.context import ToolContext, ToolError, ToolResult, ToolSettings
from dgym.tools.registry import available_tools, describe_options, import_dotted, load_tool, load_tools, read_options
from dgym.tools.schema import Parameter, Signature

__all__ = [
    "Parameter",
    "Signature",
    "Tool",
    "ToolContext",
    "ToolError",
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
