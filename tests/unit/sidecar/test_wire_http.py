"""Tests of the messages between drivers and sidecars."""

import msgspec
import pytest

from dgym.errors import (
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    SandboxLost,
    SetupFailed,
    VerifierFailed,
)
from dgym.sidecar._api import describe
from dgym.wire import ToolCall
from dgym.wire.http import (
    CallError,
    ErrorBody,
    ErrorCode,
    PrepareRequest,
    Role,
    StepRequest,
    error_body,
    make_token,
    token_digest,
)
from dgym.wire.server import json_response


def test_the_codes_are_a_closed_set():
    words = (
        "unauthenticated forbidden not_found invalid_argument conflict gap superseded attempt_over too_large "
        "limit_reached busy sandbox_lost setup_failed verifier_failed internal"
    )
    assert [code.value for code in ErrorCode] == words.split()
    assert all(400 <= code.status < 600 for code in ErrorCode)
    assert [code for code in ErrorCode if code.retryable] == [ErrorCode.BUSY]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"code": "oops", "message": ""}', type=ErrorBody)


def test_an_error_is_encoded_as_code_message_and_retryable():
    body = msgspec.json.decode(msgspec.json.encode(error_body(ErrorCode.BUSY, "wait")))
    assert body == {"code": "busy", "message": "wait", "retryable": True}


def test_bodies_are_camel_case_and_unknown_fields_are_ignored():
    sent = b'{"task": {}, "tools": ["view", {"name": "eval", "options": {"a": 1}}], "maxSteps": 7, "new": 1}'
    request = msgspec.json.decode(sent, type=PrepareRequest)
    assert (request.max_steps, request.tools[1].options) == (7, {"a": 1})
    step = msgspec.json.decode(b'{"tool": "t", "arguments": {"x": 1}, "usage": {"inputTokens": 3}}', type=StepRequest)
    assert step.given == ToolCall(tool="t", arguments={"x": 1})
    assert step.usage.input_tokens == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CallError(ErrorCode.GAP, "m"), "gap"),
        (ConflictError("m"), "conflict"),
        (EpisodeOver("m"), "attempt_over"),
        (SandboxLost("m"), "sandbox_lost"),
        (SetupFailed("m"), "setup_failed"),
        (VerifierFailed("m"), "verifier_failed"),
        (InfrastructureError("m"), "internal"),
    ],
)
def test_every_exception_has_a_code(error, code):
    assert isinstance(error, DgymError)
    assert (describe(error).code, describe(error).message) == (code, "m")


def test_messages_of_unexpected_exceptions_are_not_sent_to_callers():
    body = describe(ValueError("secret"))
    assert body.code is ErrorCode.INTERNAL
    assert "secret" not in body.message


def test_tokens_differ_by_everything_they_are_made_of():
    tokens = {
        make_token(key, episode_uid=uid, attempt=attempt, role=role)
        for key in (b"a", b"b")
        for uid in ("1", "2")
        for attempt in (1, 2)
        for role in Role
    }
    assert len(tokens) == 24
    token = make_token(b"a", episode_uid="1", attempt=1, role=Role.DRIVE)
    assert token in tokens
    assert token not in token_digest(token)


def test_half_a_surrogate_pair_does_not_stop_an_answer():
    assert json_response({"text": "a\ud800b"}).body == b'{"text": "a?b"}'
