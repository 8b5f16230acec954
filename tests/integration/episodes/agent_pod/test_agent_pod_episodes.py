"""Tests of episodes on an agent pod, from the assignment to the release of the pod."""

import json

import msgspec
import pytest

from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.assignments import AgentPodRole, AssignmentState, ResultsList


async def test_an_episode_is_played_stored_and_its_pod_released(agent, pod, helpers):
    status, _ = await agent.put(helpers.assign(pod, helpers.bash("cat calc.py"), helpers.repair, {"tool": "submit"}))
    assert status == 200
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.RESOLVED)
    assert over.outcome.resolved
    assert over.outcome.steps == over.steps == 3
    assert over.outcome.result_uri == agent.folder().as_uri()
    assert agent.result()["resolved"]
    assert agent.result()["agent"] == "replay"
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2, 3]
    assert "+    return a + b" in (agent.folder() / "patch.diff").read_text()
    assert "assigned: attempt 1" in (agent.folder() / "episode.log").read_text()
    ending = pod.termination()
    assert (ending.reason, ending.result_uri) == (EndReason.RESOLVED, agent.folder().as_uri())
    assert pod.attempt.released.is_set()


@pytest.mark.parametrize("mode", ["run", "prepare"])
async def test_result_and_header_record_the_image_that_the_kubelet_reports(agent, pod, helpers, mode):
    await agent.put(helpers.assign(pod, {"tool": "submit"}, mode=mode, image_digest="sha256:1f3a"))
    if mode == "prepare":
        await agent.until(lambda status: status.state is AssignmentState.RUNNING)
        env = pod.connect()
        await env.reset()
        await env.step({"tool": "submit", "arguments": {}})
    await agent.over()
    found = agent.result()["provenance"]
    header = json.loads((agent.folder() / "trajectory.jsonl").read_text().partition("\n")[0])
    assert header["provenance"] == found
    assert (found["sandbox"], found["image"]) == ("pod", "sha256:1f3a")
    assert found["taskDigest"] == header["taskDigest"]
    assert (found["reportedBySandbox"] is None) == (mode == "prepare")


async def test_the_solution_agent_checks_a_task(agent, pod, helpers):
    await agent.put(helpers.assign(pod, agent={"name": "solution"}, tools=()))
    over = await agent.over()
    assert over.reason is EndReason.RESOLVED
    assert [step["call"]["tool"] for step in agent.steps()[1:]] == ["pdb", "pdb", "pdb", "eval", "submit"]


async def test_an_image_may_hold_the_repository(agent, pod, helpers):
    pod.bake()
    await agent.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}, source=None))
    assert (await agent.over()).reason is EndReason.RESOLVED


async def test_an_external_driver_finds_the_pod_prepared_and_its_result_stored(agent, pod, helpers):
    await agent.put(helpers.assign(pod, mode="prepare"))
    await agent.until(lambda status: status.state is AssignmentState.RUNNING)
    env = pod.connect()
    await env.reset()
    await env.step(helpers.repair)
    await env.step({"tool": "submit", "arguments": {}})
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.RESOLVED)
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2]
    assert pod.termination().result_uri == agent.folder().as_uri()


async def test_an_external_drivers_steps_are_stored_as_they_happen(agent, pod, helpers):
    await agent.put(helpers.assign(pod, mode="prepare"))
    await agent.until(lambda status: status.state is AssignmentState.RUNNING)
    env = pod.connect()
    await env.reset()
    await env.step(helpers.bash("cat calc.py"))
    status = await agent.until(lambda status: status.steps == 1)
    assert status.state is AssignmentState.RUNNING
    stored = agent.folder() / "trajectory.jsonl"
    await helpers.wait(lambda: stored.exists() and [step["seq"] for step in agent.steps()] == [0, 1])


async def test_an_external_driver_that_stays_away_ends_its_episode(agent, pod, helpers):
    await agent.put(helpers.assign(pod, mode="prepare", driver_idle_seconds=1.0))
    over = await agent.over()
    assert (over.state, over.reason, over.outcome.max_score) == (AssignmentState.FINISHED, EndReason.DRIVER_IDLE, 0)
    assert agent.result()["reason"] == "DriverIdle"
    assert pod.termination().result_uri == agent.folder().as_uri()


async def test_a_stored_result_is_recovered_after_its_pod_is_gone(agent, pod, helpers):
    await agent.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}))
    first = await agent.over()
    await agent.delete()
    gone = {"sidecar_url": "http://127.0.0.1:1", "mode": "recover", "epoch": 2}
    await agent.put(msgspec.structs.replace(helpers.assign(pod), **gone))
    assert (await agent.over()).outcome == first.outcome
    await agent.put(msgspec.structs.replace(helpers.assign(pod), **gone, episode_uid="other"))
    lost = await agent.over("other")
    assert (lost.state, lost.reason) == (AssignmentState.FAILED, EndReason.SANDBOX_LOST)


@pytest.mark.parametrize("forged", ["patch.diff", "result.json"])
async def test_a_stored_outcome_without_a_valid_signature_is_ignored(agent, pod, helpers, forged):
    await agent.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}))
    assert (await agent.over()).reason is EndReason.RESOLVED
    await agent.delete()
    changed = agent.result() | {"signature": ""} if forged == "result.json" else {"another": "patch"}
    (agent.folder() / forged).write_text(json.dumps(changed))
    gone = {"sidecar_url": "http://127.0.0.1:1", "mode": "recover", "epoch": 2}
    await agent.put(msgspec.structs.replace(helpers.assign(pod), **gone))
    lost = await agent.over()
    assert lost.state is AssignmentState.FAILED
    assert lost.outcome == AttemptOutcome(resolved=False, reason=EndReason.SANDBOX_LOST, message=lost.cause)
    assert "has not signed" in lost.cause


async def test_results_are_read_over_http(agent, pod, helpers):
    await agent.put(helpers.assign(pod, {"tool": "submit"}))
    await agent.over()
    status, body = await agent.call("GET", "/v1/results/default/calc", role=AgentPodRole.RESULTS)
    files = {file.path: file.bytes for file in msgspec.json.decode(body, type=ResultsList).files}
    assert status == 200
    names = ("episode.log", "patch.diff", "result.json", "trajectory.jsonl")
    assert list(files) == [f"default/calc/uid/1/{name}" for name in names]
    status, body = await agent.call("GET", "/v1/results/default/calc/uid/1/result.json", role=AgentPodRole.RESULTS)
    assert body == (agent.folder() / "result.json").read_bytes()
    assert len(body) == files["default/calc/uid/1/result.json"]
