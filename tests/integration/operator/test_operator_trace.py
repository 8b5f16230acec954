"""Tests of the trace of an episode: spans of an operator, a worker process, a sidecar and runners in one trace."""

import asyncio
import base64
import json

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dgym.episodes.agent_pod._tokens import write_tokens
from dgym.tracing import Tracer
from dgym.tracing._export import SdkExporter
from dgym_operator.controllers import _inputs
from tests.fakes.otlp_receiver import receiving
from tests.fakes.pods import FILES, REPAIR, pods_in
from tests.integration.episodes.agent_pod.conftest import Agent as WorkerProcess
from tests.integration.operator.peers import Agent, loopback_address, until
from tests.support.calc import SOLUTION

SECRET = "c2VjcmV0IG9mIHRoZSBjb2xsZWN0b3I="


class RealAgent(Agent):
    """An agent pod with a real worker process."""

    async def listen(self):
        """Do nothing: the worker process can start only after the pod has a UID, which determines its key."""

    async def work(self):
        (self.directory / "tokens").mkdir()
        write_tokens(self.directory / "pool", self.directory / "tokens", self.uid)
        self.worker = await WorkerProcess(
            self.directory, host=self.address, port=self.port, tokens_directory=self.directory / "tokens", **self.more
        ).start()


async def start_agent(installation, directory, receiver):
    directory.mkdir()
    secret = await until(
        lambda: installation.api.find(installation.core("secrets", "dgym-agent-keys")), "the operator made tokens"
    )
    (directory / "pool").mkdir()
    for name, value in secret["data"].items():
        (directory / "pool" / name).write_bytes(base64.b64decode(value))
    agent = RealAgent(
        installation.api, installation.namespace, installation.kubelet, name="agent-0", port=installation.agent_port
    )
    agent.directory = directory
    agent.more = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
    }
    await agent.start()
    await agent.work()
    return agent


async def started_pod(installation, make, name):
    """Start the Episode's pod: runners, and a sidecar process with the digests that the operator wrote into the pod."""

    async def created():
        return (await installation.pods()).get(name)

    found = await until(created, "the pod is created")
    sidecar = next(each for each in found["spec"]["containers"] if each["name"] == "sidecar")
    digests = {
        each["name"].removeprefix("DGYM_SIDECAR_").lower(): each["value"]
        for each in sidecar["env"]
        if each["name"].endswith("_SHA256")
    }
    uid = found["metadata"]["ownerReferences"][0]["uid"]
    pod = make(host=loopback_address(), episode_uid=uid, episode=f"{installation.namespace}/fix", **digests)
    pod.start_runners()
    pod.start_process()
    return pod, await pod.listening()


async def test_an_episode_is_one_trace_from_the_operator_to_the_verifier(installation, tmp_path, monkeypatch):
    memory = InMemorySpanExporter()
    tracer = Tracer(SdkExporter("dgym-operator", memory))
    installation.kubelet.starting = False
    await installation.start_operator(tracer=tracer)
    async with receiving() as receiver, pods_in(tmp_path) as make:
        agent = await start_agent(installation, tmp_path / "agent", receiver)
        task = {
            "entrypoint": "python check.py",
            "workingDirectory": str(tmp_path / "workspace"),
            "source": {"files": [{"path": path, "content": text} for path, text in FILES.items()]},
            "solution": SOLUTION,
        }
        look = {"tool": "bash", "arguments": {"command": "env; cat /proc/*/environ"}}
        await installation.episode("fix", task=task, agent=replayed(look, REPAIR), tools=["bash", "rewrite", "submit"])
        pod, (address, port) = await started_pod(installation, make, "fix-1")
        monkeypatch.setattr(_inputs, "SIDECAR_PORT", port)
        await installation.kubelet.start("fix-1", address)
        await asyncio.to_thread(pod.runners["sandbox"].wait, 90)
        await installation.kubelet.end("fix-1", container="sandbox")
        finished = await installation.finished("fix")
        assert finished["status"]["reason"] == "Resolved", finished["status"]
        shown = (agent.worker.results / installation.namespace).rglob("trajectory.jsonl")
        agent.worker.close()
        trajectory = next(shown).read_text()
    await installation.stop_operator()
    tracer.close()
    operators = {each.name: each for each in memory.get_finished_spans()}
    uid = finished["metadata"]["uid"]
    root = operators["episode"]
    trace_id, root_id = f"{root.context.trace_id:032x}", f"{root.context.span_id:016x}"
    assert {each.trace_id for each in receiver.spans} == {trace_id}
    assert {each.service for each in receiver.spans} == {"dgym-agent", "dgym-sidecar"}
    assert root.attributes["gen_ai.conversation.id"] == uid
    assert {"stage scheduled", "stage assigned", "stage released"} <= set(operators)
    by_id = {each.span_id: each for each in receiver.spans}

    def above(span):
        while span.parent_id in by_id:
            span = by_id[span.parent_id]
            yield span.name

    attempt = receiver.one("attempt 1")
    assert attempt.parent_id == root_id
    assert all(each.parent_id in {*by_id, root_id} for each in receiver.spans)
    invoked = receiver.one("invoke_agent replay")
    rewrite = receiver.one("execute_tool rewrite")
    assert rewrite.parent_id == invoked.span_id
    assert rewrite.attributes["gen_ai.conversation.id"] == uid
    step = next(each for each in receiver.named("POST /v1/steps/{seq}") if each.parent_id == rewrite.span_id)
    assert (step.service, step.kind) == ("dgym-sidecar", 2)
    assert not [each for each in receiver.spans if each.failed and each.service == "dgym-sidecar"]
    scoring = receiver.one("score")
    assert scoring.service == "dgym-sidecar"
    assert scoring.attributes["dgym.score"] == 1
    assert "attempt 1" in list(above(scoring))
    assert scoring.span_id in {each.parent_id for each in receiver.named("run entrypoint")}
    # The sandbox has neither the credentials nor the address of the collector.
    assert all(each["Authorization"] == SECRET for each in receiver.headers)
    assert "PATH=" in trajectory
    assert SECRET not in trajectory
    assert "OTEL_" not in trajectory.replace("OTEL_*", "")


def replayed(*calls):
    text = "\n".join(json.dumps(call) for call in (*calls, {"tool": "submit", "arguments": {}}))
    return {"name": "replay", "parameters": {"trajectory": text}}
