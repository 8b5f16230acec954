"""Tests of the pods of a SandboxPool on a real API server: they are kept ready, taken once and replaced."""

import asyncio

import pytest

from tests.integration.operator.conftest import TASK
from tests.integration.operator.peers import MERGE, until

POOL = {"taskRef": {"name": "bug"}, "minIdle": 2}


@pytest.fixture
async def bug(installation):
    await installation.create("DebugTask", "bug", TASK)


async def pool(installation, name="warm", **spec):
    return await installation.create("SandboxPool", name, {**POOL, **spec})


async def pool_is(installation, name="warm", **status):
    async def look():
        found = await installation.get(name, "sandboxpools")
        seen = found.get("status", {})
        return seen if all(seen.get(key) == value for key, value in status.items()) else None

    return await until(look, f"the pool is {status}")


def pooled(pods):
    return sorted(name for name, pod in pods.items() if "dgym.dev/sandbox-pool" in pod["metadata"]["labels"])


async def test_an_episode_takes_a_pod_that_waits_and_the_pool_makes_another(installation, bug):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    await pool(installation)
    await pool_is(installation, reason="Ready", idle=2)
    waiting = await installation.pods()
    made = await installation.episode("fix", task=None, taskRef={"name": "bug"})
    uid = made["metadata"]["uid"]
    held = await until(lambda: agent.held.get(uid), "assigned")
    assert held.pod_name in waiting
    assert installation.sidecars.bound == [(f"{installation.namespace}/fix", 1)]
    taken = (await installation.pods())[held.pod_name]
    (owner,) = taken["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Episode", uid)
    assert taken["metadata"]["labels"]["dgym.dev/episode"] == "fix"
    assert taken["spec"]["activeDeadlineSeconds"] < waiting[held.pod_name]["spec"]["activeDeadlineSeconds"]
    environment = str(waiting[held.pod_name]["spec"])
    assert "DGYM_SIDECAR_BIND_SHA256" in environment
    assert "DGYM_SIDECAR_OPERATE_SHA256" not in environment
    await pool_is(installation, reason="Ready", idle=2, claimed=1)
    await agent.finish(uid)
    finished = await installation.finished("fix")
    assert (finished["status"]["reason"], finished["status"]["podName"]) == ("Resolved", held.pod_name)

    async def gone():
        return held.pod_name not in await installation.pods()

    await until(gone, "the pod of the finished episode is deleted")


async def test_more_episodes_than_idle_pods_all_get_a_pod(installation, bug):
    agent = await installation.start_agent()
    await installation.start_operator()
    await pool(installation, maxIdle=4)
    await pool_is(installation, idle=2)
    names = [f"fix-{number}" for number in range(6)]
    for name in names:
        await installation.episode(name, task=None, taskRef={"name": "bug"})
    for name in names:
        finished = await installation.finished(name)
        assert (finished["status"]["reason"], finished["status"]["attempt"]) == ("Resolved", 1)
    assert len({given.pod_name for given in agent.given}) == len(names)


@pytest.mark.parametrize(
    "other",
    [
        {"podOverrides": {"nodeSelector": {"disk": "fast"}}},
        {"podOverrides": {"resources": {"limits": {"memory": "1Gi"}}}},
        {"taskRef": None, "task": {**TASK, "image": "another"}},
    ],
    ids=["placed elsewhere", "of another size", "of another image"],
)
async def test_an_episode_whose_pod_is_another_gets_its_own(installation, bug, other):
    agent = await installation.start_agent()
    await installation.start_operator()
    await pool(installation)
    await pool_is(installation, idle=2)
    await installation.episode("fix", **{"task": None, "taskRef": {"name": "bug"}, **other})
    await installation.finished("fix")
    assert [given.pod_name for given in agent.given] == ["fix-1"]
    await pool_is(installation, idle=2, claimed=0)


async def test_an_episode_with_an_inline_task_and_an_equal_pod_claims_a_pod(installation, bug):
    agent = await installation.start_agent()
    await installation.start_operator()
    await pool(installation)
    await pool_is(installation, idle=2)
    waiting = await installation.pods()
    await installation.episode("fix")
    await installation.finished("fix")
    assert agent.given[0].pod_name in waiting


async def test_pods_are_replaced_once_they_are_not_what_an_episode_would_get(installation, bug):
    await installation.start_operator()
    await pool(installation, minIdle=1)
    await pool_is(installation, idle=1)
    (before,) = pooled(await installation.pods())
    path = installation.path("sandboxpools", "warm")
    await installation.api.call("PATCH", path, {"spec": {"podOverrides": {"nodeSelector": {"disk": "fast"}}}}, MERGE)

    async def replaced():
        pods = await installation.pods()
        return all(pod["spec"].get("nodeSelector") == {"disk": "fast"} for pod in pods.values()) and pods

    after = await until(replaced, "the pod is replaced")
    assert before not in after


