"""Tests of models through the unmodified ``openai`` package and a server with real HTTP."""

import asyncio
import re
import resource

import pytest

from dgym.errors import ContentFiltered, ContextLengthExceeded, InfrastructureError, ModelError
from dgym.llm import Message
from dgym.llm._faults import TREATMENTS, Fault
from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.fakes.openai_server import Fault as Scripted

TASK = Message(role="user", content="There is a bug.")
TOOLS = [
    {"name": "view", "description": "Show.", "parameters": {"type": "object", "properties": {"path": {}}}},
    {"name": "eval", "description": "Run.", "parameters": {"type": "object", "properties": {}}},
]
LOOK = Answer(text="I look.", reasoning="Where is it?", calls=(Call("view", {"path": "a.py"}),))


def ask(model, *messages, session="episode-1", **fields):
    return model.complete(messages or (TASK,), TOOLS, session=session, **fields)


async def test_a_reply_with_everything(opened):
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK]), input_price=1, output_price=2)
    reply = await ask(model, seed=7, temperature="0.2")
    assert (reply.text, reply.reasoning, reply.tries) == ("I look.", "Where is it?", 1)
    assert reply.calls[0].action == {"tool": "view", "arguments": {"path": "a.py"}}
    assert reply.usage.exact
    assert reply.usage.reasoning_tokens > 0
    assert float(reply.usage.price) > 0
    assert 0 < reply.seconds_model < 30
    (received,) = server.received
    assert received.headers["accept-encoding"] == "identity"
    assert received.body["seed"] == 7
    assert received.body["temperature"] == 0.2
    assert received.body["messages"] == [{"role": "user", "content": "There is a bug."}]
    assert received.headers["authorization"] == "Bearer sk-proj-0123456789abcdef"


async def test_parameters_unknown_to_the_openai_package_are_sent(opened):
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "max_tokens": 9}
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK]), generate_kwargs=extra)
    await ask(model)
    assert extra.items() <= server.received[0].body.items()
    assert model.reply_limit == 9


async def test_a_model_without_native_calls_debugs_too(opened):
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK]), tool_calling="text")
    reply = await ask(model)
    assert reply.calls[0].action == {"tool": "view", "arguments": {"path": "a.py"}}
    assert "tools" not in server.received[0].body
    assert "- view [path]: Show." in server.received[0].body["messages"][0]["content"]


OVERSIZED = ("endless", "endless_error", "compressed")
PASSING = {
    "rate_limit": Fault.RATE_LIMITED,
    "server_error": Fault.OVERLOADED,
    "overloaded": Fault.OVERLOADED,
    "bad_gateway": Fault.OVERLOADED,
    "error_in_reply": Fault.OVERLOADED,
    "reset": Fault.CONNECTION,
    "cut_body": Fault.CONNECTION,
    "not_json": Fault.BAD_REPLY,
    "no_choices": Fault.BAD_REPLY,
    **dict.fromkeys(OVERSIZED, Fault.BAD_REPLY),
    "filtered_prompt": Fault.FILTERED,
    "filtered_reply": Fault.FILTERED,
}


@pytest.mark.attack("bombs")
@pytest.mark.parametrize("kind", OVERSIZED)
async def test_a_response_of_any_size_takes_little_memory(opened, kind):
    _, model, _ = await opened(server=FakeOpenAI(script=[LOOK], faults=[kind]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (await ask(model)).tries == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


@pytest.mark.parametrize("kind", PASSING)
async def test_a_temporary_failure_is_retried_without_an_error(opened, kind):
    server, model, waits = await opened(server=FakeOpenAI(script=[LOOK], faults=[kind]))
    reply = await ask(model)
    assert (reply.text, reply.tries, len(waits)) == ("I look.", 2, 1)
    assert reply.seconds_model > 0
    assert [one.body for one in server.received] == [server.received[0].body] * 2


@pytest.mark.parametrize("kind", PASSING)
async def test_a_repeated_temporary_failure_raises_after_the_maximum_number_of_tries(opened, kind):
    server, model, waits = await opened(server=FakeOpenAI(script=[LOOK], faults=[kind] * 100))
    tries = TREATMENTS[PASSING[kind]].tries
    with pytest.raises(ModelError, match=f"model mine: {PASSING[kind]} after {tries} tries: .*; ") as caught:
        await ask(model)
    assert (len(server.received), len(waits)) == (tries, tries - 1)
    assert isinstance(caught.value, InfrastructureError)
    assert caught.value.reason == "ModelError"
    assert isinstance(caught.value, ContentFiltered) == (PASSING[kind] is Fault.FILTERED)


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "reset"])
async def test_the_maximum_number_of_tries_can_be_configured(opened, kind):
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK], faults=[kind] * 19), max_tries=20)
    assert (await ask(model)).tries == 20
    server.faults.extend([Scripted(kind)] * 2)
    _, model, _ = await opened(server=server, max_tries=2)
    with pytest.raises(ModelError, match="after 2 tries"):
        await ask(model)


