import asyncio
import contextlib
import secrets
import socket
from random import Random

import aiohttp
import msgspec
import pytest

from dgym.api import custom_resource_definitions
from dgym.kube import SystemClock, load_access
from dgym.tracing import OFF, Tracer
from dgym_operator.app import Operator
from dgym_operator.controllers import Policy, _inputs
from dgym_operator.settings import Settings
from tests.integration.operator.peers import GROUP, Agent, Api, Kubelet, Sidecars, until

TASK = {"entrypoint": "python -m pytest -q", "source": {"files": [{"path": "calc.py", "content": "x = 1\n"}]}}
POLICY = Policy(
    agent_pod_report_seconds=0.3,
    lease_retry_seconds=0.3,
    backoff_seconds=0.2,
    backoff_limit_seconds=1.0,
    shown_after_seconds=0.3,
    repeat_seconds=0.3,
    create_retry_seconds=0.3,
    settle_seconds=0.0,
)


class Installation:
    """An operator in one namespace, with the fake kubelet, sidecars and agent pods that it works with."""

    def __init__(self, api: Api, server, namespace: str, sidecars: Sidecars) -> None:
        self.api = api
        self.server = server
        self.namespace = namespace
        self.sidecars = sidecars
        self.kubelet = Kubelet(api, namespace, sidecars)
        self.agents: list[Agent] = []
        self.operators: list[tuple[Operator, asyncio.Event, asyncio.Task]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.agent_port = free.getsockname()[1]

    # Operators

    async def start_operator(self, policy: Policy = POLICY, tracer: Tracer = OFF, **overrides) -> Operator:
        settings = Settings(
            **{
                "namespace": self.namespace,
                "watch_namespaces": (self.namespace,),
                "sandbox_image": "sandbox",
                "sidecar_image": "sidecar",
                "agent_port": self.agent_port,
                "host": "127.0.0.1",
                "port": 0,
                "api_qps": 1000.0,
                "api_burst": 1000,
                **{name: value for name, value in overrides.items() if name not in Policy.__struct_fields__},
            }
        )
        access = await load_access(self.server.kubeconfig)
        operator = Operator(
            settings,
            access,
            clock=SystemClock(),
            random=Random(1),
            random_bytes=secrets.token_bytes,
            policy=msgspec.structs.replace(
                policy, **{name: value for name, value in overrides.items() if name in Policy.__struct_fields__}
            ),
            tracer=tracer,
        )
        stop = asyncio.Event()
        self.operators.append((operator, stop, asyncio.ensure_future(operator.run(stop))))
        return operator

    async def stop_operator(self, number: int = -1) -> None:
        """Stop the operator in the same way as SIGTERM does."""
        _, stop, task = self.operators.pop(number)
        stop.set()
        await asyncio.wait_for(task, 60)

    # Agents

    async def start_agent(self, name: str = "agent-0", **settings) -> Agent:
        agent = Agent(self.api, self.namespace, self.kubelet, name=name, port=self.agent_port, **settings)
        await agent.start()
        self.agents.append(agent)
        return agent

    # Objects

    def path(self, plural: str, name: str = "") -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def core(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def create(self, kind: str, name: str, spec, **metadata):
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        return await self.api.call("POST", self.path(f"{kind.lower()}s"), body)

    async def episode(self, name: str, **spec):
        given = {"task": TASK, "agent": {"name": "solution"}, **spec}
        return await self.create("Episode", name, {key: value for key, value in given.items() if value is not None})

    async def get(self, name: str, plural: str = "episodes"):
        return await self.api.find(self.path(plural, name))

    async def finished(self, name: str, plural: str = "episodes"):
        async def look():
            found = await self.get(name, plural)
            return found if found and condition(found, "Finished") == "True" else None

        return await until(look, f"{name} is finished")

    async def status(self, name: str, what: str, check):
        async def look():
            found = await self.get(name)
            return found if found and check(found.get("status", {})) else None

        return await until(look, what)

    async def event(self, reason: str, namespace: str = "") -> str:
        """Wait for an Event with that reason and return its note. The default namespace is the installation's."""

        async def recorded():
            events = await self.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace or self.namespace}/events")
            return next((each["note"] for each in events if each["reason"] == reason), None)

        return await until(recorded, f"the Event {reason}")

    async def pods(self):
        found = await self.api.items(self.kubelet.path)
        return {pod["metadata"]["name"]: pod for pod in found if pod["metadata"]["name"] not in self._agent_names()}

    async def is_empty(self):
        return not await self.pods()

    def _agent_names(self):
        return {agent.name for agent in self.agents}

    def writes(self):
        """Writes of operators in this namespace, without Leases and Events: (verb, resource, name, HTTP status)."""
        found = []
        for event in self.server.writes():
            reference = event.get("objectRef", {})
            ours = event.get("userAgent", "").startswith("dgym-operator")
            if ours and reference.get("namespace") == self.namespace and event.get("stage") == "ResponseComplete":
                status = event.get("responseStatus", {}).get("code", 0)
                found.append((event["verb"], reference["resource"], reference.get("name", ""), status))
        return [write for write in found if write[1] not in ("leases", "events")]


async def get(operator: Operator, path: str) -> tuple[int, str]:
    """Status and text of the operator's answer at ``/healthz``, ``/readyz`` or ``/metrics``."""
    url = f"http://127.0.0.1:{operator.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


def condition(item, kind: str) -> str | None:
    conditions = item.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)


@pytest.fixture(scope="session")
def definitions(api_server):
    """The custom resource definitions. Server-side apply lets concurrent test runs install them without conflicts."""
    for definition in custom_resource_definitions():
        name = definition["metadata"]["name"]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=tests&force=true"
        api_server.request("PATCH", path, definition, content_type="application/apply-patch+yaml")


@pytest.fixture
async def sidecars(monkeypatch):
    made = Sidecars()
    await made.start()
    # In a pod the fixed port is always free. On this machine another process may use it.
    monkeypatch.setattr(_inputs, "SIDECAR_PORT", made.port)
    yield made
    await made.stop()


@pytest.fixture
async def installation(api_server, definitions, api_namespace, sidecars):
    async with Api.connect(api_server) as api:
        for plural in ("debugtasks", "episodes", "episodesets", "sandboxpools"):
            path = f"{GROUP}/namespaces/{api_namespace}/{plural}"
            await until(lambda path=path: api.find(path), f"{plural} are served")
        made = Installation(api, api_server, api_namespace, sidecars)
        kubelet = asyncio.ensure_future(made.kubelet.run())
        try:
            yield made
        finally:
            kubelet.cancel()
            for agent in made.agents:
                await agent.hang_up()
            for _, stop, _ in made.operators:
                stop.set()
            await asyncio.gather(*(task for _, _, task in made.operators), return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await kubelet
