"""Tests of the span of a model request: attributes that it always has, and contents that it has only on request."""

import json

from dgym.agents import Chat
from dgym.agents._chat import CONTENT_CHARACTERS, newest
from dgym.llm import Message
from dgym.tracing._spans import OpenSpan, Trace
from tests.fakes.openai_server import Answer, FakeOpenAI

PROMPT = [Message(role="system", content="be brief"), Message(role="user", content="why?")]


async def asked(opened, *, content):
    _, model, _ = await opened(server=FakeOpenAI(script=[Answer(text="Because.")]))
    spans = []
    trace = Trace("1" * 32, spans.append, conversation="uid", content=content)
    chat = Chat(model, session="s", seed=7, temperature="0.5")
    with OpenSpan(trace, "", "invoke_agent test", "internal"):
        await chat.ask(PROMPT, ())
    return spans[0], chat


async def test_the_span_of_a_request_has_token_counts_and_no_prompt(opened):
    span, chat = await asked(opened, content=False)
    assert (span.name, span.kind) == ("chat mine", "client")
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "uid",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "mine",
        "gen_ai.request.seed": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": chat.input_tokens,
        "gen_ai.usage.output_tokens": chat.output_tokens,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert wanted.items() <= span.attributes.items()
    assert chat.input_tokens > 0
    assert "brief" not in str(span.attributes)


async def test_prompts_and_replies_are_recorded_on_request(opened):
    span, _ = await asked(opened, content=True)
    system, user = json.loads(span.attributes["gen_ai.input.messages"])
    assert system == {"role": "system", "parts": [{"type": "text", "content": "be brief"}]}
    assert user["parts"][0]["content"] == "why?"
    (reply,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert (reply["role"], reply["finish_reason"]) == ("assistant", "stop")


def test_a_long_prompt_is_recorded_by_its_newest_messages():
    messages = [{"role": "user", "parts": [{"content": str(number) * 40_000}]} for number in range(3)]
    assert newest(messages) == messages[2:]
    assert newest([{"role": "user", "parts": [{"content": "x" * CONTENT_CHARACTERS}]}]) == []
