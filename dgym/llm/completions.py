"""The chat completions of OpenAI and of servers like it: from messages to a request, from a response to a reply."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgym.llm.calls import (
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
from dgym.llm.config import ModelSettings
from dgym.llm.faults import Fault, RequestFailed, classify
from dgym.llm.protocol import Message, ModelCall, Reply, ToolDefinition, Usage

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
    rendered = [_render(message) for message in adapt_messages(settings, messages, tools)]
    return _with_markers(rendered) if settings.cache_control else rendered


def adapt_messages(
    settings: ModelSettings, messages: Sequence[Message], tools: Sequence[ToolDefinition]
) -> Sequence[Message]:
    """The messages for a model that lacks calls of tools or system prompts; of other models as they are."""
    native = settings.tool_calling == "native"
    if not native:
        messages = _as_text(messages, tools)
    if not settings.system_prompt_support:
        messages = [_as_user(message) if message.role == "system" else message for message in messages]
    if not native or not settings.system_prompt_support:
        # Templates of such models insist that user and assistant take turns.
        messages = _merged(messages)
    return messages


def _with_markers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with three marks up to which their server caches: the system message, and where this request ends.

    The third is where the request before has ended: servers search the cache a limited number of blocks before a mark.
    Where marks are is not part of what is cached, so that the requests' common prefix stays.
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
    """A tool as the API takes it."""
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
    """A call in a message of the assistant, as the API takes it."""
    function = {"name": valid_name(call.tool), "arguments": valid_arguments(call)}
    return {"id": call.id, "type": "function", "function": function, **call.extra}


def valid_name(tool: str) -> str:
    """A name that servers accept in a history; models invent invalid ones."""
    return _NOT_IN_NAMES.sub("_", tool)[:64] or "unknown"


def valid_arguments(call: ModelCall) -> str:
    """As the model wrote them where that is valid JSON: some servers decode the history and fail on other text."""
    if call.arguments is None:
        return json.dumps({"not_valid": call.raw})
    try:
        return call.raw if isinstance(msgspec.json.decode(call.raw), dict) else write_arguments(call)
    except (ValueError, RecursionError):
        return write_arguments(call)


def _as_text(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """Calls written as text, results as messages of the user, the tools described in the system's message."""
    made: Mapping[str, ModelCall] = {call.id: call for message in messages for call in message.calls}
    changed = [_one_as_text(message, made) for message in messages]
    if not tools or any(is_described(message.content) for message in changed[:1]):
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
        return Message(role="assistant", content="\n".join(part for part in parts if part), extra=message.extra)
    return message


def _as_user(message: Message) -> Message:
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


_REASONING_FIELDS = ("reasoning_content", "reasoning")
_RETURNED = (*_REASONING_FIELDS, "reasoning_details", "thinking_blocks", "provider_specific_fields", "extra_content")
"""Fields of a message that servers take back. OpenAI's own servers send none of them, and refuse unknown ones."""
_RETURNED_OF_CALLS = ("extra_content", "provider_specific_fields")
_THINK_START = "<think>"
_REPORTED_CHARACTERS = 200


def read_reply(
    body: bytes, settings: ModelSettings, tools: Sequence[ToolDefinition] = ()
) -> tuple[Reply, Usage | None]:
    """The reply, and the usage that the server reported, if any.

    If the reply has no call in the configured form, and its content is exactly one call of one of the ``tools``, that
    call is returned.

    Raises:
        RequestFailed: The body is no reply: not JSON, an error in place of a choice, or wholly filtered.
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
    """``received`` with the calls that are in its text; ``identity`` begins their ids.

    Raises:
        RequestFailed: The reply was wholly filtered.
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
    """What the server reports of itself in the field ``name``, bounded; empty where it reports nothing."""
    value = document.get(name)
    return value[:_REPORTED_CHARACTERS] if isinstance(value, str) else ""


def _returned(received: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: received[name] for name in names if received.get(name)}


def read_document(body: bytes) -> dict[str, Any]:
    """The object that the body of a response is.

    Raises:
        RequestFailed: It is not JSON, or not an object.
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
    """Text and reasoning; the reasoning is given, or everything in the text up to the token that ends it."""
    if end_token is None:
        return text.strip(), reasoning.strip()
    thought, mark, said = text.partition(end_token)
    if not mark and (cut or text.lstrip().startswith(_THINK_START)) and not reasoning:
        thought, said = text, ""
    elif not mark:
        thought, said = "", text
    thought = thought.strip().removeprefix(_THINK_START).strip()
    return said.strip(), "\n".join(part for part in (reasoning.strip(), thought) if part)


def _text(content: Any) -> str:
    """Text, whether given as such or in parts."""
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
    """The call of ``function``, its ``name`` and ``arguments``."""
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


def _usage(reported: Any, settings: ModelSettings) -> Usage | None:
    if not isinstance(reported, dict) or not isinstance(reported.get("prompt_tokens"), int):
        return None
    return read_usage(reported, settings, given="prompt_tokens", made="completion_tokens")


def read_usage(reported: Mapping[str, Any], settings: ModelSettings, *, given: str, made: str) -> Usage:
    """The usage; ``given`` and ``made`` are the names of its fields for tokens that were sent and received."""
    sent, received = _count(reported, given), _count(reported, made)
    cached = min(sent, _count(reported.get(f"{given}_details"), "cached_tokens"))
    return Usage(
        input_tokens=sent,
        output_tokens=received,
        cached_tokens=cached,
        reasoning_tokens=_count(reported.get(f"{made}_details"), "reasoning_tokens"),
        price=settings.price(sent, received, cached),
    )


def _count(source: Any, key: str) -> int:
    value = source.get(key) if isinstance(source, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
