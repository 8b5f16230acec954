"""Calls of tools as text, for models that cannot call them natively.

The model writes ``<call>view calc.py</call>``: between the marks stands a line of the tools' own grammar, which needs
no escaping and so suits code, or the call as JSON. The environment parses the line. JSON that a model wrote, in text or
as native arguments, is decoded leniently.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dgym.llm.protocol import ModelCall, ToolDefinition

OPEN, CLOSE = "<call>", "</call>"

# <tool_call> is what many open models were trained to write; they do so whatever the prompt says.
_CALL = re.compile(r"<(call|tool_call)>(.*?)(?:</\1>|\Z)", re.DOTALL)

_HOW = f"""\
To call a tool, write one line between {OPEN} and {CLOSE}: the tool's name and its arguments, in their order, such as
{OPEN}view calc.py{CLOSE}
Put quotes around an argument with spaces. Write code between <c> and </c>, over as many lines as it takes:
{OPEN}rewrite calc.py 3:5 <c>    return sum(items)</c>{CLOSE}
A call may also be JSON: {OPEN}{{"tool": "view", "arguments": {{"path": "calc.py"}}}}{CLOSE}
Write the call at the end of the reply; its result is the next message.

Tools:
"""


def describe_tools(tools: Sequence[ToolDefinition]) -> str:
    """How to call, and every tool with its arguments."""
    return _HOW + "\n".join(describe_tool(tool) for tool in tools)


def is_described(text: str) -> bool:
    """Whether ``text`` holds what ``describe_tools`` returns."""
    return _HOW in text


def describe_tool(tool: ToolDefinition) -> str:
    """A tool with its arguments."""
    schema: Mapping[str, Any] = tool.get("parameters") or {}
    required = schema.get("required", ())
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    words = [name if name in required else f"[{name}]" for name in properties]
    lines = [f"- {' '.join([tool['name'], *words])}: {' '.join(str(tool.get('description', '')).split())}"]
    lines += [
        f"    {name}: {' '.join(str(about['description']).split())}"
        for name, about in properties.items()
        if about.get("description")
    ]
    return "\n".join(lines)


def write_arguments(call: ModelCall) -> str:
    """The arguments as JSON."""
    return json.dumps(call.arguments or {})


def write_call(call: ModelCall) -> str:
    """A call as the model would write it."""
    if call.raw:
        return f"{OPEN}{call.raw}{CLOSE}"
    return f"{OPEN}{msgspec.json.encode({'tool': call.tool, 'arguments': call.arguments or {}}).decode()}{CLOSE}"


def write_result(tool: str, text: str) -> str:
    """The answer to a call, as a message of the user."""
    return f"Result of {tool or 'the call'}:\n{text}"


def read_calls(text: str, *, first_id: str) -> tuple[str, tuple[ModelCall, ...]]:
    """The text around the calls, and the calls. ``first_id`` begins their ids."""
    calls = tuple(
        _read(match.group(2).strip(), f"{first_id}-{number}") for number, match in enumerate(_CALL.finditer(text))
    )
    return _CALL.sub("", text).strip(), calls


_PROSE_ENDS = (".", "!", "?", ":", ",")


def read_only_call(text: str, names: Collection[str], *, identity: str) -> ModelCall | None:
    """The call that ``text`` is, where it is one call and nothing else.

    Its forms: a line of a tool's grammar, JSON in a fence or alone, and what ``read_calls`` reads. ``names`` are those
    of the tools; a line that ends as a sentence does is not a call.
    """
    text = text.strip()
    if (marked := _CALL.fullmatch(text)) is not None:
        return None if _CALL.search(marked[2]) else _read(marked[2].strip(), identity)
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json").strip()
    if text.startswith("{"):
        call = _read(text, identity)
        return call if call.error is None and call.tool in names else None
    first, *_ = text.split(maxsplit=1) or [""]
    is_line = "\n" not in text and not text.endswith(_PROSE_ENDS)
    return _read(text, identity) if first in names and (is_line or text.endswith("</c>")) else None


def _read(raw: str, identity: str) -> ModelCall:
    if not raw:
        return ModelCall(id=identity, tool="", raw=raw, error=f"There is nothing between {OPEN} and {CLOSE}.")
    if not raw.startswith("{"):
        return ModelCall(id=identity, tool=raw.split(maxsplit=1)[0], raw=raw)
    found, problem = read_object(raw)
    if found is None:
        return ModelCall(id=identity, tool="", raw=raw, error=f"The call begins with a brace but is {problem}.")
    tool = found.get("tool", found.get("name"))
    arguments = found.get("arguments", {})
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        return ModelCall(
            id=identity, tool="", raw=raw, error='A call as JSON is {"tool": NAME, "arguments": {...}}, with no more.'
        )
    return ModelCall(id=identity, tool=tool, arguments=arguments, raw=raw)


def read_object(text: str) -> tuple[dict[str, Any] | None, str]:
    """Returns ``(object, "")``, or ``(None, error)`` with an error that reads after "is".

    A line break inside a string is accepted: models write code that way, and it has no other meaning.
    """
    try:
        found = decode_leniently(text.encode("utf-8", "replace"))
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:
        return None, f"not valid JSON: {error}"
    if not isinstance(found, dict):
        return None, f"not a JSON object but {_kind(found)}"
    return found, ""


def decode_leniently(data: bytes) -> Any:
    """Decode JSON; line breaks in strings and halves of surrogate pairs are accepted.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        loose = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_refuse)
    # Half of a surrogate pair could be neither stored nor sent.
    return msgspec.json.decode(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
