"""Tests of the Responses API: requests fit the types of OpenAI's package, and every status of a response is read."""

import json

import pytest

from dgym.llm import Message, ModelCall
from dgym.llm._config import parse_settings
from dgym.llm._faults import Fault, RequestFailed
from dgym.llm._responses import read_reply, request_body
from tests.fakes.openai_responses import check_request

TOOL = {"name": "view", "description": "Show a file.", "parameters": {"type": "object", "properties": {}}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "view", "arguments": '{"path":  "a"}'}
HEAD = (Message(role="system", content="You debug."), Message(role="user", content="Go."))


def settings(**fields):
    return parse_settings({"model": "m", "api": "responses", "api_key": "sk-key-1", **fields}, {})


def message_item(text, **more):
    part = {"type": "output_text", "text": text, "annotations": [], **more}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def response(*output, status="completed", **fields):
    return json.dumps({"id": "resp_1", "object": "response", "status": status, "output": output, **fields}).encode()


def read(*output, settings_=None, **fields):
    return read_reply(response(*output, **fields), settings_ or settings(), [TOOL])


def test_items_go_back_as_they_were_received():
    unknown = {"type": "new_kind", "data": {"x": [1, None]}}
    reply, _ = read(THOUGHT, unknown, message_item("I look.", logprobs=[]), CALL)
    assert (reply.text, reply.calls[0].arguments, reply.finish_reason) == ("I look.", {"path": "a"}, "stop")
    assistant = Message(role="assistant", content="I look.", calls=reply.calls, extra=reply.extra)
    answer = Message(role="tool", content="1 line", call_id=reply.calls[0].id)
    body = request_body(settings(), [*HEAD, assistant, answer], [TOOL], temperature="0.5")
    assert body["input"][2:-1] == [THOUGHT, unknown, message_item("I look.", logprobs=[]), CALL]
    assert body["input"][-1] == {"type": "function_call_output", "call_id": "call_1", "output": "1 line"}
    assert (body["store"], body["temperature"]) == (False, 0.5)


def test_a_request_has_openais_own_types():
    call = ModelCall(id="call_1", tool="view", arguments={"path": "a"}, raw='{"path": "a"}')
    made = Message(role="assistant", content="", calls=(call,))
    answer = Message(role="tool", content="1 line", call_id="call_1")
    given = {
        "generate_kwargs": {"max_output_tokens": 9, "reasoning": {"effort": "low"}},
        "ignore_kwargs": ["temperature"],
    }
    body = request_body(settings(**given), [*HEAD, made, answer], [TOOL], temperature="0.5")
    check_request(body)
    assert "temperature" not in body
    assert settings(**given).reply_limit == 9
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        check_request({**body, "seed": 1})


def test_reasoning_without_a_following_item_is_not_sent_back():
    cut, _ = read(THOUGHT, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert (cut.finish_reason, cut.extra, cut.calls) == ("length", {}, ())
    both, _ = read(message_item("I look."), THOUGHT)
    assert both.extra == {"output": [message_item("I look.")]}


def test_usage_has_cached_and_reasoning_tokens_and_a_price():
    reported = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 600},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    _, usage = read(CALL, usage=reported, settings_=settings(input_price=1, cached_input_price=0.1, output_price=10))
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens) == (1000, 600, 50, 20)
    assert usage.price == "0.00096"
    assert read(CALL)[1] is None


def test_refusals_and_reasoning_are_read():
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    thought = {**THOUGHT, "summary": [{"type": "summary_text", "text": "Hm."}]}
    reply, _ = read(thought, refused)
    assert (reply.refusal, reply.reasoning, reply.text) == ("No.", "Hm.", "")
    raw = {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "Open."}]}
    assert read(raw, CALL)[0].reasoning == "Open."


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"status": "failed", "error": {"code": "server_error", "message": "m"}}, Fault.OVERLOADED),
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "m"}}, Fault.RATE_LIMITED),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "flagged"}}, Fault.FILTERED),
        ({"status": "failed", "error": None}, Fault.OVERLOADED),
        ({"status": "in_progress"}, Fault.BAD_REPLY),
        ({"status": "cancelled"}, Fault.BAD_REPLY),
        ({"status": None}, Fault.BAD_REPLY),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, Fault.FILTERED),
        ({"output": None}, Fault.BAD_REPLY),
        ({"output": ["x"]}, Fault.BAD_REPLY),
        (
            {"error": {"message": "maximum context length is 9000 tokens", "code": "context_length_exceeded"}},
            Fault.TOO_LONG,
        ),
    ],
)
def test_every_other_end_is_a_fault(fields, fault):
    body = {**json.loads(response()), **fields}
    with pytest.raises(RequestFailed) as caught:
        read_reply(json.dumps(body).encode(), settings())
    assert caught.value.fault is fault
