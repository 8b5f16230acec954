"""A kubelet and an agent that take no time, in a process of their own: ``python -m tests.perf.simulated_nodes``.

Each pod costs three writes, whichever controller has made it: the binding, the ready containers, and their end. The pod
of an episode ends once an agent has the episode, every other pod as soon as it is ready.
"""

import argparse
import asyncio
import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from dgym.wire import EndReason
from dgym.wire.assignments import AgentReport, Assignment, AssignmentState, AssignmentStatus
from dgym.wire.termination import TerminationMessage, encode_termination
from tests.apiserver import ApiServer
from tests.integration.operator.peers import MERGE, Api

NAMESPACE = "bench"
AGENT_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "agent"}
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_ADDRESS = "127.0.0.1"
_WRITERS = 64


class Nodes:
    """The kubelet of all pods, and the agent that is given all episodes."""

    def __init__(self, api: Api, slots: int) -> None:
        self._api = api
        self._slots = slots
        self._writers = asyncio.Semaphore(_WRITERS)
        self._statuses: dict[str, AssignmentStatus] = {}
        self._ending = asyncio.TaskGroup()

    async def run(self, port: int) -> None:
        """Serve until cancelled."""
        async with self._ending:
            if port:
                await self._serve(port)
            async for kind, pod in self._api.watch(_PODS):
                self._ending.create_task(self._observe(kind, pod))

    async def _observe(self, kind: str, pod: dict[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels", {})
        if labels.get("app.kubernetes.io/component") == "agent":
            return
        if kind == "ADDED":
            is_episode = labels.get("app.kubernetes.io/component") == "sandbox"
            await self.start(name)
            if not is_episode:
                await self.end(name, pod["spec"]["containers"], "")
        elif kind == "MODIFIED" and pod["metadata"].get("deletionTimestamp"):
            await self._write("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0")

    async def start(self, name: str) -> None:
        """The pod is scheduled, and its containers are ready."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._write("POST", f"{_PODS}/{name}/binding", binding)
        conditions = [_condition("PodScheduled"), _condition("Ready")]
        status = {"phase": "Running", "podIP": _ADDRESS, "podIPs": [{"ip": _ADDRESS}], "conditions": conditions}
        await self._write("PATCH", f"{_PODS}/{name}/status", {"status": status})

    async def end(self, name: str, containers: list[dict[str, Any]], message: str) -> None:
        """All containers have succeeded; the sidecar leaves the message."""
        now = _now()
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
        statuses = [
            {
                "name": each["name"],
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended | ({"message": message} if each["name"] == "sidecar" else {})},
            }
            for each in containers
        ]
        status = {"phase": "Succeeded", "conditions": [_condition("Ready", "False")], "containerStatuses": statuses}
        await self._write("PATCH", f"{_PODS}/{name}/status", {"status": status})

    async def _write(self, method: str, path: str, body: Any = None) -> None:
        async with self._writers:
            with contextlib.suppress(aiohttp.ClientResponseError):  # The pod was deleted meanwhile.
                await self._api.call(method, path, body, MERGE if method == "PATCH" else "application/json")

    async def _serve(self, port: int) -> None:
        application = web.Application(client_max_size=2**24)
        application.router.add_get("/v1/assignments", self._report)
        application.router.add_put("/v1/assignments/{uid}", self._assign)
        application.router.add_delete("/v1/assignments/{uid}", self._withdraw)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, _ADDRESS, port).start()
        spec = {"containers": [{"name": "agent", "image": "agent"}]}
        await self._api.call("POST", _PODS, {"metadata": {"name": "agent-0", "labels": AGENT_LABELS}, "spec": spec})
        await self.start("agent-0")

    async def _report(self, _request: web.Request) -> web.Response:
        report = AgentReport(incarnation="1", slots=self._slots, assignments=tuple(self._statuses.values()))
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _assign(self, request: web.Request) -> web.Response:
        assignment = msgspec.json.decode(await request.read(), type=Assignment)
        uid = assignment.episode_uid
        if uid not in self._statuses:
            self._statuses[uid] = AssignmentStatus(
                episode_uid=uid, attempt=assignment.attempt, epoch=assignment.epoch, state=AssignmentState.RUNNING
            )
            self._ending.create_task(self._finish(assignment))
        return web.json_response({})

    async def _finish(self, assignment: Assignment) -> None:
        message = TerminationMessage(
            episode_uid=assignment.episode_uid,
            attempt=assignment.attempt,
            reason=EndReason.RESOLVED,
            resolved=True,
            score=1,
            max_score=1,
            steps=3,
            result_uri="file:///results/x",
        )
        containers = [{"name": name} for name in ("sandbox", "verifier", "sidecar")]
        await self.end(assignment.pod_name, containers, encode_termination(message).decode())

    async def _withdraw(self, request: web.Request) -> web.Response:
        self._statuses.pop(request.match_info["uid"], None)
        return web.json_response({})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": _now()}


async def _main(directory: Path, port: int, slots: int) -> None:
    facts = json.loads((directory / "server.json").read_text())
    with (directory / "users.lock").open("rb") as share:
        server = ApiServer(directory, facts["url"], facts["token"], share)
        async with Api.connect(server) as api:
            await Nodes(api, slots).run(port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--agent-port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(_main(given.directory, given.agent_port, given.slots))