@pytest.mark.parametrize("kind", ["unauthorized", "forbidden", "not_found", "rejected", "no_quota"])
async def test_a_permanent_failure_is_not_retried(opened, kind):
    server, model, waits = await opened(server=FakeOpenAI(faults=[kind] * 100))
    with pytest.raises(ModelError, match=r"model mine: .*; (check|put|the )"):
        await ask(model)
    assert (len(server.received), waits) == (1, [])


async def test_a_retry_after_of_the_server_is_respected(opened):
    fault = Scripted("rate_limit", retry_after="17")
    _, model, waits = await opened(server=FakeOpenAI(script=[LOOK], faults=[fault]))
    await ask(model)
    assert 17 <= waits[0] <= 18


async def test_long_waits_are_reported_and_short_ones_are_not(opened):
    faults = [Scripted("rate_limit", retry_after=wait) for wait in ("2", "21", "61")]
    _, model, _ = await opened(server=FakeOpenAI(script=[LOOK, LOOK], faults=faults))
    reported = []
    await ask(model, waiting=reported.append)
    await ask(model, waiting=reported.append)
    assert [re.sub(r"\d+ s", "N s", text) for text in reported] == [
        "waiting for the model: rate limited, try 2, again in N s",
        "waiting for the model: rate limited, try 3, again in N s",
        "",
    ]


async def test_a_model_that_hangs_is_reported(opened):
    server = FakeOpenAI(script=[LOOK], faults=["hang"])
    _, model, _ = await opened(server=server, timeout_seconds=0.5, noticed_seconds=0.2)
    reported = []
    await ask(model, waiting=reported.append)
    first, *_, last = reported
    assert first == "waiting for the model: no answer yet, try 1, timeout_seconds 0.5"
    assert last == ""


async def test_waits_for_configured_limits_are_reported(opened):
    server = FakeOpenAI(script=[LOOK] * 3, latency=0.3)
    _, model, _ = await opened(server=server, max_concurrency=1, model="places", noticed_seconds=0.1)
    reported = []
    await asyncio.gather(ask(model), ask(model, waiting=reported.append))
    assert "waiting for the model: 1 requests are already in flight (max_concurrency)" in reported
    _, model, _ = await opened(server=server, requests_per_minute=600, model="rate", noticed_seconds=0.0)
    reported = []
    await asyncio.gather(*(ask(model, session=f"e{n}", waiting=reported.append) for n in range(70)))
    assert "waiting for the model: its limit of requests or tokens per minute is reached, again in 0 s" in reported


async def test_a_daily_limit_is_not_waited_for(opened):
    fault = Scripted("rate_limit", retry_after="40000")
    server, model, _ = await opened(server=FakeOpenAI(faults=[fault] * 9))
    with pytest.raises(ModelError, match="rate limited"):
        await ask(model)
    assert len(server.received) == 1


async def test_a_server_that_never_answers_times_out(opened):
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK], faults=["hang"] * 9), timeout_seconds=0.4)
    with pytest.raises(ModelError, match="timed out after 3 tries"):
        await ask(model)
    assert len(server.received) == 3


