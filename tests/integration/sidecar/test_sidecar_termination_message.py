"""Tests of the termination message that a killed sidecar leaves for the operator: the step in flight and the clock."""

import asyncio
import os
import signal

import pytest

from dgym.errors import SandboxLost
from dgym.session import RecordedTrajectory
from dgym.wire.http import Role
from tests.fakes.pods import eventually


async def begun_step(pod, env, name="begun"):
    """Start a step that does not end, and wait until it is running."""
    step = asyncio.ensure_future(env.step(f"bash echo > {name}; sleep 600"))
    while not (pod.directory / "sandbox-files" / name).exists():
        await asyncio.sleep(0.01)
    return step


@pytest.fixture
async def served(new_pod):
    """A pod with a sidecar process, that process, and the driver after the first step."""
    pod = new_pod()
    pod.start_runners()
    process = pod.start_process()
    await pod.listening()
    await pod.ready()
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.step("bash true")
    return pod, process, env


async def killed(process, number=signal.SIGKILL):
    process.send_signal(number)
    await asyncio.to_thread(process.wait, 90)


async def test_a_sidecar_killed_during_a_step_leaves_the_number_of_the_step(served):
    pod, process, env = served
    step = await begun_step(pod, env)
    await killed(process)
    message = pod.termination_message()
    assert (message.outcome, message.episode_uid, message.attempt) == (None, "uid", 1)
    assert (message.step_in_flight, message.poisoned_step, message.shutdown_requested) == (2, None, False)
    assert message.elapsed_seconds > 0
    step.cancel()


async def test_a_sidecar_killed_between_steps_leaves_no_step_number(served):
    pod, process, _ = served
    await killed(process)
    message = pod.termination_message()
    assert (message.step_in_flight, message.shutdown_requested) == (None, False)


async def test_a_sidecar_that_gets_sigterm_records_the_requested_shutdown(served):
    pod, process, env = served
    step = await begun_step(pod, env)
    await killed(process, signal.SIGTERM)
    message = pod.termination_message()
    assert (message.outcome, message.step_in_flight, message.poisoned_step, message.shutdown_requested) == (
        None,
        2,
        None,
        True,
    )
    step.cancel()


async def test_a_sandbox_that_ends_with_its_pod_has_not_been_killed_by_its_step(served):
    pod, process, env = served
    step = await begun_step(pod, env)
    for each in ("sandbox", "verifier"):
        os.kill(pod.runners[each].pid, signal.SIGKILL)
    while pod.termination_message().poisoned_step is None:
        await asyncio.sleep(0.01)
    await killed(process, signal.SIGTERM)
    message = pod.termination_message()
    assert (message.step_in_flight, message.poisoned_step, message.shutdown_requested) == (2, None, True)
    await asyncio.gather(step, return_exceptions=True)


async def test_the_step_that_submits_is_not_in_flight_while_the_tests_run(served):
    pod, process, env = served
    submitting = asyncio.ensure_future(env.step("submit"))
    await pod.sandbox_ended()
    message = pod.termination_message()
    assert (message.step_in_flight, message.poisoned_step) == (None, None)
    await killed(process)
    assert pod.termination_message() == message
    submitting.cancel()


async def test_a_sandbox_that_died_is_known_from_the_message_as_well(pod):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    step = await begun_step(pod, env)
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await step
    assert (pod.termination_message().outcome, pod.termination_message().poisoned_step) == (None, 1)
    pod.attempt.session._sandboxes.last_death -= 3.0
    pod.attempt.request_shutdown()
    assert (pod.termination_message().poisoned_step, pod.termination_message().shutdown_requested) == (1, True)


async def test_the_termination_message_is_written_after_the_preparation(pod):
    assert pod.termination_message() is None
    await pod.prepare()
    message = await eventually(pod.termination_message)
    assert (message.elapsed_seconds, message.step_in_flight) == (0, None)


async def test_the_outcome_takes_the_place_of_everything_else(pod, helpers):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.step(helpers.repair)
    before = pod.termination_message()
    await env.finish()
    message = pod.termination_message()
    assert (before.outcome, message.outcome.reason, message.step_in_flight) == (None, "Resolved", None)
    assert message.elapsed_seconds >= before.elapsed_seconds > 0


async def test_a_reset_under_which_the_sandbox_died_is_not_an_expected_end(new_pod, pod):
    """The operator must not wait for an outcome."""
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    await env.step("bash kill -0 1")
    steps = tuple(env.trajectory())
    await env.close()
    directory = pod.directory / "second"
    directory.mkdir()
    second = await new_pod(directory=directory).start(operated=False)
    os.kill(second.runners["sandbox"].pid, signal.SIGKILL)
    while not second.attempt._runners.is_lost("sandbox"):
        await asyncio.sleep(0.01)
    await second.prepare(trajectory=RecordedTrajectory(steps=steps))
    again = second.connect()
    with pytest.raises(SandboxLost):
        await again.reset()
    status, body = await second.raw("POST", "/v1/terminated", role=Role.OPERATE)
    assert (status, body) == (200, {"expected": False, "poisonedStep": None, "known": True})
    await again.close()
