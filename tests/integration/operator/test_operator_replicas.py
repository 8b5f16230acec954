"""Tests of running episodes when agent pods and operators are replaced: the episodes continue."""

import asyncio
import os
import signal
import sys

import pytest

from tests.integration.operator.peers import until


async def begin(installation, name="fix"):
    """Create an episode, wait until an agent pod has it, and return the agent pod and the UID."""
    uid = (await installation.episode(name))["metadata"]["uid"]
    agents = installation.agents
    agent = await until(lambda: next((each for each in agents if uid in each.held), None), f"{name} is assigned")
    return agent, uid


async def test_an_episode_of_a_lost_agent_pod_is_reassigned_with_a_higher_epoch(installation):
    first, second = await installation.start_agent("agent-0"), await installation.start_agent("agent-1")
    first.playing = second.playing = False
    await installation.start_operator(agent_pod_silence_seconds=1.5)
    agent, uid = await begin(installation)
    other = second if agent is first else first
    await agent.hang_up()
    await until(lambda: uid in other.held, "the other has it")
    assert (other.held[uid].epoch, other.held[uid].attempt) == (2, 1)
    await other.finish(uid)
    assert (await installation.finished("fix"))["status"]["assignment"]["agentPodUID"] == other.uid


async def test_a_restarted_agent_pod_gets_its_assignments_again(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    _, uid = await begin(installation)
    await agent.hang_up()
    await agent.listen()
    await until(lambda: uid in agent.held, "it is told again")
    assert agent.held[uid].epoch == 1
    await agent.finish(uid)
    await installation.finished("fix")


async def test_an_agent_whose_pod_is_deleted_is_lost_at_once(installation):
    first, second = await installation.start_agent("agent-0"), await installation.start_agent("agent-1")
    first.playing = second.playing = False
    await installation.start_operator(agent_pod_silence_seconds=300.0)
    agent, uid = await begin(installation)
    other = second if agent is first else first
    path = f"{installation.core('pods', agent.name)}?gracePeriodSeconds=0"
    await installation.api.call("DELETE", path)
    await until(lambda: uid in other.held, "the other has it")
    assert other.held[uid].epoch == 2


async def test_a_new_leader_continues_the_work_of_the_old_leader(installation):
    agent = await installation.start_agent(slots=1)
    agent.playing = False
    first = await installation.start_operator(head_start=0)
    _, uid = await begin(installation)
    second = await installation.start_operator(head_start=0)
    await until(lambda: second.port, "it is up")
    await installation.episode("next")
    await installation.stop_operator(0)
    assert not first.elector.is_leader()
    await until(second.elector.is_leader, "the other leads")
    await until(lambda: any(each.report for each in second.cache.agent_pods), "it has asked the agent")
    # The only slot is used. The new leader derives this from the Episodes alone.
    assert list(await installation.pods()) == ["fix-1"]
    agent.playing = True
    await agent.finish(uid)
    for name in ("fix", "next"):
        assert (await installation.finished(name))["status"]["attempt"] == 1
    assert {given.epoch for given in agent.given} == {1}


def _lists(operator):
    """Number of list requests for Episodes, to fill the cache or to catch up."""
    series = 'dgym_operator_api_requests_total{code="200",resource="episodes",verb="list"} '
    lines = operator.metrics.text().decode().splitlines()
    return sum(float(line.removeprefix(series)) for line in lines if line.startswith(series))


async def test_a_stopping_leader_releases_the_lease_immediately(installation):
    agent = await installation.start_agent()
    agent.playing = False
    # If the second operator did not watch the Lease, it would retry only after minutes and the test would fail.
    slow = {"lease_retry_seconds": 300.0, "lease_renew_seconds": 310.0, "lease_seconds": 320.0}
    first = await installation.start_operator(**slow)
    await until(first.elector.is_leader, "the first leads")
    second = await installation.start_operator(**slow)
    await until(lambda: second.elector.holder, "the second stands by")
    _, uid = await begin(installation)
    await installation.stop_operator(0)
    await until(second.elector.is_leader, "the second leads")
    agent.playing = True
    await agent.finish(uid)
    assert (await installation.finished("fix"))["status"]["epoch"] == 1
    # The watch of the second operator has shown all writes of the first, so no further list request is necessary.
    assert (second.elector.handed_over != "", _lists(second)) == (True, 1.0)


class Process:
    """An operator process, started with the command of its container."""

    def __init__(self, process, log):
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, installation, log):
        settings = {
            "NAMESPACE": installation.namespace,
            "WATCH_NAMESPACES": installation.namespace,
            "SANDBOX_IMAGE": "sandbox",
            "SIDECAR_IMAGE": "sidecar",
            "AGENT_PORT": installation.agent_port,
            "HOST": "127.0.0.1",
            "PORT": 0,
            "LOG_LEVEL": "DEBUG",
        }
        environment = {f"DGYM_OPERATOR_{name}": str(value) for name, value in settings.items()}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dgym_operator", "run", "--kubeconfig", installation.server.kubeconfig,
                env={**os.environ, **environment}, stderr=output,
            )  # fmt: skip
        return cls(process, log)

    async def end(self, number):
        self._process.send_signal(number)
        status = await asyncio.wait_for(self._process.wait(), 60)
        return status, self._log.read_text()


async def test_an_operator_that_is_killed_is_replaced(installation, tmp_path):
    agent = await installation.start_agent()
    agent.playing = False
    process = await Process.start(installation, tmp_path / "first.log")
    try:
        _, uid = await begin(installation)
        status, _ = await process.end(signal.SIGKILL)
        assert status == -signal.SIGKILL
        process = await Process.start(installation, tmp_path / "second.log")
        await agent.finish(uid)
        finished = await installation.finished("fix")
        assert (finished["status"]["attempt"], finished["status"]["assignment"]["epoch"]) == (1, 1)
    finally:
        status, log = await process.end(signal.SIGTERM)
    assert status == 0, log
    assert '"message":"stops: no new work is taken, writes in flight are finished"' in log
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{installation.namespace}/leases/dgym-operator"
    assert not (await installation.api.call("GET", lease))["spec"].get("holderIdentity")
    key = await installation.api.call("GET", installation.core("secrets", "dgym-key"))
    assert key["data"]["key"] not in log
    assert agent.refusals == []


@pytest.mark.parametrize("name", ["DGYM_OPERATOR_PORT", "DGYM_OPERATOR_API_BURST"])
async def test_wrong_settings_are_named(name):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dgym_operator", "run", env={**os.environ, name: "many"}, stderr=asyncio.subprocess.PIPE
    )
    _, log = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 2
    assert name in log.decode()