async def test_an_unused_port_raises_after_six_tries(opened, unused_port):
    _, model, _ = await opened(endpoint=f"http://127.0.0.1:{unused_port}/v1")
    with pytest.raises(ModelError, match=r"connection failed after 6 tries: .*check the endpoint's address"):
        await ask(model)


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_a_prompt_that_is_too_long_raises_with_the_limit_after_one_request(opened):
    server, model, _ = await opened(server=FakeOpenAI(context_limit=400))
    assert model.context_limit is None
    with pytest.raises(ContextLengthExceeded) as caught:
        await ask(model, Message(role="user", content="x" * 4000))
    assert caught.value.limit == 400
    assert model.context_limit == 400
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("malformed_arguments", ["The arguments of `view` are not valid JSON"]),
        ("truncated_arguments", ["reached its greatest length"]),
        ("no_call", []),
        ("two_calls", [None, None]),
        ("unknown_tool", [None]),
        ("refusal", []),
    ],
)
@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_the_models_own_mistakes_are_replies(opened, kind, calls, tool_calling):
    server, model, waits = await opened(server=FakeOpenAI(faults=[kind]), tool_calling=tool_calling)
    reply = await ask(model)
    assert (len(server.received), waits) == (1, [])
    assert len(reply.calls) == len(calls)
    for call, complaint in zip(reply.calls, calls, strict=True):
        assert (call.error is None) == (complaint is None)
        if complaint and tool_calling == "native":
            assert complaint in call.error
    assert bool(reply.refusal) == (kind == "refusal")


async def test_without_usage_the_numbers_are_estimates(opened):
    _, model, _ = await opened(server=FakeOpenAI(script=[LOOK], usage=False), input_price=1)
    usage = (await ask(model)).usage
    assert not usage.exact
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    assert usage.price is not None


async def test_token_counts_are_within_15_percent_of_the_reported_numbers(opened):
    _, model, _ = await opened(server=FakeOpenAI(script=[LOOK]))
    messages = [TASK]
    for _ in range(10):
        counted = model.count_tokens(messages, TOOLS)
        reply = await ask(model, *messages)
        if len(messages) > 1:
            assert abs(counted - reply.usage.input_tokens) < 0.15 * reply.usage.input_tokens
        messages += [
            Message(role="assistant", content=reply.text, calls=reply.calls),
            Message(role="tool", content="def total(items):\n    return sum(items)\n" * 20, call_id=reply.calls[0].id),
        ]


async def test_an_episode_has_one_endpoint_and_one_session_header(opened):
    async with FakeOpenAI(script=[LOOK]) as one, FakeOpenAI(script=[LOOK]) as two:
        _, model, _ = await opened(server=one, endpoint=None, endpoints=[one.url, two.url])
        for _ in range(3):
            for number in range(6):
                await ask(model, session=f"e{number}")
    sessions = [{request.session for request in server.received} for server in (one, two)]
    assert sorted(len(each) for each in sessions) == [3, 3]
    assert not sessions[0] & sessions[1]


async def test_an_episode_moves_when_its_endpoint_is_gone(opened, unused_port):
    gone = f"http://127.0.0.1:{unused_port}/v1"
    server = FakeOpenAI(script=[LOOK])
    async with server:
        _, model, waits = await opened(server=server, endpoint=None, endpoints=[gone, server.url])
        for number in range(10):
            assert (await ask(model, session=f"e{number}")).text == "I look."
    assert len(waits) == 3, "one episode found out, for all"


async def test_requests_at_once_are_limited(opened):
    server, model, _ = await opened(server=FakeOpenAI(script=[LOOK], latency=0.2), max_concurrency=3)
    replies = await asyncio.gather(*(ask(model, session=f"e{number}") for number in range(12)))
    assert len(replies) == 12
    assert server.most_at_once == 3
    assert max(reply.seconds_queue for reply in replies) > 0.04


async def test_a_slow_model_does_not_delay_another_model(opened):
    _, slow, _ = await opened(server=FakeOpenAI(faults=["hang"] * 50))
    _, quick, _ = await opened(server=FakeOpenAI(script=[LOOK]))
    waiting = [asyncio.create_task(ask(slow, session=f"s{number}")) for number in range(50)]
    async with asyncio.timeout(90):
        for _ in range(5):
            assert (await ask(quick)).text == "I look."
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
