"""Tests of episodes that continue in a second pod after the first pod was lost."""

import json
import os
import signal

import pytest

from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState, OmittedStep
from tests.fakes.openai_server import FakeOpenAI
from tests.integration.results.conftest import s3_server as s3_server


@pytest.fixture
def next_pod(tmp_path, new_pod):
    """A function that starts the pod of the next attempt."""

    async def start(attempt=2, **options):
        directory = tmp_path / f"pod-{attempt}"
        directory.mkdir()
        return await new_pod(directory=directory, attempt=attempt).start(**options)

    return start


@pytest.fixture
async def first_pod(next_pod):
    return await next_pod(1, operated=False)


@pytest.fixture
def calls(helpers):
    """Calls that append a line to a file. The second call waits for another file."""
    return (
        helpers.bash("echo 1 >> counter.txt"),
        helpers.bash("echo 2 >> counter.txt; until [ -e go ]; do sleep 0.02; done"),
        helpers.repair,
        {"tool": "submit", "arguments": {}},
    )


def lines(pod):
    path = pod.directory / "sandbox-files" / "counter.txt"
    return path.read_text().split() if path.exists() else []


def kill_sandbox(pod):
    os.kill(pod.runners["sandbox"].pid, signal.SIGKILL)


def trajectory(agent, attempt):
    header, *steps = map(json.loads, (agent.folder(attempt) / "trajectory.jsonl").read_text().splitlines())
    return header, steps


async def die_under_the_second_step(agent, pod, assignment, helpers):
    """Assign the episode, and kill the sandbox during the second step. Returns the status of the failure."""
    await agent.put(assignment)
    await helpers.wait(lambda: lines(pod)[-2:] == ["1", "2"])
    kill_sandbox(pod)
    failed = await agent.over()
    assert (failed.state, failed.reason, failed.steps) == (AssignmentState.FAILED, EndReason.SANDBOX_LOST, 1)
    assert pod.termination_message().poisoned_step == 2
    return failed


async def test_a_poisoned_step_is_left_out_in_the_second_pod(agent, first_pod, next_pod, calls, helpers):
    await die_under_the_second_step(agent, first_pod, helpers.assign(first_pod, *calls), helpers)
    pod = await next_pod()
    poisoned = (OmittedStep(step=2, reason="OOMKilled"),)
    await agent.put(helpers.assign(pod, *calls, attempt=2, replay_attempt=1, poisoned_steps=poisoned))
    over = await agent.over()
    assert (over.state, over.reason, over.steps) == (AssignmentState.FINISHED, EndReason.RESOLVED, 4)
    assert lines(pod) == ["1"]
    header, steps = trajectory(agent, 2)
    assert (header["attempt"], header["replayedAttempt"]) == (2, 1)
    assert [step["seq"] for step in steps] == [0, 1, 2, 3, 4]
    assert steps[:2] == trajectory(agent, 1)[1]
    assert steps[1]["observation"]["workspaceDigest"]
    assert steps[2]["call"] == calls[1]
    assert steps[2]["observation"]["text"].startswith("The sandbox was killed (OOMKilled)")
    assert steps[4]["observation"]["endReason"] == "Resolved"
    assert [msg["seq"] for msg in steps] == [step.seq for step in pod.attempt.session.trajectory()]


async def test_a_second_poisoned_step_ends_the_episode(agent, first_pod, next_pod, calls, helpers):
    await die_under_the_second_step(agent, first_pod, helpers.assign(first_pod, *calls), helpers)
    poisoned = (OmittedStep(step=2, reason="OOMKilled"),)
    second = await next_pod(operated=False)
    deadly = (*calls[:2], helpers.bash("echo 3 >> counter.txt; sleep 600"))
    await agent.put(helpers.assign(second, *deadly, attempt=2, replay_attempt=1, poisoned_steps=poisoned))
    await helpers.wait(lambda: lines(second) == ["1", "3"])
    kill_sandbox(second)
    await agent.over()
    assert second.termination_message().poisoned_step == 3
    third = await next_pod(3)
    poisoned += (OmittedStep(step=3, reason="exit status 143"),)
    await agent.put(helpers.assign(third, *deadly, attempt=3, replay_attempt=2, poisoned_steps=poisoned))
    over = await agent.over()
    assert (over.state, over.reason, over.steps) == (AssignmentState.FINISHED, EndReason.SANDBOX_KILLED, 3)
    assert (over.outcome.score, over.outcome.max_score) == (0, 1)
    assert lines(third) == ["1"]
    header, steps = trajectory(agent, 3)
    assert header["replayedAttempt"] == 2
    assert [step["seq"] for step in steps] == [0, 1, 2, 3]
    assert steps[3]["observation"]["endReason"] == "SandboxKilled"
    assert steps[3]["observation"]["text"].startswith("The sandbox was killed (exit status 143)")


async def test_two_poisoned_steps_without_a_record_count_too(agent, next_pod, calls, helpers):
    pod = await next_pod()
    poisoned = (OmittedStep(step=1), OmittedStep(step=5))
    await agent.put(helpers.assign(pod, *calls, attempt=2, replay_attempt=1, poisoned_steps=poisoned))
    over = await agent.over()
    assert (over.reason, over.steps, over.outcome.max_score) == (EndReason.SANDBOX_KILLED, 5, 1)
    assert lines(pod) == []
    reset, *steps = trajectory(agent, 2)[1]
    assert reset["observation"]["text"]
    assert [step["call"]["arguments"] for step in steps] == [{"problem": "The call was not recorded."}] * 5
    killed = [step["seq"] for step in steps if step["observation"]["text"].startswith("The sandbox was killed")]
    assert killed == [1, 5]


