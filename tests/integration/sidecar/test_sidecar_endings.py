"""How attempts end without their driver: the deadline, the operator, the agent's own doing, failures."""

import asyncio
import os
import signal

import pytest

from dgym.errors import EpisodeOver, SandboxLost, SetupFailed
from dgym.session import EpisodeLimits
from dgym.wire import EndReason
from dgym.wire.http import Role


async def begin(pod, **prepared):
    await pod.prepare(**prepared)
    env = pod.connect()
    await env.reset()
    return env


async def test_the_deadline_ends_and_scores_it_while_nobody_calls(pod, helpers):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=0.5))
    said = await helpers.wait(pod.termination)
    assert (said.reason, said.resolved, said.score, said.max_score) == ("DeadlineExceeded", False, 0, 1)
    observation, _, terminated, truncated, info = await env.step("view calc.py")
    assert "has ended" in observation["text"]
    assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
    with pytest.raises(EpisodeOver):
        await env.step("view calc.py")


async def test_the_deadline_stops_the_step_that_runs(pod):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=1.0))
    observation, _, terminated, truncated, info = await env.step("bash sleep 60")
    assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
    assert "eadline" in observation["text"]


async def test_nothing_is_scored_before_the_sandbox_is_seen_dead(new_pod, helpers):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step(helpers.repair)
    finishing = asyncio.ensure_future(env.finish())
    await pod.sandbox_ended()
    assert pod.termination() is None
    assert not finishing.done()
    pod.operate()
    assert (await finishing).resolved


async def test_a_sandbox_that_is_not_seen_dead_in_time_was_hijacked(new_pod, helpers):
    pod = await new_pod(stop_timeout_seconds=0.3).start(operated=False)
    env = await begin(pod)
    await env.step(helpers.repair)
    result = await env.finish()
    assert (result.reason, result.resolved, result.score, result.max_score) == (EndReason.SANDBOX_KILLED, False, 0, 0)
    assert "nothing was scored" in result.message
    assert "+    return a + b" in result.patch
    assert pod.termination().reason == EndReason.SANDBOX_KILLED


async def test_a_sandbox_that_dies_under_a_step_is_no_observation_and_no_end(new_pod):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step("bash echo kept > kept.txt")
    running = asyncio.ensure_future(env.step("bash echo > begun; sleep 60"))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await running
    status, body = await pod.raw("POST", "/v1/verify", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": 2})
    assert (await pod.raw("GET", "/readyz"))[0] == 503
    assert [step.seq for step in env.history()] == [0, 1]
    with pytest.raises(SandboxLost):
        await env.finish()
    # Another pod takes up the episode: a message would be a result.
    assert pod.termination() is None


async def test_a_setup_that_fails_ends_the_attempt_before_it_cost_anything(pod, helpers):
    await pod.prepare(setupCommands=["echo broken >&2; exit 3"])
    env = pod.connect(reset_key="k")
    for _ in range(2):
        with pytest.raises(SetupFailed, match="broken"):
            await env.reset()
    status, body = await pod.raw("POST", "/v1/reset", role=Role.DRIVE, headers={"Idempotency-Key": "k"})
    assert (status, body["code"], body["retryable"]) == (422, "setup_failed", False)
    said = pod.termination()
    assert said.reason == EndReason.SETUP_FAILED
    assert "broken" in said.message


async def test_cancelling_scores_what_there_is(pod, helpers):
    env = await begin(pod)
    await env.step(helpers.repair)
    running = asyncio.ensure_future(env.step("bash echo > begun; sleep 60"))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    assert (await pod.raw("POST", "/v1/cancel", role=Role.OPERATE))[0] == 200
    observation, *_ = await running
    assert observation["end_reason"] == "Resolved"
    assert env.result.resolved
    assert pod.termination().resolved


async def test_cancelling_before_the_reset_is_an_end_too(new_pod):
    pod = await new_pod().start(operated=False)
    await pod.prepare()
    await pod.raw("POST", "/v1/cancel", role=Role.OPERATE)
    assert pod.termination().reason == EndReason.CANCELLED
    with pytest.raises(EpisodeOver, match="cancelled"):
        await pod.connect().reset()


async def test_releasing_says_where_the_result_is_and_ends_the_attempt(pod):
    preparation = await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.finish()
    await preparation.release(result_uri="file:///results/1/result.json")
    assert pod.termination().result_uri == "file:///results/1/result.json"
    assert pod.attempt.released.is_set()
    status, body = await pod.step(1, "view")
    assert (status, body["code"]) == (410, "attempt_over")


async def test_an_agent_that_could_not_go_on_says_why(new_pod):
    pod = await new_pod().start(operated=False)
    preparation = await pod.prepare()
    await preparation.release(reason=EndReason.MODEL_ERROR, message="the model does not answer")
    said = pod.termination()
    assert (said.reason, said.message, said.resolved) == ("ModelError", "the model does not answer", False)
