"""Tests of agents that resume an episode of another agent pod."""

import itertools
import json

import msgspec
import pytest
import pytest_asyncio

from dgym.agents import AgentContext, Chat, Exchange, StopEpisode
from dgym.agents.model_agent import Loop, Settings
from dgym.env import AsyncRepoEnv
from dgym.episodes import normalize
from dgym.llm import Reply, load_models
from dgym.wire import ToolCall
from tests.fakes.openai_schema import check_request
from tests.fakes.openai_server import Answer, FakeOpenAI
from tests.integration.agents.conftest import as_sent, make_task
from tests.integration.agents.test_thinking_agents import BREAK, GO, LOOK, REPAIR, SOLUTION, SUBMIT, comment
from tests.support.bare_python import bare_python


class Attached:
    """A running session that another agent pod takes over: ``reset`` returns the first observation again."""

    def __init__(self, env, first):
        self._env = env
        self._first = first

    async def reset(self, **_):
        return self._first, self._env.info

    def __getattr__(self, name):
        return getattr(self._env, name)


async def resume(env, first, earlier_replies, server, tmp_path, exchanges=(), **parameters):
    config = tmp_path / "llm.yaml"
    config.write_text(json.dumps({"m": {"model": "scripted", "endpoint": server.url}}))
    models = load_models(config)
    listened = []
    chat = Chat(models.open("m"), session="one", listener=listened.append)
    chat.resume(exchanges, input_tokens=0, output_tokens=0, price=None)
    context = AgentContext(task_name="calc", chat=chat, earlier_replies=earlier_replies, tools=("eval",))
    try:
        await Loop(Attached(env, first), chat, context, Settings(**parameters)).run()
    finally:
        await models.close()
    return listened


async def test_an_agent_continues_a_session_that_a_driver_without_a_model_began(new_task, tmp_path):
    server = FakeOpenAI(script=SOLUTION)
    async with server, AsyncRepoEnv(new_task(), sandbox="none", python=bare_python()) as env:
        first, _ = await env.reset()
        await env.step("pdb b calc.py:3")
        await env.step(ToolCall.invalid("Call a tool."))
        await resume(env, first, {}, server, tmp_path)
        assert env.result is not None
        assert (env.result.resolved, env.result.steps) == (True, 7)
    roles = [message["role"] for message in server.received[0].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


class Interrupted(Exception):
    pass


class Interrupting:
    """Raises after a number of steps, as if the agent pod had died."""

    def __init__(self, env, steps):
        self._env = env
        self._left = steps

    async def step(self, action):
        if not self._left:
            raise Interrupted
        self._left -= 1
        return await self._env.step(action)

    def __getattr__(self, name):
        return getattr(self._env, name)


MANY = Answer(text=" Many. ", reasoning="Hm.", calls=(*LOOK.calls, *BREAK.calls, *GO.calls))
PROSE = Answer(text="I think.")
LONG_SCRIPT = [LOOK, PROSE, MANY, PROSE, REPAIR, comment(1), SUBMIT]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory):
    """The server of an episode that was not interrupted."""
    server = FakeOpenAI(script=LONG_SCRIPT)
    async with server, AsyncRepoEnv(make_task(), sandbox="none", python=bare_python()) as env:
        first, _ = await env.reset()
        await resume(env, first, {}, server, tmp_path_factory.mktemp("whole"))
    return server


@pytest.mark.parametrize("after", range(1, 9))
async def test_another_agent_pod_continues_with_the_same_messages(new_task, tmp_path, whole, after):
    first_half, second_half = (FakeOpenAI(script=LONG_SCRIPT) for _ in range(2))
    async with first_half, second_half, AsyncRepoEnv(new_task(), sandbox="none", python=bare_python()) as env:
        first, _ = await env.reset()
        exchanges, earlier_replies = [], {}

        class Recording(Interrupting):
            async def step(self, action):
                if len(exchanges) > len(earlier_replies):
                    earlier_replies[len(env.trajectory())] = exchanges[-1]
                return await super().step(action)

        config = tmp_path / "llm.yaml"
        config.write_text(json.dumps({"m": {"model": "scripted", "endpoint": first_half.url}}))
        models = load_models(config)
        chat = Chat(models.open("m"), session="one", listener=exchanges.append)
        context = AgentContext(task_name="calc", chat=chat, tools=("eval",))
        with pytest.raises(Interrupted):
            await Loop(Recording(Attached(env, first), after), chat, context, Settings()).run()
        await models.close()
        stored = msgspec.json.decode(msgspec.json.encode(earlier_replies), type=dict[int, Exchange])
        second_half.answer_as(first_half, "one")
        later = await resume(env, first, stored, second_half, tmp_path, exchanges=stored.values())
        assert env.result is not None
        assert env.result.resolved
    expected = [normalized(received.body) for received in whole.received]
    sent = [received.body for received in (*first_half.received, *second_half.received)]
    assert [body for body, _ in itertools.groupby(map(normalized, sent))] == expected
    recorded = [normalize(each) for each in as_sent([*stored.values(), *later], config)]
    assert [each for each, _ in itertools.groupby(recorded)] == [
        normalized(received.body["messages"]) for received in whole.received
    ]
    for body in sent:
        check_request(body)


def normalized(body):
    return normalize(json.dumps(body))


@pytest.mark.parametrize("limit", [2, 3])
async def test_replies_without_a_call_are_counted_across_agent_pods(new_task, tmp_path, limit):
    server = FakeOpenAI(script=[PROSE])
    async with server, AsyncRepoEnv(new_task(), sandbox="none", python=bare_python()) as env:
        first, _ = await env.reset()
        for _ in range(2):
            await env.step(ToolCall.invalid("Call a tool."))
        earlier_replies = {1: Reply(text="I think."), 2: Reply(text="I think.")}
        with pytest.raises(StopEpisode):
            await resume(env, first, earlier_replies, server, tmp_path, max_idle_replies=limit)
    assert len(server.received) == limit - 2
