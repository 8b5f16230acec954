"""Tests of a second pod that continues an episode with the steps of a first pod."""

import asyncio
import os
import signal

import msgspec
import psutil
import pytest

from dgym.episodes.agent_pod._session import make_past
from dgym.errors import ConflictError, ManifestError, SandboxLost
from dgym.session import EpisodeLimits, RecordedTrajectory
from dgym.wire import EndReason, Observation, Step
from dgym.wire.assignments import OmittedStep
from dgym.wire.http import AttemptState, Role, Usage
from dgym.wire.signing import outcome_is_signed


async def state(pod):
    status, body = await pod.raw("GET", "/v1/state", role=Role.OPERATE)
    assert status == 200
    return msgspec.convert(body, AttemptState)


async def die_under_a_step(pod, env):
    """Kill the sandbox while it executes a step."""
    running = asyncio.ensure_future(env.step("bash echo > killing; sleep 600"))
    while not (pod.directory / "sandbox-files" / "killing").exists():
        await asyncio.sleep(0.01)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await running


@pytest.fixture
async def recorded(tmp_path, new_pod, helpers):
    """The steps that were taken in a first pod."""
    directory = tmp_path / "first"
    directory.mkdir()
    pod = await new_pod(directory=directory).start()
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.step(helpers.repair)
    await env.step("bash echo once >> counter.txt")
    return env.trajectory()


async def test_a_second_pod_continues_after_the_last_step(pod, recorded):
    used = Usage(input_tokens=70, output_tokens=3)
    await pod.prepare(trajectory=RecordedTrajectory(steps=tuple(recorded)), usage=used)
    env = pod.connect()
    observation, info = await env.reset()
    assert observation["text"] == recorded[-1].observation.text
    assert env.trajectory() == recorded
    assert (info["steps"], info["rewrites"], env.usage) == (2, 1, used)
    assert pod.file("counter.txt") == "once\n"
    await env.step("bash cat counter.txt")
    result = await env.finish()
    assert (result.resolved, result.steps, result.input_tokens, result.output_tokens) == (True, 3, 70, 3)
    assert outcome_is_signed(b"key", result, episode_uid="uid", attempt=1)


async def test_the_operator_asks_for_the_clocks(pod, recorded):
    assert await state(pod) == AttemptState()
    await pod.prepare(trajectory=RecordedTrajectory(steps=tuple(recorded)), limits=EpisodeLimits(deadline_seconds=600))
    assert (await state(pod)).remaining_seconds == 600
    env = pod.connect()
    await env.reset()
    now = await state(pod)
    assert (now.steps, now.step_in_flight, now.running, now.ending, now.ended) == (2, None, True, False, False)
    running = asyncio.ensure_future(env.step("bash echo > begun; sleep 600"))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    during = await state(pod)
    assert during.step_in_flight == 3
    assert 0 < during.elapsed_seconds == pytest.approx(600 - during.remaining_seconds, abs=0.002)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await running
    after = await state(pod)
    assert (after.step_in_flight, after.poisoned_steps, after.ending) == (None, (3,), False)


async def test_the_poisoned_step_of_this_pod_is_reported_and_not_those_before(pod, recorded):
    killed = Step(
        seq=3, call=recorded[2].call, observation=Observation(text="The sandbox was killed (OOMKilled)", ok=False)
    )
    await pod.prepare(trajectory=RecordedTrajectory(steps=(*recorded, killed), poisoned=(3,)))
    env = pod.connect()
    await env.reset()
    assert (await state(pod)).poisoned_steps == ()
    await die_under_a_step(pod, env)
    status, body = await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body["poisonedStep"]) == (200, 4)


async def test_a_reset_that_was_not_recorded_is_replaced_by_a_new_reset(pod, recorded):
    """The store was unavailable for the first pod, so the second pod only gets the number of the poisoned step."""
    past = make_past((), None, [OmittedStep(step=2, reason="OOMKilled")])
    await pod.prepare(trajectory=past.trajectory)
    env = pod.connect()
    observation, info = await env.reset()
    assert observation["text"].startswith("The sandbox was killed (OOMKilled)")
    reset, lost, _ = env.trajectory()
    assert (reset.observation.text, info["steps"]) == (recorded[0].observation.text, 2)
    assert "is missing in the trajectory" in lost.observation.text
    await die_under_a_step(pod, env)
    assert (await state(pod)).poisoned_steps == (3,)


async def test_two_poisoned_steps_end_the_attempt_with_a_signed_outcome(pod, recorded):
    killed = Step(
        seq=3, call=recorded[2].call, observation=Observation(text="The sandbox was killed (OOMKilled)", ok=False)
    )
    steps = (*recorded[:1], *(msgspec.structs.replace(killed, seq=seq) for seq in (1, 2)))
    await pod.prepare(trajectory=RecordedTrajectory(steps=steps, poisoned=(1, 2)), usage=Usage(input_tokens=9))
    env = pod.connect()
    observation, _ = await env.reset()
    assert observation["end_reason"] == "SandboxKilled"
    result = env.result
    assert (result.reason, result.score, result.max_score) == (EndReason.SANDBOX_KILLED, 0, 1)
    assert (result.steps, result.input_tokens) == (2, 9)
    assert outcome_is_signed(b"key", result, episode_uid="uid", attempt=1)
    assert pod.termination().reason == "SandboxKilled"
    assert (await state(pod)).ended


async def test_an_invalid_trajectory_is_refused(pod, recorded):
    with pytest.raises(ManifestError, match="trajectory"):
        await pod.prepare(trajectory=RecordedTrajectory(steps=tuple(recorded[1:])))
    await pod.prepare(trajectory=RecordedTrajectory(steps=tuple(recorded)))
    with pytest.raises(ConflictError):
        await pod.prepare()


async def test_a_step_that_ends_its_sandbox_by_a_signal_is_poisoned(new_pod):
    pod = await new_pod().start(operated=False)
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    with pytest.raises(SandboxLost):
        await env.step("bash kill -TERM 1; kill -TERM $PPID; kill -TERM 2; sleep 60")
    await pod.sandbox_ended()
    assert (await state(pod)).poisoned_steps == (1,)
    status, body = await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": 1, "known": True})


async def test_a_step_that_is_sent_to_a_dead_sandbox_is_not_poisoned(new_pod):
    pod = await new_pod().start(operated=False)
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    for process in psutil.Process(pod.runners["sandbox"].pid).children(recursive=True):
        process.suspend()
    step = asyncio.ensure_future(env.step("bash true"))
    while (await state(pod)).step_in_flight != 1:
        await asyncio.sleep(0.01)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await step
    assert (await state(pod)).poisoned_steps == ()
    status, body = await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": None, "known": True})