async def test_deleting_a_pool_deletes_its_unclaimed_pods(installation, bug):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    await pool(installation)
    await pool_is(installation, idle=2)
    uid = (await installation.episode("fix", task=None, taskRef={"name": "bug"}))["metadata"]["uid"]
    held = await until(lambda: agent.held.get(uid), "assigned")
    path = installation.path("sandboxpools", "warm")
    await installation.api.call("PATCH", path, {"spec": {"minIdle": 0, "maxIdle": 0}}, MERGE)
    await pool_is(installation, reason="Disabled", idle=0, starting=0)

    async def alone():
        return list(await installation.pods()) == [held.pod_name]

    await until(alone, "only the episode's pod is left")
    await agent.finish(uid)
    assert (await installation.finished("fix"))["status"]["reason"] == "Resolved"


async def test_a_claim_whose_leader_dies_before_it_binds_is_bound_by_the_next(installation, bug):
    agent = await installation.start_agent()
    installation.sidecars.statuses["bind"] = 503
    await installation.start_operator()
    await pool(installation)
    await pool_is(installation, idle=2)
    await installation.episode("fix", task=None, taskRef={"name": "bug"})
    await until(lambda: [verb for verb, _ in installation.sidecars.calls if verb == "bind"], "it is tried")
    _, _, task = installation.operators.pop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del installation.sidecars.statuses["bind"]
    await installation.start_operator(lease_seconds=15.0)
    assert (await installation.finished("fix"))["status"]["attempt"] == 1
    assert len(agent.given) == 1


async def test_a_forged_pod_of_a_pool_is_not_claimed(installation, bug):
    agent = await installation.start_agent()
    await installation.start_operator()
    await pool(installation, minIdle=1)
    await pool_is(installation, idle=1)
    (name,) = pooled(await installation.pods())
    real = (await installation.pods())[name]
    metadata = {key: real["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    spec = {key: value for key, value in real["spec"].items() if key not in ("nodeName", "serviceAccount")}
    forged = {"metadata": {**metadata, "name": "aaa"}, "spec": spec}
    await installation.api.call("POST", installation.core("pods"), forged)
    await until(lambda: "aaa" in installation.kubelet.started, "the forged pod runs")
    await installation.episode("fix", task=None, taskRef={"name": "bug"})
    await installation.finished("fix")
    assert agent.given[0].pod_name != "aaa"


async def test_a_pool_shows_the_reason_of_a_problem(installation):
    await installation.start_operator()
    await pool(installation)
    status = await pool_is(installation, reason="Refused")
    assert "DebugTask bug does not exist" in status["message"]
    await installation.create("DebugTask", "bug", TASK)
    await pool_is(installation, reason="Ready", idle=2)


async def test_a_set_has_a_sandbox_pool_until_its_last_episode_starts(installation, bug):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    spec = {"tasks": [{"name": "bug"}], "samples": 6, "parallelism": 2, "pool": {"minIdle": 1}}
    made = await installation.create("EpisodeSet", "all", {**spec, "template": {"agent": {"name": "solution"}}})
    name = f"all-{made['metadata']['uid'][:8]}"
    await until(lambda: len(agent.held) == 2, "two episodes run")
    await pool_is(installation, name, reason="Ready")
    found = await installation.get(name, "sandboxpools")
    assert (found["spec"]["minIdle"], found["spec"]["maxIdle"]) == (1, 2)
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    waiting = pooled(await installation.pods())
    agent.playing = True
    for uid in list(agent.held):
        await agent.finish(uid)

    async def finished():
        status = (await installation.get("all", "episodesets")).get("status", {})
        return status.get("reason") == "Completed" and status["resolved"] == 6

    await until(finished, "the set is finished")
    assert waiting
    assert set(waiting) <= {given.pod_name for given in agent.given}

    async def gone():
        return await installation.api.find(installation.path("sandboxpools", name)) is None

    await until(gone, "the pool is deleted")


async def test_a_pool_without_idle_pods_makes_some_once_episodes_ask(installation, bug):
    await installation.start_agent()
    await installation.start_operator()
    await pool(installation, minIdle=0, maxIdle=3)
    await pool_is(installation, reason="Disabled")
    await installation.episode("fix", task=None, taskRef={"name": "bug"})
    await installation.finished("fix")
    await pool_is(installation, idle=1, claimed=0)
    await installation.episode("again", task=None, taskRef={"name": "bug"})
    await installation.finished("again")
    await pool_is(installation, claimed=1)


async def test_a_set_whose_pool_is_refused_runs_without(installation, bug):
    await installation.start_agent()
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/sandboxpools.dgym.dev": "0"}}}
    path = installation.core("resourcequotas", "few")
    await installation.api.call("POST", installation.core("resourcequotas"), quota)
    # This API server has no quota controller, so the test writes the status.
    await installation.api.call(
        "PATCH", f"{path}/status", {"status": {**quota["spec"], "used": {"count/sandboxpools.dgym.dev": "0"}}}, MERGE
    )
    await installation.start_operator()
    spec = {"tasks": [{"name": "bug"}], "samples": 4, "parallelism": 2, "pool": {"minIdle": 1}}
    await installation.create("EpisodeSet", "all", {**spec, "template": {"agent": {"name": "solution"}}})
    assert "exceeded quota" in await installation.event("PoolRefused")
    finished = await installation.finished("all", "episodesets")
    assert finished["status"]["resolved"] == 4
