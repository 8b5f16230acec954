"""Tests of agent pods that die, drain or are replaced: each step is executed once, and each episode has its outcome."""

import json
from decimal import Decimal

import pytest

from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState
from tests.fakes.openai_server import FakeOpenAI, Fault
from tests.support.calc import BUGGY

WAITING_CHECK = """
import os, time
with open("counter.txt", "a") as counter:
    counter.write("program\\n")
while not os.path.exists("go"):
    time.sleep(0.02)
import calc
assert calc.add(2, 3) == 5
"""


@pytest.fixture
def counted(helpers):
    """Calls that append a line to a file. The second call waits for another file."""
    return (
        helpers.bash("echo 1 >> counter.txt"),
        helpers.bash("echo 2 >> counter.txt; until [ -e go ]; do sleep 0.02; done"),
        helpers.bash("echo 3 >> counter.txt"),
        helpers.repair,
        {"tool": "submit", "arguments": {}},
    )


@pytest.fixture
def counter(pod, helpers):
    class Counter:
        path = pod.directory / "sandbox-files" / "counter.txt"

        def lines(self):
            return self.path.read_text().split() if self.path.exists() else []

        async def reaches(self, *lines):
            await helpers.wait(lambda: self.lines() == list(lines))

        def go_on(self):
            (pod.directory / "sandbox-files" / "go").write_text("")

    return Counter()


async def test_a_restarted_agent_pod_resumes_in_the_middle_of_a_step(new_agent, pod, counter, counted, helpers):
    agent = await new_agent().start()
    await agent.put(helpers.assign(pod, *counted))
    await counter.reaches("1", "2")
    await helpers.wait(lambda: agent.folder().exists() and len(agent.steps()) == 2)
    agent.kill()
    await agent.start()
    assert (await agent.report()).assignments == ()
    await agent.put(helpers.assign(pod, *counted))
    counter.go_on()
    over = await agent.over()
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 5)
    assert counter.lines() == ["1", "2", "3"]
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2, 3, 4, 5]
    assert len(pod.attempt.session.trajectory()) == 6
    assert "dgym_agent_episodes_resumed_total 1.0" in (await agent.call("GET", "/metrics"))[1].decode()


async def test_the_solution_agent_resumes_after_a_restart(new_agent, pod, counter, helpers):
    files = [{"path": "calc.py", "content": BUGGY}]
    source = {"files": [*files, {"path": "check.py", "content": WAITING_CHECK}]}
    assignment = helpers.assign(pod, agent={"name": "solution"}, tools=(), source=source)
    agent = await new_agent().start()
    await agent.put(assignment)
    await counter.reaches("program")
    agent.kill()
    await agent.start()
    await agent.put(assignment)
    counter.go_on()
    over = await agent.over()
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 5)
    assert [step["call"]["tool"] for step in agent.steps()[1:]] == ["pdb", "pdb", "pdb", "eval", "submit"]
    assert counter.lines() == ["program", "program"]


async def test_another_agent_pod_takes_over_while_the_first_still_runs(
    agent, new_agent, pod, counter, counted, helpers
):
    first, second = agent, await new_agent().start()
    await first.put(helpers.assign(pod, *counted))
    await counter.reaches("1", "2")
    await second.put(helpers.assign(pod, *counted, epoch=2))
    await second.until(lambda status: status.state is AssignmentState.RUNNING)
    await helpers.wait(lambda: "resumed after the steps" in second.log.read_text())
    counter.go_on()
    over = await second.over()
    assert (over.reason, over.steps, over.epoch) == (EndReason.RESOLVED, 5, 2)
    await first.until(lambda status: status is None)
    assert counter.lines() == ["1", "2", "3"]
    assert [step["seq"] for step in second.steps()] == [0, 1, 2, 3, 4, 5]


async def test_a_draining_agent_pod_finishes_its_episodes_and_ends(new_agent, pod, counter, counted, helpers):
    agent = await new_agent().start()
    await agent.put(helpers.assign(pod, *counted))
    await counter.reaches("1", "2")
    agent.terminate()
    await helpers.wait(lambda: "draining" in agent.log.read_text())
    assert (await agent.report()).draining
    assert (await agent.call("GET", "/readyz"))[0] == 503
    status, body = await agent.put(helpers.assign(pod, *counted, episode_uid="other"))
    assert (status, json.loads(body)["code"]) == (503, "busy")
    assert (await agent.put(helpers.assign(pod, *counted)))[0] == 200
    counter.go_on()
    assert await agent.ended() == (0,)
    assert pod.termination().reason is EndReason.RESOLVED
    assert agent.result()["resolved"]


