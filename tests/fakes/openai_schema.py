"""Check of requests against OpenAI's schema: the types of its package, without extra fields."""

import copy
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import ConfigDict, TypeAdapter

RETURNED = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "provider_specific_fields")
"""Fields of other servers' messages, which clients send back. OpenAI's own servers do not send them."""

# A list, because TypeAdapter does not accept a configuration for a TypedDict.
_REQUESTS = TypeAdapter(list[CompletionCreateParamsNonStreaming], config=ConfigDict(extra="forbid"))


def check_request(body: dict[str, Any]) -> None:
    """Raise pydantic's ValidationError if ``body`` is not a request to ``/v1/chat/completions``."""
    body = copy.deepcopy(body)
    for message in body.get("messages", ()):
        if message.get("role") == "assistant":
            for name in RETURNED:
                message.pop(name, None)
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                part.pop("cache_control", None)  # not part of OpenAI's API, sent only if configured
    exhaust(_REQUESTS.validate_python([body], strict=True))


def exhaust(value: Any) -> None:
    """Read every iterable in ``value``, because pydantic checks the items of an iterable only when they are read."""
    if isinstance(value, dict):
        for each in value.values():
            exhaust(each)
    elif not isinstance(value, str) and hasattr(value, "__iter__"):
        for each in value:
            exhaust(each)
