"""Responses API of the scripted server: requests are converted to chat completions, answers are lists of items."""

import json
from typing import Any

from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import ConfigDict, TypeAdapter

from tests.fakes.openai_answers import Answer, prompt_tokens, tokens
from tests.fakes.openai_schema import exhaust

# A list, because TypeAdapter does not accept a configuration for a TypedDict.
_REQUESTS = TypeAdapter(list[ResponseCreateParamsNonStreaming], config=ConfigDict(extra="forbid"))


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The request in the form of a chat completion request."""
    tools = [{"type": "function", "function": {**tool, "type": None}} for tool in body.get("tools") or []]
    return {**body, "messages": [_message(item) for item in body["input"]], **({"tools": tools} if tools else {})}


def _message(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": item["call_id"], "function": function}]}
    if item["type"] == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    if item["type"] == "reasoning":
        return {"role": "assistant", "content": None}
    content = item["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return {"role": item["role"], "content": text}


def problem(body: dict[str, Any]) -> str | None:
    """The reason why OpenAI's server would reject the request, besides violations of the schema."""
    outputs = {item["call_id"] for item in body["input"] if item["type"] == "function_call_output"}
    for item, following in zip(body["input"], [*body["input"][1:], {}], strict=True):
        if item["type"] == "reasoning" and following.get("type") not in ("reasoning", "message", "function_call"):
            return f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
        if item["type"] == "reasoning" and not item.get("encrypted_content"):
            return f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
        if item["type"] == "function_call" and item["call_id"] not in outputs:
            return f"No tool output found for function call {item['call_id']}."
    return None


def render(answer: Answer, body: dict[str, Any], number: int, *, usage: bool, cached: int) -> dict[str, Any]:
    """The body of a response."""
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        thought: dict[str, Any] = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
        thought["summary"].append({"type": "summary_text", "text": answer.reasoning})
        if "reasoning.encrypted_content" in body.get("include", ()):
            thought["encrypted_content"] = f"encrypted {number}"
        output.append(thought)
    cut = answer.finish_reason == "length"
    status = "incomplete" if cut or answer.finish_reason == "content_filter" else "completed"
    text, native = answer.text, bool(body.get("tools"))
    if answer.calls and not native:
        calls = [f'<call>{{"tool": {json.dumps(call.tool)}, "arguments": {call.text}}}</call>' for call in answer.calls]
        text = "\n".join([text, *calls]).strip()
    parts: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}] if text else []
    parts += [{"type": "refusal", "refusal": answer.refusal}] if answer.refusal else []
    if parts:
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status, "content": parts}
        output.append(message)
    if native:
        output += [
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "name": call.tool,
                "arguments": call.text,
                "status": status,
            }
            for index, call in enumerate(answer.calls)
        ]
    document: dict[str, Any] = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": body.get("model", ""),
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools", []),
    }
    if status == "incomplete":
        document["incomplete_details"] = {"reason": "max_output_tokens" if cut else "content_filter"}
    if usage:
        given, made = prompt_tokens(as_chat(body)), tokens(output)
        document["usage"] = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": min(cached, given), "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": tokens(answer.reasoning) if answer.reasoning else 0},
            "total_tokens": given + made,
        }
    Response.model_validate(document)
    return document


def check_request(body: dict[str, Any]) -> None:
    """Raise if the body does not conform to the types of OpenAI's package. Extra fields are errors."""
    exhaust(_REQUESTS.validate_python([body], strict=True))
    assert problem(body) is None, problem(body)
