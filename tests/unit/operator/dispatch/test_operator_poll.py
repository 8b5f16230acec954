"""Tests of the poller with agent pods that answer, hang, appear and disappear, over HTTP."""

import asyncio
import contextlib
import logging
import socket
from random import Random

import aiohttp
import pytest
from aiohttp import web

from dgym.kube import SystemClock, WorkQueue
from dgym.wire.client import PodTransport
from dgym_operator.actions import ApiReader
from dgym_operator.app._health import Announcer, KeyHealth
from dgym_operator.app._metrics import Metrics, Snapshot
from dgym_operator.cache import AgentPods, Cache
from dgym_operator.calls import AgentPodClient
from dgym_operator.chart_values import NamespacePolicies
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import AgentPodPoller, Deliveries, Dispatcher
from dgym_operator.settings import Settings

KEY = b"k" * 32


class Agent:
    """An agent pod that counts requests. It answers while ``may_answer`` is set."""

    def __init__(self):
        self.asked = 0
        self.draining = False
        self.status = 200
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, _request):
        self.asked += 1
        await self.may_answer.wait()
        if self.status != 200:
            return web.Response(status=self.status, text="the token is another")
        return web.json_response({"incarnation": "1", "slots": 4, "draining": self.draining})


@contextlib.asynccontextmanager
async def listening(agent, address, port):
    application = web.Application()
    application.router.add_get("/v1/assignments", agent.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    try:
        yield agent
    finally:
        agent.may_answer.set()
        await runner.cleanup()


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def cache(port):
    clock = SystemClock()
    return Cache(clock, AgentPods(clock, port=port, silence_seconds=30.0), Policy())


@pytest.fixture
def looked_at():
    return []


@pytest.fixture
async def polling(cache, client, events, looked_at):
    """Starts the poller with a given interval."""
    running = []
    async with aiohttp.ClientSession() as session:
        agents = AgentPodClient(PodTransport(session, deadline_seconds=60.0), KEY, SystemClock())
        deliveries = Deliveries(
            cache,
            reader=ApiReader(client, cache),
            client=agents,
            events=events,
            enqueue=lambda key: None,
            queue=WorkQueue(clock=cache.clock, random=Random(1)),
            key=KEY,
            counter=Metrics(Snapshot).assignments,
            settings=Settings(),
        )
        dispatcher = Dispatcher(
            cache, head_start=0, stuck_limit=5, policies=NamespacePolicies(), enqueue=lambda key, **_: None
        )

        def start(interval):
            poller = AgentPodPoller(
                cache,
                client=agents,
                deliveries=deliveries,
                dispatcher=dispatcher,
                enqueue=looked_at.append,
                token_refused=KeyHealth(cache.agent_pods, Announcer(Settings(), events)).refused,
                interval_seconds=interval,
            )
            running.append(asyncio.ensure_future(poller.run()))

        yield start
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0)


async def test_an_agent_pod_that_hangs_does_not_delay_polls_of_others(cache, objects, port, polling):
    hung = Agent()
    hung.may_answer.clear()
    async with listening(hung, "127.0.0.2", port), listening(Agent(), "127.0.0.3", port) as quick:
        objects.agent("hung", podIP="127.0.0.2")
        objects.agent("quick", podIP="127.0.0.3")
        polling(0.01)
        await until(lambda: quick.asked >= 5)
        assert hung.asked == 1
        hung.may_answer.set()
        await until(lambda: hung.asked >= 3)


async def test_why_an_agent_did_not_answer_is_kept_until_it_does(cache, objects, port, polling):
    agent = objects.agent("down", podIP="127.0.0.14")
    polling(0.01)
    await until(lambda: f"127.0.0.14:{port}" in agent.failure)
    async with listening(Agent(), "127.0.0.14", port):
        await until(lambda: agent.report is not None)
        assert agent.failure == ""


async def test_a_new_agent_is_asked_at_once(cache, objects, port, polling):
    async with listening(Agent(), "127.0.0.4", port) as first, listening(Agent(), "127.0.0.5", port) as second:
        objects.agent("first", podIP="127.0.0.4")
        polling(3600.0)
        await until(lambda: first.asked)
        objects.agent("second", podIP="127.0.0.5")
        await until(lambda: cache.agent_pods.open_slots(cache.agent_pods.get("uid-second")) == 4)
        assert (first.asked, second.asked) == (1, 1)


async def test_a_removed_agent_pod_is_not_polled(cache, objects, port, polling):
    async with listening(Agent(), "127.0.0.6", port) as gone, listening(Agent(), "127.0.0.7", port) as there:
        objects.agent("gone", podIP="127.0.0.6")
        objects.agent("there", podIP="127.0.0.7")
        polling(0.01)
        await until(lambda: gone.asked)
        cache.agent_pods.remove("uid-gone")
        asked = gone.asked
        await until(lambda: there.asked >= asked + 5)
        assert gone.asked <= asked + 1


async def test_an_assignment_unknown_to_a_draining_agent_pod_is_reconciled(cache, objects, port, polling, looked_at):
    async with listening(Agent(), "127.0.0.8", port) as agent:
        agent.draining = True
        objects.agent("agent", podIP="127.0.0.8")
        objects.episode("fix", attempt=1, podName="fix-1", assignment={"agentPodUID": "uid-agent", "epoch": 1})
        polling(3600.0)
        await until(lambda: ("team", "fix") in looked_at)


async def test_episodes_of_an_agent_pod_that_answers_again_are_reconciled(cache, objects, port, polling, looked_at):
    async with listening(Agent(), "127.0.0.9", port):
        agent = objects.agent("agent", podIP="127.0.0.9")
        episode = objects.episode("fix", attempt=1, assignment={"agentPodUID": "uid-agent", "epoch": 1})
        polling(0.01)
        await until(lambda: agent.report is not None)
        looked_at.clear()
        agent.answered -= 60
        assert cache.agent_pods.view(episode).lost_since is not None
        await until(lambda: ("team", "fix") in looked_at)
        assert cache.agent_pods.view(episode).lost_since is None


async def test_a_refused_token_is_logged_once_and_not_at_every_poll(cache, objects, port, polling, caplog):
    caplog.set_level(logging.INFO)
    async with listening(Agent(), "127.0.0.10", port) as agent:
        agent.status = 401
        objects.agent("agent", podIP="127.0.0.10")
        polling(0.01)
        await until(lambda: agent.asked >= 5)
        agent.status = 200
        await until(lambda: cache.agent_pods.get("uid-agent").report is not None)
    logged = [record.getMessage() for record in caplog.records if "answer" in record.getMessage()]
    assert logged == [
        "an agent pod does not answer: the answer has status 401: the token is another",
        "an agent pod answers again",
    ]
