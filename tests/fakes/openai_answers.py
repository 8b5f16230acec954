"""Answers of the scripted server: the form that policies create, and the form on the wire."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A tool call. ``arguments`` given as a string are sent unchanged, even if they are not valid JSON."""

    tool: str
    arguments: dict[str, Any] | str = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Answer:
    """A reply. A ``mistake`` is not progress of its policy. The server waits ``seconds`` before it first sends it."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    refusal: str | None = None
    finish_reason: str | None = None
    mistake: bool = False
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


def tokens(value: Any) -> int:
    """A token count that grows with the text, as that of a real tokenizer."""
    return len(value if isinstance(value, str) else json.dumps(value)) // 4 + 1


def render(answer: Answer, body: dict[str, Any], number: int, *, usage: bool, cached: int) -> dict[str, Any]:
    """The body of a chat completion. Ids depend only on ``number``, so that runs can be compared."""
    native = bool(body.get("tools"))
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": answer.refusal}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls and native:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.tool, "arguments": call.text},
            }
            for index, call in enumerate(answer.calls)
        ]
    elif answer.calls:
        lines = [f'<call>{{"tool": {json.dumps(call.tool)}, "arguments": {call.text}}}</call>' for call in answer.calls]
        message["content"] = "\n".join([answer.text, *lines]).strip()
    message.update(answer.extra)
    finish = answer.finish_reason or ("tool_calls" if answer.calls and native else "stop")
    document: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": f"{body.get('model', '')}-2026-01-01",
        "system_fingerprint": "fp_fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
    }
    if usage:
        document["usage"] = _usage(body, message, answer, cached)
    return document


def _usage(body: dict[str, Any], message: dict[str, Any], answer: Answer, cached: int) -> dict[str, Any]:
    given = prompt_tokens(body)
    thought = tokens(answer.reasoning) if answer.reasoning else 0
    made = tokens(message) + thought
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "prompt_tokens_details": {"cached_tokens": min(cached, given)},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def prompt_tokens(body: dict[str, Any]) -> int:
    return tokens(body.get("messages", [])) + (tokens(body["tools"]) if body.get("tools") else 0)
