"""Common functions of the servers of calls: parse the arguments of a call, and create answers and errors."""

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from dgym.decoding import DECODE_ERRORS
from dgym.wire.calls import Call
from dgym.wire.http import CallError, ErrorBody, ErrorCode
from dgym.wire.signing import content_digest

Method = Callable[..., Any]
"""Serves a call. Arguments: the body, and the parameters as keywords. Returns the answer or an awaitable of it."""

_BODY_SECONDS = 60.0
_CHUNK_BYTES = 256 * 1024
_UNREAD = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.TOO_LARGE)
"""Errors after which the rest of the request is not read."""


async def serve(request: web.Request, call: Call[Any, Any], method: Method, *, content: str | None = None) -> Any:
    """The answer of ``method`` to a request of ``call``. ``content`` is the SHA-256 that the body must have.

    Raises:
        CallError: The body or a parameter is invalid.
    """
    parameters = {each.keyword: each.read(_text(request, each.place, each.name)) for each in call.parameters}
    arguments: list[Any] = []
    if call.content_type:
        _check_length(request, call.limit)
        arguments.append(request.content.iter_chunked(_CHUNK_BYTES))
    elif call.request is not None:
        arguments.append(await _read_body(request, call, content))
    answer = method(*arguments, **parameters)
    if inspect.isawaitable(answer):
        answer = await answer
    if call.content_type and content is not None and answer.sha256 != content:
        raise _wrong_content()
    return answer


def json_response(value: Any, *, status: int = 200) -> web.Response:
    """An answer as JSON."""
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # The output of a program or the call of a model may contain half of a surrogate pair.
        body = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")
    return web.Response(body=body, status=status, content_type="application/json")


def refusal(body: ErrorBody) -> web.Response:
    """The answer with the error of a refused call."""
    response = json_response(body, status=body.code.status)
    if body.code in _UNREAD:
        response.force_close()
    return response


def _text(request: web.Request, place: str, name: str) -> str | None:
    texts = {"path": request.match_info, "query": request.query, "header": request.headers}[place]
    return texts.get(name)


async def _read_body(request: web.Request, call: Call[Any, Any], content: str | None) -> Any:
    """The decoded body. An empty body is decoded as ``{}``."""
    _check_length(request, call.limit)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > call.limit:
                    raise _too_large(call.limit)
    except TimeoutError:
        raise CallError(ErrorCode.INVALID_ARGUMENT, "the body did not arrive") from None
    if content is not None and content_digest(body) != content:
        raise _wrong_content()
    try:
        return msgspec.json.decode(bytes(body) or b"{}", type=call.request)
    except DECODE_ERRORS as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"the body is invalid: {error}") from None


def _check_length(request: web.Request, limit: int) -> None:
    """Refuse a body whose announced length is above ``limit``."""
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> CallError:
    return CallError(ErrorCode.TOO_LARGE, f"the body has more than {limit:,} bytes")


def _wrong_content() -> CallError:
    return CallError(ErrorCode.INVALID_ARGUMENT, "the body does not have the signed digest")
