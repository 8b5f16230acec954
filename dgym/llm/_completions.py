"""Converts messages to requests, and responses to replies, for the Chat Completions API of OpenAI.

https://platform.openai.com/docs/api-reference/chat
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgym.llm._calls import (
    decode_leniently,
    describe_tools,
    is_described,
    read_calls,
    read_object,
    read_only_call,
    write_arguments,
    write_call,
    write_result,
)
from dgym.llm._config import ModelSettings
from dgym.llm._faults import Fault, RequestFailed, classify
from dgym.llm._protocol import Message, ModelCall, Reply, TokenUsage, ToolDefinition

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def request_body(
    settings: ModelSettings,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    seed: int | None,
    temperature: str | None,
) -> dict[str, Any]:
    """Return the body of a request.

    ``seed`` and ``temperature`` take precedence over ``generate_kwargs``. Names in ``ignore_kwargs`` are removed.
    """
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
    """Return the messages in the format of the API, adapted to the model."""
    rendered = [_render(message) for message in adapt_messages(settings, messages, tools)]
    return _with_markers(rendered) if settings.cache_control else rendered


def adapt_messages(
    settings: ModelSettings, messages: Sequence[Message], tools: Sequence[ToolDefinition]
) -> Sequence[Message]:
    """Adapt the messages to a model without native tool calling or without system prompts."""
    native = settings.tool_calling == "native"
    if not native:
        messages = _as_text(messages, tools)
    if not settings.system_prompt_support:
        messages = [_as_user(message) if message.role == "system" else message for message in messages]
    if not native or not settings.system_prompt_support:
        # The chat templates of such models require alternating user and assistant messages.
        messages = _merged(messages)
    return messages


def _with_markers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up to three ``cache_control`` marks, up to which the server caches the messages.

    The marks are at the system message, at the end of the previous request and at the end of this request. The mark at
    the end of the previous request is needed because servers search their cache only a limited number of blocks before
    a mark. The marks themselves are not part of the cached content, so moving them does not invalidate the cache.
    """
    roles = [message["role"] for message in messages]
    last_reply = max((place for place, role in enumerate(roles) if role == "assistant"), default=0)
    ends = ([0] if roles[:1] == ["system"] else [], range(1, last_reply), range(last_reply + 1, len(messages)))
    marked = list(messages)
    for places in ends:
        able = [place for place in places if roles[place] != "assistant" and messages[place]["content"]]
        if able:
            message = messages[able[-1]]
            part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
            marked[able[-1]] = {**message, "content": [part]}
    return marked


