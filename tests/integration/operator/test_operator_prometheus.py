"""Tests with a real Prometheus that scrapes an operator and an agent pod: panels have data, failures fire alerts."""

import contextlib

import pytest
from aiohttp import web

from dgym.agents import Exchange
from dgym.episodes.agent_pod import Metrics as AgentMetrics
from dgym.episodes.agent_pod._telemetry import CONTENT_TYPE, Gauges
from dgym.llm import TokenUsage
from dgym.wire import EndReason, Observation, Step, ToolCall
from dgym.wire.assignments import AssignmentState
from tests.integration.monitoring import server
from tests.integration.monitoring.conftest import program
from tests.integration.monitoring.expressions import queries
from tests.integration.operator.conftest import TASK
from tests.integration.operator.peers import until


class AgentExporter:
    """Serves the metrics of an agent process. The fake agent pods of these tests have no metrics."""

    def __init__(self) -> None:
        self.metrics = AgentMetrics()
        self.failures = 0
        gauges = Gauges(slots=8, used=1, draining=False, states={})
        failures = lambda: iter([("gpt", "rate limited", self.failures)])  # noqa: E731
        self.metrics.add_gauges(lambda: gauges, failures, lambda: iter([("gpt", False)]))

    def play(self) -> None:
        """Update the metrics as one step of an episode does."""
        self.failures += 1
        usage = TokenUsage(input_tokens=900, output_tokens=30, price="0.01")
        reply = Exchange(sent=(), usage=usage, seconds_model=1.2, seconds_queue=0.5, tries=2)
        self.metrics.model_replied("team", "gpt", reply)
        observation = Observation(text="", duration_seconds=0.1)
        self.metrics.step_recorded(Step(seq=1, call=ToolCall(tool="bash"), observation=observation))
        self.metrics.observe_stage("team", "play", 5.0)
        self.metrics.lag_seconds.observe(0.001)

    @contextlib.asynccontextmanager
    async def serving(self):
        async def show(_request):
            return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

        application = web.Application()
        application.router.add_get("/metrics", show)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
        await runner.cleanup()


@pytest.fixture
async def agent_exporter():
    exporter = AgentExporter()
    async with exporter.serving() as port:
        yield exporter, port


async def play_set(installation, agent):
    """Play a set of three episodes: one is resolved, one is resolved after its sandbox is lost, and one fails."""
    agent.playing = False
    for name in ("good", "lost", "bad"):
        await installation.create("DebugTask", name, TASK)
    template = {"agent": {"name": "solution"}}
    spec = {"tasks": [{"name": "good"}, {"name": "lost"}, {"name": "bad"}], "parallelism": 3, "template": template}
    spec["arms"] = [{"name": "gold"}]
    await installation.create("EpisodeSet", "all", spec)
    await until(lambda: len(agent.held) == 3, "all are assigned")
    by_task = {held.task["metadata"]["name"]: uid for uid, held in agent.held.items()}
    agent.set_state(by_task["lost"], AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST)
    await agent.finish(by_task["good"])
    await agent.finish(by_task["bad"], EndReason.INTERNAL_ERROR)
    lost = by_task["lost"]
    await until(lambda: lost in agent.held and agent.held[lost].attempt == 2, "the lost one is assigned again")
    await agent.finish(lost)


@pytest.mark.monitoring
async def test_every_panel_has_data_and_a_failure_fires_its_alert(installation, agent_exporter, tmp_path):
    program("prometheus")
    exporter, agent_port = agent_exporter
    agent = await installation.start_agent()
    operator = await installation.start_operator()
    await until(operator.elector.is_leader, "the operator leads")
    targets = {"operator": operator.port, "agent": agent_port}
    async with server.running(tmp_path / "prometheus", targets, namespace="dgym") as prometheus:

        async def scraped():
            return len(await prometheus.query("up == 1")) == 2

        # A rate needs an earlier sample.
        await until(scraped, "both are scraped")
        exporter.play()
        await play_set(installation, agent)
        await installation.episode("stuck", task=None, taskRef={"name": "nowhere"})
        without = {each.text: each.where for each in queries()}

        async def all_have_data():
            exporter.play()
            for text in tuple(without):
                if await prometheus.query(text):
                    del without[text]
            return not without

        try:
            await until(all_have_data, "every panel has data")
        except AssertionError as error:
            raise AssertionError(f"{error}: {without}") from None

        async def stuck():
            return ("DgymEpisodesStuck", "WaitingForTask") in await prometheus.firing()

        await until(stuck, "the alert of the stuck episode fires")
        quiet = {"DgymOperatorDown", "DgymNoLeader", "DgymKeyUnusable", "DgymWatchStale", "DgymNoSlots"}
        assert not quiet & {name for name, _ in await prometheus.firing()}
        await installation.stop_operator()

        async def down():
            return ("DgymOperatorDown", "") in await prometheus.firing()

        await until(down, "the alert of the operator that is away fires")
