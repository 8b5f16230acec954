"""Faults of the scripted server: every way in which a model server can fail to answer."""

import asyncio
import gzip
import json
from dataclasses import dataclass

from aiohttp import web

from tests.fakes import openai_policies as policies
from tests.fakes.openai_answers import Answer

MISTAKES = {
    "malformed_arguments": policies.MALFORMED,
    "truncated_arguments": policies.TRUNCATED,
    "no_call": policies.NO_CALL,
    "two_calls": policies.TWO_CALLS,
    "unknown_tool": policies.UNKNOWN_TOOL,
    "wrong_arguments": policies.WRONG_ARGUMENTS,
    "refusal": policies.REFUSAL,
    "filtered_reply": Answer(finish_reason="content_filter", mistake=True),
    "cut_in_thought": Answer(text="<think>Let me see, the loop", finish_reason="length", mistake=True),
}
"""Faults that are replies, that is mistakes of the model."""

_INVALID = "invalid_request_error"

_ERRORS: dict[str, tuple[int, str, str | None, str | None]] = {
    "rate_limit": (429, "Rate limit reached for requests", "requests", "rate_limit_exceeded"),
    "no_quota": (429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
    "server_error": (500, "The server had an error", "server_error", None),
    "overloaded": (503, "The engine is overloaded", "server_error", None),
    "unauthorized": (401, "Incorrect API key provided: {key}.", _INVALID, "invalid_api_key"),
    "forbidden": (403, "You have no access to this model", _INVALID, None),
    "not_found": (404, "The model does not exist", _INVALID, "model_not_found"),
    "rejected": (400, "Unsupported parameter: 'seed'", _INVALID, "unsupported_parameter"),
    "context_length": (
        400,
        "This model's maximum context length is {limit} tokens. However, your messages resulted in more.",
        _INVALID,
        "context_length_exceeded",
    ),
    "filtered_prompt": (400, "The response was filtered due to the prompt", None, "content_filter"),
}
"""HTTP status, message, type and code of each error."""

KINDS = (
    *_ERRORS, *MISTAKES, "bad_gateway", "reset", "hang", "not_json", "cut_body", "no_choices", "error_in_reply",
    "endless", "endless_error", "compressed",
)  # fmt: skip


_LARGEST = 2 * 2**30
"""Size in bytes of the largest body."""


@dataclass(frozen=True)
class Fault:
    """A fault. ``retry_after`` is sent as the header ``Retry-After``."""

    kind: str
    retry_after: str | None = None
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is named {self.kind!r}; there are: {', '.join(KINDS)}")


async def fail(fault: Fault, request: web.Request, *, limit: int | None = None) -> web.StreamResponse:
    """Answer with the fault. ``limit`` is the model's context length."""
    headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
    if fault.kind in _ERRORS:
        status, message, kind, code = _ERRORS[fault.kind]
        key = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("api-key", "")
        message = message.replace("{key}", key).replace("{limit}", str(limit or 4096))
        return web.json_response(
            {"error": {"message": message, "type": kind, "code": code}}, status=status, headers=headers
        )
    if fault.kind == "bad_gateway":
        return web.Response(status=502, text="<html>Bad gateway</html>", content_type="text/html", headers=headers)
    if fault.kind == "reset":
        return _abort(request)
    if fault.kind == "hang":
        await asyncio.sleep(fault.seconds)
        return _abort(request)
    if fault.kind == "cut_body":
        return await _cut(request)
    if fault.kind in ("endless", "endless_error"):
        return await _endless(request, status=200 if fault.kind == "endless" else 500)
    if fault.kind == "compressed":
        encoding = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        return web.Response(body=gzip.compress(bytes(2**20)), headers=encoding)
    documents = {
        "not_json": "<html>Welcome</html>",
        "no_choices": json.dumps({"id": "x", "choices": []}),
        "error_in_reply": json.dumps({"error": {"message": "Upstream failed", "code": 502}}),
    }
    return web.Response(text=documents[fault.kind], content_type="application/json")


def _abort(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def _endless(request: web.Request, *, status: int) -> web.StreamResponse:
    """Send a body of 2 GiB, as long as the client reads it."""
    response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(_LARGEST // 2**20):
        await response.write(bytes(2**20))
    return response


async def _cut(request: web.Request) -> web.StreamResponse:
    """Send a body that is shorter than its Content-Length."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"id": "x", "choi')
    return _abort(request)
