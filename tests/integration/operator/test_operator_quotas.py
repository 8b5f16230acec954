"""Tests of ResourceQuotas on a real API server. A fake quota controller counts pods a moment after they end."""

import asyncio
import contextlib

import msgspec
import pytest

from dgym.wire import EndReason
from tests.integration.operator.conftest import POLICY, TASK
from tests.integration.operator.peers import MERGE, until

EPISODES, PODS = 24, 4


class Quota:
    """A ResourceQuota and its controller."""

    def __init__(self, installation, pods):
        self.api = installation.api
        self.namespace = f"/api/v1/namespaces/{installation.namespace}"
        self.path = f"{self.namespace}/resourcequotas"
        self.pods = pods

    async def make(self):
        hard = {"hard": {"pods": str(self.pods)}}
        await self.api.call("POST", self.path, {"metadata": {"name": "compute"}, "spec": hard})
        await self.count()

    async def count(self):
        pods = await self.api.items(f"{self.namespace}/pods")
        used = sum(pod["status"].get("phase") not in ("Succeeded", "Failed") for pod in pods)
        status = {"hard": {"pods": str(self.pods)}, "used": {"pods": str(used)}}
        await self.api.call("PATCH", f"{self.path}/compute/status", {"status": status}, MERGE)

    async def run(self):
        async for kind, pod in self.api.watch(f"{self.namespace}/pods"):
            if kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
                await asyncio.sleep(0.05)
                await self.count()


@pytest.fixture
async def quota(installation):
    await installation.start_agent()
    # The agent pod also counts against the quota.
    made = Quota(installation, PODS + 1)
    await made.make()
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_full_quota_is_tried_when_a_pod_has_ended_and_by_one_episode_at_a_time(installation, quota):
    (agent,) = installation.agents
    agent.playing = False
    # The interval is as long as in production. With a short interval, the number of refusals would depend on the
    # speed of the machine.
    await installation.start_operator(msgspec.structs.replace(POLICY, create_retry_seconds=30.0))
    for number in range(EPISODES):
        await installation.episode(f"fix-{number:02}", priority=1 if number == EPISODES - 1 else 0)
    order = []
    for _ in range(EPISODES):
        await until(lambda: len(agent.held) == min(PODS, EPISODES - len(order)), "the quota is used")
        uid, held = next(iter(agent.held.items()))
        order.append(held.episode)
        await agent.finish(uid, EndReason.RESOLVED)
        await installation.finished(held.episode)
        agent.held.pop(uid, None)
    made = [write for write in installation.writes() if write[:2] == ("create", "pods")]
    refused, created = (sum(write[3] == status for write in made) for status in (403, 201))
    assert created == EPISODES
    assert refused <= 1.2 * EPISODES, f"{refused} refused for {created} pods"
    begun = [name for _, _, name, status in made if status == 201]
    first = begun.index(f"fix-{EPISODES - 1:02}-1")
    assert first <= PODS, "the highest priority begins once there is room"
    others = [name for name in begun[PODS:] if not name.startswith(f"fix-{EPISODES - 1:02}")]
    assert others == sorted(others), "the others begin in the order of their age"


async def test_an_episode_that_waits_for_the_quota_names_it(installation, quota):
    (agent,) = installation.agents
    agent.playing = False
    await installation.start_operator()
    for number in range(PODS + 2):
        await installation.episode(f"fix-{number}")
    await until(lambda: len(agent.held) == PODS, "the quota is used")

    async def waiting():
        found = await installation.api.items(installation.path("episodes"))
        shown = [each["status"] for each in found if each.get("status", {}).get("reason") == "QuotaExceeded"]
        return shown if len(shown) == 2 else None

    shown = await until(waiting, "both show the quota")
    assert all("compute" in status["message"] for status in shown)
    quota.pods += 1
    hard = {"spec": {"hard": {"pods": str(quota.pods)}}}
    await installation.api.call("PATCH", f"{quota.path}/compute", hard, MERGE)
    await quota.count()
    await until(lambda: len(agent.held) == PODS + 1, "a quota that is raised is used at once")


async def test_a_set_counts_those_with_a_pod_and_names_what_the_others_wait_for(installation, quota):
    (agent,) = installation.agents
    agent.playing = False
    await installation.start_operator()
    await installation.create("DebugTask", "bug", TASK)
    template = {"agent": {"name": "solution"}}
    spec = {"tasks": [{"name": "bug"}], "samples": 12, "parallelism": 10, "template": template}
    await installation.create("EpisodeSet", "all", spec)

    async def status(check):
        found = await installation.get("all", "episodesets")
        return found["status"] if found and check(found.get("status", {})) else None

    waiting = await until(
        lambda: status(lambda now: now.get("waiting") == f"quota {10 - PODS}"), "the set names what it waits for"
    )
    assert (waiting["active"], waiting["pending"], waiting["unfinished"]) == (PODS, 12 - PODS, 10)
    assert "ResourceQuota compute is used up" in waiting["message"]
    await until(lambda: bool(agent.held), "an episode is assigned")
    (uid, held) = next(iter(agent.held.items()))
    await agent.finish(uid, EndReason.RESOLVED)
    await installation.finished(held.episode)
    agent.held.pop(uid, None)
    await installation.api.call("PATCH", installation.path("episodesets", "all"), {"spec": {"cancel": True}}, MERGE)
    cancelled = await until(
        lambda: status(lambda now: now.get("cancelled", 0) >= 9 - PODS and not now.get("pending")),
        "those that never began are cancelled",
    )
    assert cancelled.get("unresolved", 0) == 0
    assert cancelled["passAt1"] == "1.0000"
    assert not cancelled.get("waiting")
