"""Parsing of actions into calls: a mapping, a line of text, or a mapping as JSON text."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgym.tools.answers import ToolError
from dgym.tools.base import Tool
from dgym.tools.schema import describe_signature
from dgym.tools.text import nearest
from dgym.wire import ToolCall

_FORM = 'An action is {"tool": NAME, "arguments": {...}} or a line of text that begins with a tool\'s name.'


def parse_action(action: str | Mapping[str, Any], tools: Mapping[str, Tool]) -> ToolCall:
    """The call that ``action`` means; its arguments are not checked yet (see ``validate_arguments``)."""
    if isinstance(action, str):
        return _parse_line(action, tools)
    if isinstance(action, Mapping):
        return _parse_mapping(action, tools)
    raise ToolError(f"An action cannot be {type(action).__name__}. {_FORM}")


def validate_arguments(tool: Tool, call: ToolCall) -> dict[str, Any]:
    """Checked arguments, or a ``ToolError`` that names everything that is wrong and what is valid."""
    values, problems = tool.signature.check(call.arguments)
    if problems:
        told = "\n".join(f"{tool.name}: {problem}" for problem in problems)
        raise ToolError(f"{told}\n{describe_signature(tool.name, tool.signature)}")
    return values


def find_tool(name: Any, tools: Mapping[str, Tool]) -> Tool:
    """The tool of that name, or a ``ToolError`` that lists those there are."""
    if isinstance(name, str) and name in tools:
        return tools[name]
    shown = str(name)[:80].encode("utf-8", "replace").decode()
    raise ToolError(f"There is no tool `{shown}`.{nearest(shown, tools)} Tools: {', '.join(sorted(tools))}.")


def _parse_line(line: str, tools: Mapping[str, Tool]) -> ToolCall:
    line = line.strip()
    if not line:
        raise ToolError(f"The action is empty. {_FORM}\nTools: {', '.join(sorted(tools))}.")
    if line.startswith("{"):
        try:
            decoded = msgspec.json.decode(line.encode("utf-8", "replace"), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolError(f"The action begins with a brace but is not JSON: {error}. {_FORM}") from None
        return _parse_mapping(decoded, tools)
    words = line.split(maxsplit=1)
    tool = find_tool(words[0], tools)
    return ToolCall(tool=tool.name, arguments=tool.parse_text(words[1] if len(words) > 1 else ""))


def _parse_mapping(action: Mapping[str, Any], tools: Mapping[str, Tool]) -> ToolCall:
    unknown = [str(key) for key in action if key not in ("tool", "arguments")]
    if unknown or "tool" not in action:
        wrong = f"has no field `{unknown[0]}`" if unknown else "must name its tool"
        raise ToolError(f"The action {wrong}. {_FORM}")
    tool = find_tool(action["tool"], tools)
    arguments = action.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise ToolError(f"The arguments of {tool.name} must be an object. {_FORM}")
    return ToolCall(tool=tool.name, arguments=dict(arguments))