async def test_an_episode_without_a_trajectory_starts_from_the_beginning(agent, next_pod, calls, helpers):
    pod = await next_pod()
    (pod.directory / "sandbox-files" / "go").write_text("")
    await agent.put(helpers.assign(pod, *calls, attempt=2, replay_attempt=1))
    over = await agent.over()
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 4)
    assert "replayedAttempt" not in trajectory(agent, 2)[0]


async def test_an_agent_that_is_lost_in_the_second_pod_is_replaced_there(
    new_agent, first_pod, next_pod, calls, helpers
):
    agent = await new_agent().start()
    await die_under_the_second_step(agent, first_pod, helpers.assign(first_pod, *calls), helpers)
    pod = await next_pod()
    waiting = (*calls[:2], helpers.bash("echo 3 >> counter.txt; until [ -e go ]; do sleep 0.02; done"), *calls[2:])
    again = {"attempt": 2, "replay_attempt": 1, "poisoned_steps": (OmittedStep(step=2, reason="OOMKilled"),)}
    await agent.put(helpers.assign(pod, *waiting, **again))
    await helpers.wait(lambda: lines(pod) == ["1", "3"])
    await helpers.wait(lambda: (agent.folder(2) / "trajectory.jsonl").exists() and len(trajectory(agent, 2)[1]) == 3)
    agent.kill()
    await agent.start()
    await agent.put(helpers.assign(pod, *waiting, epoch=2, **again))
    (pod.directory / "sandbox-files" / "go").write_text("")
    over = await agent.over()
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 5)
    assert lines(pod) == ["1", "3"]
    assert [step["seq"] for step in trajectory(agent, 2)[1]] == [0, 1, 2, 3, 4, 5]


async def test_an_attempt_that_is_taken_from_its_agent_leaves_every_step_in_a_bucket(
    new_agent, s3_server, first_pod, next_pod, calls, helpers
):
    """A bucket gets the trajectory every ten steps and at the end of an attempt, as when an episode is suspended."""
    bucket = s3_server.bucket()
    agent = await new_agent(results=f"s3://{bucket}/p", **s3_server.environment).start()
    stored = s3_server.root / bucket / "p/default/calc/uid/1/trajectory.jsonl"
    await agent.put(helpers.assign(first_pod, *calls))
    await helpers.wait(lambda: lines(first_pod) == ["1", "2"])
    assert not stored.exists()
    await agent.put(helpers.assign(first_pod, *calls, epoch=2, mode="recover"))
    assert (await agent.over()).state is AssignmentState.FAILED
    assert [json.loads(line)["seq"] for line in stored.read_text().splitlines()[1:]] == [0, 1]
    pod = await next_pod()
    (pod.directory / "sandbox-files" / "go").write_text("")
    await agent.put(helpers.assign(pod, *calls, attempt=2, replay_attempt=1))
    over = await agent.over()
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 4)
    assert lines(pod) == ["1", "2"]


@pytest.fixture
async def thinking(tmp_path, helpers):
    """A model, and the settings of agent pods that use it."""
    async with FakeOpenAI(script=helpers.script) as server:
        path = tmp_path / "llm.yaml"
        path.write_text(json.dumps({"m": {"model": "scripted", "endpoint": server.url, "api_key": "k"}}))
        yield server, {"LLM_CONFIG_FILE_PATH": str(path)}


def texts_of(steps):
    return [exchange["text"] for step in steps for exchange in step.get("exchanges", [])]


@pytest.mark.thorough
@pytest.mark.parametrize("poisoned", [(OmittedStep(step=2, reason="OOMKilled"),), ()])
async def test_messages_and_costs_continue_in_the_second_pod(
    new_agent, first_pod, next_pod, thinking, poisoned, helpers
):
    server, settings = thinking
    debugging = {"name": "debug_agent", "model": "m"}
    agent = await new_agent(**settings).start()
    await die_under_the_second_step(agent, first_pod, helpers.assign(first_pod, agent=debugging), helpers)
    agent.terminate()
    await agent.ended()
    await agent.start()
    pod = await next_pod()
    (pod.directory / "sandbox-files" / "go").write_text("")
    more = {"attempt": 2, "replay_attempt": 1, "poisoned_steps": poisoned}
    await agent.put(helpers.assign(pod, agent=debugging, **more))
    over = await agent.over()
    # If the step in flight did not kill its sandbox, the model is requested again and may return the same reply.
    assert (over.reason, over.steps) in [(EndReason.RESOLVED, count) for count in ((4,) if poisoned else (3, 4))]
    _, steps = trajectory(agent, 2)
    repeated = ["I wait."] if not poisoned and over.steps == 4 else []
    assert texts_of(steps) == ["I look around.", "I wait.", *repeated, "I repair it.", "I am done."]
    exchanges = [exchange for step in steps for exchange in step.get("exchanges", [])]
    spent = sum(exchange["usage"]["inputTokens"] for exchange in exchanges)
    assert over.outcome.input_tokens == spent == pod.attempt.result.input_tokens
    prompt = [message.get("content") for message in server.received[2].body["messages"]]
    assert ("I wait." in prompt) == bool(poisoned)
    numbers = [number for exchange in exchanges for first, last in exchange["sent"] for number in (first, last)]
    assert max(numbers) == sum(len(exchange.get("messages", [])) for exchange in exchanges) - 1
