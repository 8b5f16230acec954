"""Test of a release with a real Prometheus: gauges equal the objects, panels have data, and failures fire alerts."""

import asyncio
import json
from collections import Counter

import pytest

from tests.e2e.cluster.episodes import (
    REPAIR,
    SUBMIT,
    counting,
    debug_task,
    episode,
    episode_set,
    inline_source,
    replay,
    task_spec,
)
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.scraper import eventually, scraping
from tests.e2e.cluster.services import REPOSITORIES, address
from tests.e2e.cluster.support import new_namespace
from tests.integration.monitoring.expressions import queries

FAILING = "failing"
ALERTS = {("DgymEpisodesStuck", "WaitingForTask"), ("DgymModelErrors", "")}
QUIET = {"DgymOperatorDown", "DgymNoLeader", "DgymKeyUnusable", "DgymNoSlots", "DgymStoreFailing"}


@pytest.fixture
def monitoring():
    """The namespace of Prometheus."""
    with new_namespace("e2e-monitoring") as kubectl:
        yield kubectl


@pytest.fixture
def release(namespace, monitoring):
    """A release with the values of docs/observability.md and a model whose server answers all requests with errors."""
    failing = {"model": FAILING, "endpoint": f"http://{address(REPOSITORIES)}/v1", "max_tries": 3}
    values = {
        "metrics": {"annotations": True},
        "networkPolicy": {"metricsNamespace": monitoring.namespace},
        "agents": {"llmConfig": {FAILING: failing}},
    }
    with installed("monitored", watch=namespace.namespace, agents=1, values=values) as release:
        yield release


def play(namespace):
    """Run a set with two arms, and an episode for each problem that panels and alerts show."""
    namespace.apply(*(debug_task(name, task_spec(inline_source()), watched="yes") for name in ("one", "two")))
    chosen = {"taskSelector": {"matchLabels": {"watched": "yes"}}, "parallelism": 2}
    arms = [{"name": "gold", "agent": {"name": "solution"}}, {"name": "none", "agent": replay(SUBMIT)}]
    # Quantiles of a rate need requests in two scrapes, which take longer on a busy machine.
    script = json.dumps([REPAIR, {**SUBMIT, "think": 4}])
    namespace.apply(
        episode_set("watched", **chosen, arms=arms, template={}),
        episode("stuck", taskRef={"name": "nowhere"}),
        episode("failing", agent={"name": "debug_agent", "model": FAILING}, task=task_spec(inline_source())),
        episode(
            "thinking",
            agent={"name": "debug_agent", "model": "scripted", "maxSteps": 5},
            task=task_spec(inline_source(), instructions=f"<script>{script}</script>"),
        ),
        episode("lost", agent=counting(20), task=task_spec(inline_source())),
    )
    namespace.reason("lost", "Running")
    namespace("delete", "pod", namespace.status("lost")["podName"], "--wait=false")
    namespace("wait", "--for=condition=Finished", "episodeset/watched", "--timeout=180s", timeout=240)
    assert namespace.get("episodeset", "watched")["status"]["resolvedByArm"] == "gold 2/2, none 0/2"
    names = {each["metadata"]["name"] for each in namespace.items("episodes", "dgym.dev/arm=gold")}
    assert names == {"watched-gold-0", "watched-gold-1"}
    assert namespace.finished("thinking")["reason"] == "Resolved"


async def test_a_release_under_a_real_prometheus(release, namespace, monitoring):
    async with scraping(monitoring) as prometheus:

        async def found():
            up = {each["metric"]["pod"] for each in await prometheus.query("up == 1")}
            return up == {each["metadata"]["name"] for each in release.kubectl.items("pods")}

        await eventually(found, "every pod of the release is found and scraped, and no other")
        await asyncio.to_thread(play, namespace)

        async def exact():
            statuses = [each["status"] for each in namespace.items("episodes")]
            states = Counter(status["reason"] for status in statuses if status["state"] == "Finished")
            shown = await prometheus.query('namespace_state_reason:dgym_episodes:sum{state="finished"} > 0')
            counts = {each["metric"]["reason"]: int(each["value"][1]) for each in shown}
            sets = await prometheus.query('namespace_set_state:dgym_set_episodes:sum{state="resolved"}')
            of_sets = {each["metric"]["set"]: int(each["value"][1]) for each in sets}
            arms = await prometheus.query('max by (arm) (dgym_set_arm_episodes{state="unresolved"})')
            of_arms = {each["metric"]["arm"]: int(each["value"][1]) for each in arms}
            named = of_sets == {f"{namespace.namespace}/watched": 2} and of_arms == {"gold": 0, "none": 2}
            return counts == states and named

        await eventually(exact, "the gauges equal the objects")
        missing = set(ALERTS)

        async def all_fire():
            missing.difference_update(await prometheus.firing())
            return not missing

        await eventually(all_fire, missing)
        assert not QUIET & {name for name, _ in await prometheus.firing()}
        without = {each.text: each.where for each in queries(namespace=release.kubectl.namespace)}

        async def all_have_data():
            for text in tuple(without):
                if await prometheus.query(text):
                    del without[text]
            return not without

        await eventually(all_have_data, without)