async def test_a_second_signal_ends_an_agent_pod_immediately_and_another_resumes(
    new_agent, pod, counter, counted, helpers
):
    agent = await new_agent().start()
    await agent.put(helpers.assign(pod, *counted))
    await counter.reaches("1", "2")
    agent.terminate()
    await helpers.wait(lambda: "draining" in agent.log.read_text())
    agent.terminate()
    assert await agent.ended() == (0,)
    assert not pod.attempt.released.is_set()
    assert [step["seq"] for step in agent.steps()] == [0, 1]
    await agent.start()
    await agent.put(helpers.assign(pod, *counted, epoch=2))
    counter.go_on()
    assert (await agent.over()).reason is EndReason.RESOLVED
    assert counter.lines() == ["1", "2", "3"]


@pytest.fixture
def models(tmp_path):
    """A function that writes the configuration of a model. It returns the environment variable with its path."""

    def write(server, **settings):
        path = tmp_path / "llm.yaml"
        model = {"model": "scripted", "endpoint": server.url, "api_key": "k", "max_tries": 1, **settings}
        path.write_text(json.dumps({"m": model}))
        return {"LLM_CONFIG_FILE_PATH": str(path)}

    return write


async def test_a_model_agent_resumes_with_the_recorded_messages(new_agent, pod, counter, models, helpers):
    async with FakeOpenAI(script=helpers.script) as server:
        agent = await new_agent(**models(server)).start()
        debugging = {"name": "debug_agent", "model": "m"}
        await agent.put(helpers.assign(pod, agent=debugging))
        await counter.reaches("1", "2")
        await helpers.wait(lambda: agent.folder().exists() and len(agent.steps()) == 2)
        await helpers.wait((agent.folder() / "step-in-flight.json").exists)
        agent.kill()
        await agent.start()
        await agent.put(helpers.assign(pod, agent=debugging))
        counter.go_on()
        over = await agent.over()
        bodies = [received.body for received in server.received]
    assert (over.reason, over.steps) == (EndReason.RESOLVED, 4)
    assert counter.lines() == ["1", "2"]
    steps = agent.steps()
    assert [step["seq"] for step in steps] == [0, 1, 2, 3, 4]
    # The exchanges before the step in flight are in the prompt of the second agent pod and in the trajectory.
    texts = [message.get("content") for message in bodies[2]["messages"] if message["role"] == "assistant"]
    assert texts == ["I look around.", "I wait."]
    assert [each["text"] for step in steps for each in step.get("exchanges", [])] == [
        text.text for text in helpers.script
    ]
    exchanges = [exchange for step in steps for exchange in step.get("exchanges", [])]
    numbers = [number for exchange in exchanges for first, last in exchange["sent"] for number in (first, last)]
    assert max(numbers) == sum(len(exchange.get("messages", [])) for exchange in exchanges) - 1
    spent = sum(exchange["usage"]["inputTokens"] for exchange in exchanges)
    assert over.outcome.input_tokens == spent > 0
    assert over.outcome.input_tokens == agent.result()["inputTokens"] == pod.attempt.result.input_tokens


async def test_after_a_failure_of_the_model_the_pod_is_kept_for_another_try(new_agent, pod, counter, models, helpers):
    counter.go_on()
    async with FakeOpenAI(script=helpers.script, faults=["server_error"]) as server:
        agent = await new_agent(**models(server)).start()
        debugging = {"name": "debug_agent", "model": "m"}
        await agent.put(helpers.assign(pod, agent=debugging))
        failed = await agent.over()
        assert (failed.state, failed.reason) == (AssignmentState.FAILED, EndReason.MODEL_ERROR)
        assert failed.outage
        assert not pod.attempt.released.is_set()
        assert not (agent.folder() / "result.json").exists()
        await agent.put(helpers.assign(pod, agent=debugging, epoch=2))
        over = await agent.until(lambda status: status.state is AssignmentState.FINISHED)
    assert (over.reason, over.epoch) == (EndReason.RESOLVED, 2)
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2, 3, 4]


