"""From the body of a response to a reply, whatever dialect of chat completions the server speaks."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgym.llm.calls import decode_leniently, read_calls, read_object
from dgym.llm.config import ModelSettings
from dgym.llm.faults import Fault, RequestFailed, classify
from dgym.llm.protocol import ModelCall, Reply, Usage

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_THINK_START = "<think>"


def read_reply(body: bytes, settings: ModelSettings) -> tuple[Reply, Usage | None]:
    """The reply, and what the server reported of tokens.

    Raises:
        RequestFailed: The body is no reply: not JSON, an error in place of a choice, or wholly filtered.
    """
    document = _document(body)
    choice, message = _choice(document)
    finish_reason = str(choice.get("finish_reason") or "stop")
    text, reasoning = _text_and_reasoning(message, settings.reasoning_end_token, cut=finish_reason == "length")
    identity = str(document.get("id") or "call")
    if settings.tool_calling == "text":
        text, calls = read_calls(text, first_id=identity)
    else:
        calls = _native_calls(message, identity)
    calls = tuple(_explain_cut(call) for call in calls) if finish_reason == "length" else calls
    refusal = message.get("refusal")
    reply = Reply(
        text=text,
        reasoning=reasoning,
        calls=calls,
        finish_reason=finish_reason,
        refusal=refusal if isinstance(refusal, str) else "",
    )
    if finish_reason == "content_filter" and not calls:
        raise RequestFailed(Fault.FILTERED, "the content filter removed the reply")
    return reply, _usage(document.get("usage"), settings)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = decode_leniently(body)
    except (ValueError, RecursionError):
        shown = " ".join(body[:200].decode("utf-8", "replace").split())
        raise RequestFailed(Fault.BAD_REPLY, f"the answer is not JSON: {shown!r}") from None
    if not isinstance(document, dict):
        raise RequestFailed(Fault.BAD_REPLY, "the answer is JSON but not an object")
    if document.get("error") and not document.get("choices"):
        raise classify(200, document, {})
    return document


def _choice(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if isinstance(message, dict):
            return choices[0], message
    raise RequestFailed(Fault.BAD_REPLY, "the answer has no choice with a message")


def _text_and_reasoning(message: Mapping[str, Any], end_token: str | None, *, cut: bool) -> tuple[str, str]:
    """What was said and what was thought: a field of its own, or everything up to the token that ends it."""
    text = _text(message.get("content"))
    reasoning = next((found for name in _REASONING_FIELDS if isinstance(found := message.get(name), str) and found), "")
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
    function = function if isinstance(function, dict) else {}
    tool, arguments = str(function.get("name") or ""), function.get("arguments")
    if isinstance(arguments, dict):
        return ModelCall(id=identity, tool=tool, arguments=arguments, raw=msgspec.json.encode(arguments).decode())
    raw = arguments if isinstance(arguments, str) else ""
    if not raw.strip():
        return ModelCall(id=identity, tool=tool, arguments={}, raw=raw)
    decoded, problem = read_object(raw)
    if decoded is None:
        return ModelCall(id=identity, tool=tool, raw=raw, error=f"The arguments of `{tool}` are {problem}.")
    return ModelCall(id=identity, tool=tool, arguments=decoded, raw=raw)


def _explain_cut(call: ModelCall) -> ModelCall:
    if call.error is None:
        return call
    return msgspec.structs.replace(
        call, error=f"{call.error} The reply was cut because it reached its greatest length; write less at a time."
    )


def _usage(reported: Any, settings: ModelSettings) -> Usage | None:
    if not isinstance(reported, dict) or not isinstance(reported.get("prompt_tokens"), int):
        return None
    given, made = _count(reported, "prompt_tokens"), _count(reported, "completion_tokens")
    cached = min(given, _count(reported.get("prompt_tokens_details"), "cached_tokens"))
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_tokens=cached,
        reasoning_tokens=_count(reported.get("completion_tokens_details"), "reasoning_tokens"),
        price=settings.price(given, made, cached),
    )


def _count(source: Any, key: str) -> int:
    value = source.get(key) if isinstance(source, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
