"""Converts messages to requests, and responses to replies, for the Responses API of OpenAI.

The provider does not store responses (``store: false``). The items of a response, including encrypted reasoning, are
sent back unchanged with the next request.

https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dgym.llm._completions import (
    adapt_messages,
    complete_reply,
    read_call,
    read_document,
    read_usage,
    reported_text,
    split_reasoning,
    valid_arguments,
    valid_name,
)
from dgym.llm._config import ModelSettings
from dgym.llm._faults import Fault, RequestFailed, classify
from dgym.llm._protocol import ITEMS, Message, ModelCall, Reply, TokenUsage, ToolDefinition

_FINISHED = {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"}
_STATUSES = {"rate_limit_exceeded": 429, "server_error": 500, "invalid_prompt": 400}


def request_body(
    settings: ModelSettings, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, temperature: str | None
) -> dict[str, Any]:
    """Return the body of a request; see ``completions.request_body``. The API does not support a seed."""
    body: dict[str, Any] = {
        "model": settings.model,
        "input": [item for message in adapt_messages(settings, messages, tools) for item in _items(message)],
        "store": False,
        **({"include": ["reasoning.encrypted_content"]} if settings.reasoning == "return" else {}),
        **settings.generate_kwargs,
    }
    if tools and settings.tool_calling == "native":
        body["tools"] = [render_tool(tool) for tool in tools]
    if temperature is not None:
        body["temperature"] = float(temperature)
    return {key: value for key, value in body.items() if key not in settings.ignore_kwargs}


def render_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Return a tool in the format of the API. It is not strict, because strict schemas forbid optional parameters."""
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description", ""),
        "parameters": tool["parameters"],
        "strict": False,
    }


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id or "", "output": message.content}]
    received = message.extra.get(ITEMS)
    if isinstance(received, list):
        return received
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": valid_name(call.tool),
            "arguments": valid_arguments(call),
        }
        for call in message.calls
    ]
    if not message.content and calls:
        return calls
    return [{"type": "message", "role": message.role, "content": message.content}, *calls]


def read_reply(
    body: bytes, settings: ModelSettings, tools: Sequence[ToolDefinition] = ()
) -> tuple[Reply, TokenUsage | None]:
    """Return the reply, and the usage if the server reported it. Calls in the text are read as for chat completions.

    Raises:
        RequestFailed: The body is not a finished response, the response failed, or the content filter removed it.
    """
    document = read_document(body)
    finish_reason = _finish_reason(document)
    output = document.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise RequestFailed(Fault.BAD_REPLY, "the answer has no output, a list of items")
    identity = str(document.get("id") or "call")
    parts = [part for item in output if item.get("type") == "message" for part in _parts(item, "content")]
    content = _joined(parts, "output_text", "text")
    reasoning = "\n".join(_reasoning(item) for item in output if item.get("type") == "reasoning").strip()
    text, reasoning = split_reasoning(content, reasoning, settings.reasoning_end_token, cut=finish_reason == "length")
    returned = list(output)
    while returned and returned[-1].get("type") == "reasoning":
        # The API rejects reasoning that is not followed by a message or a call, as in a reply that was cut off.
        del returned[-1]
    received = Reply(
        text=text,
        content=content if settings.reasoning == "return" else text,
        reasoning=reasoning,
        calls=_calls(output, identity) if settings.tool_calling == "native" else (),
        extra={ITEMS: returned} if settings.reasoning == "return" and returned else {},
        finish_reason=finish_reason,
        refusal=_joined(parts, "refusal", "refusal"),
        model=reported_text(document, "model"),
        system_fingerprint=reported_text(document, "system_fingerprint"),
    )
    reported = document.get("usage")
    usage = (
        read_usage(reported, settings, given="input_tokens", made="output_tokens")
        if isinstance(reported, dict) and isinstance(reported.get("input_tokens"), int)
        else None
    )
    return complete_reply(received, settings, tools, identity=identity), usage


def _finish_reason(document: Mapping[str, Any]) -> str:
    """Return why the response ended, as the ``finish_reason`` of chat completions.

    Raises:
        RequestFailed: The response failed, or has not ended.
    """
    status, error = document.get("status"), document.get("error")
    if error or status == "failed":
        code = str(error.get("code")) if isinstance(error, dict) else ""
        raise classify(_STATUSES.get(code, 500 if status == "failed" else 200), {"error": error or "it failed"}, {})
    details = document.get("incomplete_details")
    reason = details.get("reason") if status == "incomplete" and isinstance(details, dict) else status
    if reason not in _FINISHED and status != "incomplete":
        raise RequestFailed(
            Fault.BAD_REPLY, f"the answer is not a finished response: its status is {str(status)[:40]!r}"
        )
    return _FINISHED.get(str(reason), "length")


def _calls(output: Sequence[Mapping[str, Any]], identity: str) -> tuple[ModelCall, ...]:
    calls = [item for item in output if item.get("type") == "function_call"]
    return tuple(
        read_call(item, str(item.get("call_id") or f"{identity}-{number}"), extra={})
        for number, item in enumerate(calls)
    )


def _reasoning(item: Mapping[str, Any]) -> str:
    return "\n".join(
        text
        for name, kind in (("summary", "summary_text"), ("content", "reasoning_text"))
        if (text := _joined(_parts(item, name), kind, "text"))
    )


def _parts(item: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    parts = item.get(name)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _joined(parts: Sequence[Mapping[str, Any]], kind: str, name: str) -> str:
    found = (part.get(name) for part in parts if part.get("type") == kind)
    return "".join(text for text in found if isinstance(text, str))