def render_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Return a tool in the format of the API."""
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["parameters"]}
    return {"type": "function", "function": function}


def _render(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": message.content}
    if not message.calls:
        return {"role": message.role, "content": message.content, **message.extra}
    calls = [render_call(call) for call in message.calls]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls, **message.extra}


def render_call(call: ModelCall) -> dict[str, Any]:
    """Return a call of an assistant message in the format of the API."""
    function = {"name": valid_name(call.tool), "arguments": valid_arguments(call)}
    return {"id": call.id, "type": "function", "function": function, **call.extra}


def valid_name(tool: str) -> str:
    """Return a tool name that servers accept in messages. Models may have written an invalid name."""
    return _NOT_IN_NAMES.sub("_", tool)[:64] or "unknown"


def valid_arguments(call: ModelCall) -> str:
    """Return the arguments of a call as a JSON object, unchanged if they are valid.

    Some servers decode the arguments of earlier calls and fail if they are not valid JSON.
    """
    if call.arguments is None:
        return json.dumps({"not_valid": call.raw})
    try:
        return call.raw if isinstance(msgspec.json.decode(call.raw), dict) else write_arguments(call)
    except (ValueError, RecursionError):
        return write_arguments(call)


def _as_text(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """Convert calls to text and results to user messages, and describe the tools in the system message."""
    made: Mapping[str, ModelCall] = {call.id: call for message in messages for call in message.calls}
    changed = [_message_as_text(message, made) for message in messages]
    if not tools or any(is_described(message.content) for message in changed[:1]):
        return changed
    description = describe_tools(tools)
    if changed and changed[0].role == "system":
        first = Message(role="system", content=f"{changed[0].content}\n\n{description}")
        return [first, *changed[1:]]
    return [Message(role="system", content=description), *changed]


def _message_as_text(message: Message, made: Mapping[str, ModelCall]) -> Message:
    if message.role == "tool":
        call = made.get(message.call_id or "")
        return Message(role="user", content=write_result(call.tool if call else "", message.content))
    if message.calls:
        parts = [message.content, *(write_call(call) for call in message.calls)]
        return Message(role="assistant", content="\n".join(part for part in parts if part), extra=message.extra)
    return message


def _as_user(message: Message) -> Message:
    return Message(role="user", content=message.content)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Merge consecutive messages of the same role. Messages with calls and their results are not merged."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        plain = not message.calls and message.role != "tool"
        if last is not None and plain and last.role == message.role and not last.calls:
            merged[-1] = Message(role=last.role, content=f"{last.content}\n\n{message.content}")
        else:
            merged.append(message)
    return merged


_REASONING_FIELDS = ("reasoning_content", "reasoning")
_RETURNED = (*_REASONING_FIELDS, "reasoning_details", "thinking_blocks", "provider_specific_fields", "extra_content")
"""Fields of a message that are sent back. The servers of OpenAI do not send any of them, and reject unknown fields."""
_RETURNED_OF_CALLS = ("extra_content", "provider_specific_fields")
_THINK_START = "<think>"
_REPORTED_CHARACTERS = 200


def read_reply(
    body: bytes, settings: ModelSettings, tools: Sequence[ToolDefinition] = ()
) -> tuple[Reply, TokenUsage | None]:
    """Return the reply, and the usage if the server reported it.

    If the reply does not contain a call in the configured form, but its content is exactly one call of one of the
    ``tools``, that call is returned.

    Raises:
        RequestFailed: The body is not JSON, contains an error instead of a choice, or the reply was filtered.
    """
    document = read_document(body)
    if document.get("error") and not document.get("choices"):
        raise classify(200, document, {})
    choice, message = _choice(document)
    finish_reason = str(choice.get("finish_reason") or "stop")
    content = _text(message.get("content"))
    thought = next((found for name in _REASONING_FIELDS if isinstance(found := message.get(name), str) and found), "")
    text, reasoning = split_reasoning(content, thought, settings.reasoning_end_token, cut=finish_reason == "length")
    identity = str(document.get("id") or "call")
    refusal = message.get("refusal")
    received = Reply(
        text=text,
        content=content if settings.reasoning == "return" else text,
        reasoning=reasoning,
        calls=_native_calls(message, identity) if settings.tool_calling == "native" else (),
        extra=_returned(message, _RETURNED) if settings.reasoning == "return" else {},
        finish_reason=finish_reason,
        refusal=refusal if isinstance(refusal, str) else "",
        model=reported_text(document, "model"),
        system_fingerprint=reported_text(document, "system_fingerprint"),
    )
    return complete_reply(received, settings, tools, identity=identity), _usage(document.get("usage"), settings)


def complete_reply(
    received: Reply, settings: ModelSettings, tools: Sequence[ToolDefinition], *, identity: str
) -> Reply:
    """Return ``received`` with the calls that its text contains. Their ids begin with ``identity``.

    Raises:
        RequestFailed: The content filter removed the reply.
    """
    text, calls, cut = received.text, received.calls, received.finish_reason == "length"
    in_text = not calls and bool(text)
    if in_text and settings.tool_calling == "text":
        text, calls = read_calls(text, first_id=identity)
    if in_text and not calls and not cut:
        only = read_only_call(text, [str(tool["name"]) for tool in tools], identity=f"{identity}-0")
        text, calls = ("", (only,)) if only is not None else (text, ())
    if received.finish_reason == "content_filter" and not calls:
        raise RequestFailed(Fault.FILTERED, "the content filter removed the reply")
    content = received.content
    return msgspec.structs.replace(
        received,
        text=text,
        content=content if content != text and content.strip() else "",
        calls=tuple(_explain_cut(call) for call in calls) if cut else calls,
        in_text=in_text and bool(calls),
    )


def reported_text(document: Mapping[str, Any], name: str) -> str:
    """Return the text field ``name`` of a response, cut to 200 characters; empty if it is missing."""
    value = document.get(name)
    return value[:_REPORTED_CHARACTERS] if isinstance(value, str) else ""


def _returned(received: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: received[name] for name in names if received.get(name)}


def read_document(body: bytes) -> dict[str, Any]:
    """Decode the body of a response.

    Raises:
        RequestFailed: The body is not a JSON object.
    """
    try:
        document = decode_leniently(body)
    except (ValueError, RecursionError):
        shown = " ".join(body[:200].decode("utf-8", "replace").split())
        raise RequestFailed(Fault.BAD_REPLY, f"the answer is not JSON: {shown!r}") from None
    if not isinstance(document, dict):
        raise RequestFailed(Fault.BAD_REPLY, "the answer is JSON but not an object")
    return document


def _choice(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if isinstance(message, dict):
            return choices[0], message
    raise RequestFailed(Fault.BAD_REPLY, "the answer has no choice with a message")


def split_reasoning(text: str, reasoning: str, end_token: str | None, *, cut: bool) -> tuple[str, str]:
    """Return the text without reasoning, and the reasoning.

    Args:
        text: The content of the reply.
        reasoning: The reasoning that the server returned separately; may be empty.
        end_token: The token that ends reasoning inside of ``text``. None: ``text`` does not contain reasoning.
        cut: Whether the reply was cut at its length limit. If it was and ``end_token`` is missing, all of ``text`` is
            treated as reasoning.
    """
    if end_token is None:
        return text.strip(), reasoning.strip()
    thought, mark, answer = text.partition(end_token)
    if not mark and (cut or text.lstrip().startswith(_THINK_START)) and not reasoning:
        thought, answer = text, ""
    elif not mark:
        thought, answer = "", text
    thought = thought.strip().removeprefix(_THINK_START).strip()
    return answer.strip(), "\n".join(part for part in (reasoning.strip(), thought) if part)


def _text(content: Any) -> str:
    """Return the text of a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _native_calls(message: Mapping[str, Any], identity: str) -> tuple[ModelCall, ...]:
    found = message.get("tool_calls")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    calls: list[ModelCall] = []
    for number, entry in enumerate(entries):
        given = entry.get("id")
        taken = any(call.id == given for call in calls)
        name = given if isinstance(given, str) and given and not taken else f"{identity}-{number}"
        calls.append(_native_call(entry, name))
    return tuple(calls)