async def test_an_unauthorized_request_is_not_retried(new_agent, pod, counter, models, helpers):
    counter.go_on()
    async with FakeOpenAI(script=helpers.script, faults=["unauthorized"]) as server:
        agent = await new_agent(**models(server, max_tries=8)).start()
        await agent.put(helpers.assign(pod, agent={"name": "debug_agent", "model": "m"}))
        over = await agent.over()
        assert len(server.received) == 1
    assert (over.state, over.reason, over.outage) == (AssignmentState.FINISHED, EndReason.MODEL_ERROR, False)
    assert pod.attempt.released.is_set()


async def test_further_episodes_do_not_call_a_model_during_an_outage(new_agent, pod, counter, models, helpers):
    counter.go_on()
    async with FakeOpenAI(script=helpers.script, faults=["server_error"] * 3) as server:
        agent = await new_agent(**models(server)).start()
        for epoch in range(1, 5):
            await agent.put(helpers.assign(pod, agent={"name": "debug_agent", "model": "m"}, epoch=epoch))
            failed = await agent.until(
                lambda found, epoch=epoch: found.epoch == epoch and found.state is AssignmentState.FAILED
            )
            assert failed.outage
        assert len(server.received) == 3
        assert "no episode begins with it until a probe is answered" in failed.cause
        (out,) = (await agent.report()).outages
        assert (out.model, out.probe) == ("m", False)
        _, metrics = await agent.call("GET", "/metrics")
    assert b'dgym_agent_model_outage{model="m"} 1.0' in metrics


async def test_a_model_that_answers_only_429_is_reported(new_agent, pod, counter, models, helpers):
    counter.go_on()
    limited = [Fault("rate_limit", retry_after="21")] * 9
    async with FakeOpenAI(script=helpers.script, faults=limited) as server:
        agent = await new_agent(**models(server, max_tries=8)).start()
        await agent.put(helpers.assign(pod, agent={"name": "debug_agent", "model": "m"}))
        waits = await agent.until(lambda status: status is not None and status.message)
        assert waits.state is AssignmentState.RUNNING
        assert waits.message in {f"waiting for the model: rate limited, try 1, again in {n} s" for n in (21, 22)}
        await agent.delete()


async def test_a_prompt_that_no_other_try_could_shorten_ends_the_episode(new_agent, pod, counter, models, helpers):
    counter.go_on()
    async with FakeOpenAI(script=helpers.script, context_limit=20) as server:
        agent = await new_agent(**models(server)).start()
        await agent.put(helpers.assign(pod, agent={"name": "debug_agent", "model": "m"}))
        over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.CONTEXT_EXHAUSTED)
    assert pod.attempt.released.is_set()


async def test_a_cost_limit_counts_what_earlier_attempts_have_cost(new_agent, pod, counter, models, helpers):
    counter.go_on()
    async with FakeOpenAI(script=helpers.script) as server:
        agent = await new_agent(**models(server, input_price=100, output_price=0)).start()
        spends = {"name": "debug_agent", "model": "m", "costLimit": "3"}
        await agent.put(helpers.assign(pod, agent=spends, earlier_price="2.75"))
        over = await agent.over()
        exchanges = [exchange for step in agent.steps() for exchange in step.get("exchanges", [])]
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.COST_LIMIT_REACHED)
    spent = sum((Decimal(exchange["usage"]["price"]) for exchange in exchanges), Decimal("2.75"))
    assert 0 < len(exchanges) < len(helpers.script)
    prices = over.price, over.outcome.price, pod.attempt.result.price, agent.result()["price"]
    assert {Decimal(price) for price in prices} == {spent}


async def test_a_cost_limit_of_a_model_without_prices_is_refused(new_agent, pod, models, helpers):
    async with FakeOpenAI(script=helpers.script) as server:
        agent = await new_agent(**models(server, input_price=100)).start()
        await agent.put(helpers.assign(pod, agent={"name": "debug_agent", "model": "m", "costLimit": "3"}))
        over = await agent.over()
    assert (over.reason, server.received) == (EndReason.INVALID_SPEC, [])
    assert "agent.costLimit is 3, but model 'm'" in over.cause
    assert "add input_price and output_price" in over.cause
