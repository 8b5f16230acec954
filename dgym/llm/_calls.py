"""Tool calls as text, for models without native tool calling.

The model writes ``<call>view calc.py</call>``. Between the tags is a call in the text grammar of the tools, which suits
code because it does not need escaping, or a call as JSON. The environment parses the text grammar. JSON written by a
model, in text or as native arguments, is decoded leniently.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dgym.llm._protocol import ModelCall, ToolDefinition

OPEN, CLOSE = "<call>", "</call>"

# Many open models were trained to write <tool_call> and do so regardless of the prompt.
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
    """Return the instructions for calls as text, and a description of each tool with its arguments."""
    return _HOW + "\n".join(describe_tool(tool) for tool in tools)


def is_described(text: str) -> bool:
    """Return True if ``text`` contains the instructions of ``describe_tools``."""
    return _HOW in text


def describe_tool(tool: ToolDefinition) -> str:
    """Return a description of a tool with its arguments."""
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
    """Return the arguments of a call as JSON."""
    return json.dumps(call.arguments or {})


def write_call(call: ModelCall) -> str:
    """Return a call as text, as the model writes it."""
    if call.raw:
        return f"{OPEN}{call.raw}{CLOSE}"
    return f"{OPEN}{msgspec.json.encode({'tool': call.tool, 'arguments': call.arguments or {}}).decode()}{CLOSE}"


def write_result(tool: str, text: str) -> str:
    """Return the text of the user message with the result of a call."""
    return f"Result of {tool or 'the call'}:\n{text}"


def read_calls(text: str, *, first_id: str) -> tuple[str, tuple[ModelCall, ...]]:
    """Return the text without the calls, and the calls. Their ids are ``first_id`` with a number appended."""
    calls = tuple(
        _read(match.group(2).strip(), f"{first_id}-{number}") for number, match in enumerate(_CALL.finditer(text))
    )
    return _CALL.sub("", text).strip(), calls


_PROSE_ENDS = (".", "!", "?", ":", ",")


def read_only_call(text: str, names: Collection[str], *, identity: str) -> ModelCall | None:
    """Return the call if ``text`` consists of exactly one call, else None.

    The call may be a line in the text grammar, JSON with or without a code fence, or in the tags of ``read_calls``. A
    line that ends with punctuation of a sentence is not a call.

    Args:
        text: The text of a reply.
        names: The names of the tools.
        identity: The id of the call.
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
            id=identity,
            tool="",
            raw=raw,
            error='A call as JSON has exactly the form {"tool": NAME, "arguments": {...}}.',
        )
    return ModelCall(id=identity, tool=tool, arguments=arguments, raw=raw)


def read_object(text: str) -> tuple[dict[str, Any] | None, str]:
    """Decode a JSON object leniently; see ``decode_leniently``.

    Returns:
        ``(object, "")``, or ``(None, error)`` with an error such as "nested too deeply" that can follow the word "is".
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
    """Decode JSON. Line breaks in strings, which models write in code, and unpaired surrogates are accepted.

    Raises:
        ValueError: The data is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        loose = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_refuse)
    # Replace unpaired surrogates, which cannot be encoded as UTF-8.
    return msgspec.json.decode(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