def _native_call(entry: Mapping[str, Any], identity: str) -> ModelCall:
    function = entry.get("function")
    return read_call(
        function if isinstance(function, dict) else {}, identity, extra=_returned(entry, _RETURNED_OF_CALLS)
    )


def read_call(function: Mapping[str, Any], identity: str, *, extra: dict[str, Any]) -> ModelCall:
    """Return the call of an object with ``name`` and ``arguments``."""
    tool, arguments = str(function.get("name") or ""), function.get("arguments")
    if isinstance(arguments, dict):
        return ModelCall(id=identity, tool=tool, arguments=arguments, raw=json.dumps(arguments), extra=extra)
    raw = arguments if isinstance(arguments, str) else ""
    if not raw.strip():
        return ModelCall(id=identity, tool=tool, arguments={}, raw=raw, extra=extra)
    decoded, problem = read_object(raw)
    if decoded is None:
        problem = f"The arguments of `{tool}` are {problem}."
        return ModelCall(id=identity, tool=tool, raw=raw, error=problem, extra=extra)
    return ModelCall(id=identity, tool=tool, arguments=decoded, raw=raw, extra=extra)


def _explain_cut(call: ModelCall) -> ModelCall:
    if call.error is None:
        return call
    return msgspec.structs.replace(
        call, error=f"{call.error} The reply was cut because it reached its greatest length; write less at a time."
    )


def _usage(reported: Any, settings: ModelSettings) -> TokenUsage | None:
    if not isinstance(reported, dict) or not isinstance(reported.get("prompt_tokens"), int):
        return None
    return read_usage(reported, settings, given="prompt_tokens", made="completion_tokens")


def read_usage(reported: Mapping[str, Any], settings: ModelSettings, *, given: str, made: str) -> TokenUsage:
    """Return the usage. ``given`` and ``made`` are the field names for input and output tokens."""
    sent, received = _count(reported, given), _count(reported, made)
    cached = min(sent, _count(reported.get(f"{given}_details"), "cached_tokens"))
    return TokenUsage(
        input_tokens=sent,
        output_tokens=received,
        cached_tokens=cached,
        reasoning_tokens=_count(reported.get(f"{made}_details"), "reasoning_tokens"),
        price=settings.price(sent, received, cached),
    )


def _count(source: Any, key: str) -> int:
    value = source.get(key) if isinstance(source, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
