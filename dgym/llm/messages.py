"""From messages and tools to the body of a request for chat completions."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dgym.llm.calls import describe_tools, write_call, write_result
from dgym.llm.config import ModelSettings
from dgym.llm.protocol import Message, ModelCall, ToolDefinition

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def request_body(
    settings: ModelSettings,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    seed: int | None,
    temperature: str | None,
) -> dict[str, Any]:
    """The body. What the episode asks for beats ``generate_kwargs``; ``ignore_kwargs`` takes away from both."""
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": render_messages(settings, messages, tools),
        **settings.generate_kwargs,
    }
    if tools and settings.tool_calling == "native":
        body["tools"] = [render_tool(tool) for tool in tools]
    if seed is not None:
        body["seed"] = seed
    if temperature is not None:
        body["temperature"] = float(temperature)
    return {key: value for key, value in body.items() if key not in settings.ignore_kwargs}


def render_messages(
    settings: ModelSettings, messages: Sequence[Message], tools: Sequence[ToolDefinition]
) -> list[dict[str, Any]]:
    """Messages in the form this model takes."""
    native = settings.tool_calling == "native"
    if not native:
        messages = _as_text(messages, tools)
    if not settings.system_prompt_support:
        messages = [_said_by_user(message) if message.role == "system" else message for message in messages]
    if not native or not settings.system_prompt_support:
        # Templates of such models insist that user and assistant take turns.
        messages = _merged(messages)
    return [_render(message) for message in messages]


def render_tool(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as the API takes it."""
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["parameters"]}
    return {"type": "function", "function": function}


def _render(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": message.content}
    if not message.calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": _name(call.tool), "arguments": _arguments(call)}}
        for call in message.calls
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _name(tool: str) -> str:
    """A name that servers accept in a history, where the model invented an invalid one."""
    return _NOT_IN_NAMES.sub("_", tool)[:64] or "unknown"


def _arguments(call: ModelCall) -> str:
    """Valid JSON always: some servers decode the history and fail on what the model once cut short."""
    if call.arguments is None:
        return json.dumps({"not_valid": call.raw})
    return json.dumps(call.arguments)


def _as_text(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """Calls written as text, results as messages of the user, the tools described in the system's message."""
    made: Mapping[str, ModelCall] = {call.id: call for message in messages for call in message.calls}
    changed = [_one_as_text(message, made) for message in messages]
    if not tools:
        return changed
    description = describe_tools(tools)
    if changed and changed[0].role == "system":
        first = Message(role="system", content=f"{changed[0].content}\n\n{description}")
        return [first, *changed[1:]]
    return [Message(role="system", content=description), *changed]


def _one_as_text(message: Message, made: Mapping[str, ModelCall]) -> Message:
    if message.role == "tool":
        call = made.get(message.call_id or "")
        return Message(role="user", content=write_result(call.tool if call else "", message.content))
    if message.calls:
        parts = [message.content, *(write_call(call) for call in message.calls)]
        return Message(role="assistant", content="\n".join(part for part in parts if part))
    return message


def _said_by_user(message: Message) -> Message:
    return Message(role="user", content=message.content)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message; calls and their answers stay as they are."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        plain = not message.calls and message.role != "tool"
        if last is not None and plain and last.role == message.role and not last.calls:
            merged[-1] = Message(role=last.role, content=f"{last.content}\n\n{message.content}")
        else:
            merged.append(message)
    return merged
