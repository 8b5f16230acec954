"""Tests of ends of attempts without their driver: by the deadline, the operator, the agent or a failure."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from dgym.errors import EpisodeOver, SandboxLost, SetupFailed
from dgym.session import EpisodeLimits
from dgym.wire import EndReason, calls
from dgym.wire.http import FinishRequest, ReleaseRequest, Role, Usage
from dgym.wire.signing import outcome_is_signed


async def begin(pod, **prepared):
    await pod.prepare(**prepared)
    env = pod.connect()
    await env.reset()
    return env


async def test_the_episode_is_scored_at_its_deadline_without_calls(pod, helpers):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=0.5))
    outcome = await helpers.wait(pod.termination)
    assert (outcome.reason, outcome.resolved, outcome.score, outcome.max_score) == ("DeadlineExceeded", False, 0, 1)
    observation, _, terminated, truncated, info = await env.step("view calc.py")
    assert "has ended" in observation["text"]
    assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
    with pytest.raises(EpisodeOver):
        await env.step("view calc.py")


async def test_the_deadline_stops_the_step_that_runs(pod):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=1.0))
    observation, _, terminated, truncated, info = await env.step("bash sleep 600")
    assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
    assert "eadline" in observation["text"]


async def test_an_idle_driver_ends_it_and_it_is_scored_as_it_is(pod, helpers):
    env = await begin(pod, driver_idle_seconds=1.5)
    await env.step(helpers.repair)
    outcome = await helpers.wait(pod.termination)
    assert (outcome.reason, outcome.resolved, outcome.steps) == ("Resolved", True, 1)
    await env.step("view calc.py")
    with pytest.raises(EpisodeOver):
        await env.step("view calc.py")


async def test_an_idle_driver_that_repaired_nothing_is_the_reason_of_the_end(pod, helpers):
    await begin(pod, driver_idle_seconds=0.5)
    outcome = await helpers.wait(pod.termination)
    assert (outcome.reason, outcome.resolved, outcome.score, outcome.max_score) == ("DriverIdle", False, 0, 1)
    assert EndReason.DRIVER_IDLE.is_truncation
    assert EndReason.DRIVER_IDLE.is_counted


async def test_a_driver_without_any_call_counts_as_idle(pod, helpers):
    await pod.prepare(driver_idle_seconds=0.3)
    outcome = await helpers.wait(pod.termination)
    assert (outcome.reason, outcome.max_score, outcome.steps) == ("DriverIdle", 0, 0)
    assert "within 0.3 s" in outcome.message
    status, body = await pod.raw("POST", "/v1/reset", role=Role.DRIVE, headers={"Idempotency-Key": "late"})
    assert (status, body["code"]) == (410, "attempt_over")


async def test_every_call_of_the_driver_renews_its_lease_and_no_other_role_does(pod, helpers):
    env = await begin(pod, driver_idle_seconds=600)
    lease = pod.attempt.lease
    left = lease.left(600)
    await pod.raw("GET", "/v1/steps", role=Role.PREPARE)
    await pod.raw("POST", "/v1/running", role=Role.OPERATE, data=b"{}")
    assert lease.left(600) < left
    left = lease.left(600)
    assert (await pod.raw("GET", "/v1/tools", role=Role.DRIVE))[0] == 200
    assert lease.left(600) > left
    # The lease is suspended while a call runs.
    running = asyncio.ensure_future(env.step("bash echo > begun; until [ -e go ]; do sleep 0.01; done"))
    await helpers.wait((pod.directory / "sandbox-files" / "begun").exists)
    assert lease.left(600) == 600
    (pod.directory / "sandbox-files" / "go").write_text("")
    await running
    assert 500 < lease.left(600) < 600


async def test_tokens_reported_after_the_end_count_and_are_signed(pod, helpers):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=0.5))
    ended = await helpers.wait(pod.termination)
    assert (ended.reason, ended.input_tokens) == ("DeadlineExceeded", 0)
    env.record_usage(input_tokens=70, output_tokens=3)
    result = await env.finish()
    assert (result.input_tokens, result.output_tokens) == (70, 3)
    assert outcome_is_signed(b"key", result, episode_uid="uid", attempt=1)
    assert (pod.termination().input_tokens, pod.termination().output_tokens) == (70, 3)
    late = pod.client(Role.DRIVE)
    for usage in (None, Usage(input_tokens=1)):
        answer = await late.call(calls.FINISH, FinishRequest(usage=usage))
        assert answer.result == result


@pytest.mark.attack("stalled-runner")
async def test_scoring_waits_until_the_sandbox_has_terminated(new_pod, helpers):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step(helpers.repair)
    finishing = asyncio.ensure_future(env.finish())
    await pod.sandbox_ended()
    assert pod.termination() is None
    assert not finishing.done()
    pod.operate()
    assert (await finishing).resolved


async def unconfirmed(pod, helpers):
    """Finish a repaired episode without an operator. Wait until the time for the end of the sandbox is over."""
    env = await begin(pod)
    await env.step(helpers.repair)
    finishing = asyncio.ensure_future(env.finish())
    async with asyncio.timeout(90):
        while (await pod.raw("GET", "/readyz"))[0] == 200:
            await asyncio.sleep(0.01)
    return finishing


@pytest.mark.attack("stalled-runner")
async def test_a_sandbox_that_runs_after_its_stop_timeout_is_not_scored(new_pod, helpers):
    pod = await new_pod(stop_timeout_seconds=0.1).start(operated=False)
    finishing = await unconfirmed(pod, helpers)
    before, after = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (-60, 60))
    assert (await pod.running(before))[0] == 202
    assert pod.termination() is None
    assert (await pod.running(after))[0] == 200
    result = await finishing
    assert (result.reason, result.resolved, result.score, result.max_score) == (EndReason.SANDBOX_KILLED, False, 0, 0)
    assert "nothing was scored" in result.message
    assert "+    return a + b" in result.patch
    assert pod.termination().reason == EndReason.SANDBOX_KILLED


async def test_a_late_operator_does_not_change_the_outcome(new_pod, helpers):
    pod = await new_pod(stop_timeout_seconds=0.1).start(operated=False)
    finishing = await unconfirmed(pod, helpers)
    assert pod.termination() is None
    pod.operate()
    assert (await finishing).resolved
    assert pod.termination().resolved


async def test_without_the_operator_the_sandbox_counts_as_lost(new_pod, helpers):
    pod = await new_pod(stop_timeout_seconds=0.1, confirmation_seconds=0.1).start(operated=False)
    finishing = await unconfirmed(pod, helpers)
    with pytest.raises(SandboxLost, match="operator did not report"):
        await finishing
    # Another pod continues the episode, and a termination message would count as its result.
    assert pod.termination() is None


async def test_a_sandbox_that_was_not_ordered_to_end_may_run(pod):
    await begin(pod)
    assert (await pod.running(datetime.now(UTC) + timedelta(days=1)))[0] == 202
    assert (await pod.raw("POST", "/v1/running", role=Role.OPERATE, data=b'{"observed": "2026-01-01T12:00:00"}'))[
        0
    ] == 400


async def test_a_sandbox_death_during_a_step_raises_and_does_not_end_the_episode(new_pod):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step("bash echo kept > kept.txt")
    running = asyncio.ensure_future(env.step("bash echo > begun; sleep 600"))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await running
    status, body = await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": 2, "known": True})
    assert (await pod.raw("GET", "/readyz"))[0] == 503
    assert [step.seq for step in env.trajectory()] == [0, 1]
    with pytest.raises(SandboxLost):
        await env.finish()
    # Another pod continues the episode, and a termination message would count as its result.
    assert pod.termination() is None


async def test_a_step_that_was_sent_after_the_death_of_the_sandbox_is_not_poisoned(new_pod):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step("bash echo kept > kept.txt")
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    while (await pod.raw("GET", "/readyz"))[0] == 200:
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxLost):
        await env.step("bash echo late > late.txt")
    status, body = await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": None, "known": True})
    assert [step.seq for step in env.trajectory()] == [0, 1]


async def test_a_failed_setup_ends_the_attempt_at_the_reset(pod, helpers):
    await pod.prepare(setupCommands=["echo broken >&2; exit 3"])
    env = pod.connect(reset_key="k")
    for _ in range(2):
        with pytest.raises(SetupFailed, match="broken"):
            await env.reset()
    status, body = await pod.raw("POST", "/v1/reset", role=Role.DRIVE, headers={"Idempotency-Key": "k"})
    assert (status, body["code"], body["retryable"]) == (422, "setup_failed", False)
    outcome = pod.termination()
    assert outcome.reason == EndReason.SETUP_FAILED
    assert "broken" in outcome.message


async def test_the_deadline_is_paused_while_no_agent_pod_serves_the_episode(pod):
    env = await begin(pod, limits=EpisodeLimits(deadline_seconds=600))
    deadline = pod.attempt.session.deadline
    assert (await pod.raw("POST", "/v1/pause", role=Role.OPERATE, data=b'{"epoch": 0}'))[0] == 200
    left = deadline.remaining
    await asyncio.sleep(0)
    assert deadline.remaining == left < 600
    await env.step("view calc.py")
    async with asyncio.timeout(90):
        while deadline.remaining == left:
            await asyncio.sleep(0)


async def test_cancelling_scores_what_there_is(pod, helpers):
    env = await begin(pod)
    await env.step(helpers.repair)
    running = asyncio.ensure_future(env.step("bash echo > begun; sleep 600"))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    for _ in range(2):
        assert (await pod.raw("POST", "/v1/cancel", role=Role.OPERATE))[0] in (200, 202)
    observation, *_ = await running
    assert observation["end_reason"] == "Resolved"
    assert env.result.resolved
    assert pod.termination().resolved


async def test_cancel_returns_whether_the_attempt_has_ended(new_pod, helpers):
    pod = await new_pod().start(operated=False)
    env = await begin(pod)
    await env.step(helpers.repair)
    for _ in range(2):
        status, body = await pod.raw("POST", "/v1/cancel", role=Role.OPERATE)
        assert (status, body["running"]) == (202, True)
    pod.operate()
    assert (await helpers.wait(pod.termination)).resolved
    assert (await pod.raw("POST", "/v1/cancel", role=Role.OPERATE))[0] == 200


async def test_cancelling_before_the_reset_is_an_end_too(new_pod):
    pod = await new_pod().start(operated=False)
    await pod.prepare()
    for _ in range(2):
        assert (await pod.raw("POST", "/v1/cancel", role=Role.OPERATE))[0] == 200
    assert pod.termination().reason == EndReason.CANCELLED
    with pytest.raises(EpisodeOver, match="cancelled"):
        await pod.connect().reset()


async def test_release_records_the_address_of_the_result_and_ends_the_attempt(pod):
    client = await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.finish()
    await client.call(calls.RELEASE, ReleaseRequest(result_uri="file:///results/1/result.json"))
    assert pod.termination().result_uri == "file:///results/1/result.json"
    assert pod.attempt.released.is_set()
    status, body = await pod.step(1, "view")
    assert (status, body["code"]) == (410, "attempt_over")


async def test_the_reason_of_a_release_is_the_outcome(new_pod):
    pod = await new_pod().start(operated=False)
    client = await pod.prepare()
    body = ReleaseRequest(reason=EndReason.MODEL_ERROR, message="the model does not answer")
    await client.call(calls.RELEASE, body)
    outcome = pod.termination()
    assert (outcome.reason, outcome.message, outcome.resolved) == ("ModelError", "the model does not answer", False)


async def test_a_reset_that_asks_for_an_evaluation_without_its_tool_is_refused_and_can_be_corrected(new_pod):
    pod = await new_pod().start(operated=False)
    await pod.prepare(tools=("view",))
    headers = {"Idempotency-Key": "k"}
    status, body = await pod.raw("POST", "/v1/reset", role=Role.DRIVE, headers=headers, data=b'{"evaluate": true}')
    assert (status, body["code"]) == (400, "invalid_argument")
    assert (await pod.raw("POST", "/v1/reset", role=Role.DRIVE, headers=headers))[0] == 200
