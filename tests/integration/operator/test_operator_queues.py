"""Tests of Episodes in a Kueue queue, with a real API server and a fake of Kueue."""

import pytest

from tests.integration.operator.conftest import TASK
from tests.integration.operator.kueue import FLAVOR, QUEUE, Kueue
from tests.integration.operator.peers import until


@pytest.fixture
async def kueue(installation, tmp_path):
    made = Kueue(installation.api, installation.namespace)
    async with made.serving(tmp_path):
        yield made


async def gated(installation, name):
    return await installation.status(name, "it is gated", lambda status: status.get("reason") == "SchedulingGated")


async def test_an_episode_waits_until_its_queue_admits_it(installation, kueue):
    agent = await installation.start_agent()
    await installation.start_operator()
    await installation.episode("queued", queueName="team")
    status = (await gated(installation, "queued"))["status"]
    assert status["state"] == "Waiting"
    assert "Kueue" in status["message"]
    pod = (await installation.pods())["queued-1"]
    assert pod["metadata"]["labels"][QUEUE] == "team"
    await installation.episode("free")
    assert (await installation.finished("free"))["status"]["reason"] == "Resolved"
    await kueue.admit(1)
    finished = await installation.finished("queued")
    assert (finished["status"]["reason"], finished["status"]["attempt"]) == ("Resolved", 1)
    assert [given.pod_name for given in agent.given] == ["free-1", "queued-1"]
    await until(installation.is_empty, "the pod is gone, finalizer and all")


async def test_a_preempted_episode_is_retried_and_counts_as_disrupted(installation, kueue):
    agent = await installation.start_agent()
    agent.playing = False
    await kueue.admit(1)
    await installation.start_operator()
    uid = (await installation.episode("queued", queueName="team", backoffLimit=0))["metadata"]["uid"]
    await until(lambda: agent.held.get(uid), "assigned")
    assert (await installation.pods())["queued-1"]["spec"]["nodeSelector"] == FLAVOR
    await kueue.admit(0)
    await kueue.evict("queued-1")
    status = (await gated(installation, "queued"))["status"]
    assert (status["disruptions"], status.get("failures", 0)) == (1, 0)
    agent.playing = True
    await kueue.admit(1)
    finished = await installation.finished("queued")
    assert (finished["status"]["reason"], finished["status"]["podName"]) == ("Resolved", "queued-2")


async def test_a_queue_admits_one_after_the_other(installation, kueue):
    await installation.start_agent()
    await kueue.admit(2)
    await installation.start_operator()
    names = [f"queued-{number}" for number in range(5)]
    for name in names:
        await installation.episode(name, queueName="team")
    for name in names:
        assert (await installation.finished(name))["status"]["reason"] == "Resolved"
    assert installation.kubelet.most_running <= 2


@pytest.mark.parametrize("spec", [{"cancel": True}, {"suspend": True}], ids=["cancelled", "suspended"])
async def test_a_gated_pod_is_deleted_when_its_attempt_ends(installation, kueue, spec):
    await installation.start_agent()
    await installation.start_operator()
    await installation.episode("queued", queueName="team")
    await gated(installation, "queued")
    path = installation.path("episodes", "queued")
    await installation.api.call("PATCH", path, {"spec": spec}, "application/merge-patch+json")
    await until(installation.is_empty, "the pod is gone")


async def test_a_sandbox_pool_with_a_queue_serves_only_episodes_of_this_queue(installation, kueue):
    agent = await installation.start_agent()
    await kueue.admit(1)
    await installation.start_operator()
    await installation.create("DebugTask", "bug", TASK)
    spec = {"taskRef": {"name": "bug"}, "minIdle": 1, "queueName": "team"}
    await installation.create("SandboxPool", "warm", spec)

    async def ready():
        found = await installation.get("warm", "sandboxpools")
        return found.get("status", {}).get("idle") == 1

    await until(ready, "the pool has an idle pod")
    await installation.episode("free")
    await installation.finished("free")
    await installation.episode("queued", queueName="team")
    await installation.finished("queued")
    assert [given.pod_name.partition("-")[0] for given in agent.given] == ["free", "warm"]


async def test_a_queue_name_cannot_be_changed(installation):
    await installation.episode("queued", queueName="team")
    path = installation.path("episodes", "queued")
    with pytest.raises(Exception, match="queueName"):
        await installation.api.call("PATCH", path, {"spec": {"queueName": "other"}}, "application/merge-patch+json")
