"""Simulated kubelets and agent pods, in a separate process: ``python -m tests.perf.scale.nodes``.

Each pod costs three writes, independent of its controller: the binding, the ready containers, and their end. The pod
of an episode ends when its agent has the episode and, with ``--hold``, after a request to end it. Every other pod ends
when it is ready. Like real kubelets, the process requests protobuf from the API server.
"""

import argparse
import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.assignments import Assignment, AssignmentState
from dgym.wire.outcome import TerminationMessage, encode_termination
from tests.perf.scale.pods import PodEvent, Pods
from tests.simulation import reports
from tests.support.apiserver import ApiServer

_SANDBOX = "sandbox"
_ADDRESS = "127.0.0.1"


def agent_address(number: int) -> str:
    """The IP address of an agent pod. All agents listen on the same port."""
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


class Nodes:
    """The kubelet of all pods."""

    def __init__(self, pods: Pods, tasks: asyncio.TaskGroup) -> None:
        self.started = 0
        self.ended = 0
        self._pods = pods
        self._tasks = tasks
        self._over: set[str] = set()
        """Pods whose containers have ended. The API server deletes them without the kubelet."""

    async def run(self) -> None:
        """Watch the pods until cancelled."""
        async for event in self._pods.watch():
            self._tasks.create_task(self._observe(event))

    async def _observe(self, event: PodEvent) -> None:
        if event.component == "agent":
            return
        if event.kind == "ADDED":
            await self.start(event.name, _ADDRESS)
            self.started += 1
            if event.component != _SANDBOX:
                await self.end(event.name)
        elif event.kind == "MODIFIED" and event.is_deleted and event.name not in self._over:
            await self._pods.delete(event.name)
        elif event.kind == "DELETED":
            self._over.discard(event.name)

    async def create_agent(self, name: str, address: str) -> None:
        """Create and start the pod of an agent."""
        spec = {"containers": [{"name": "agent", "image": "agent"}]}
        await self._pods.create({"metadata": {"name": name, "labels": reports.AGENT_LABELS}, "spec": spec})
        await self.start(name, address)

    async def start(self, name: str, address: str) -> None:
        """Bind the pod and report its containers as ready."""
        await self._pods.bind(name)
        # The states of containers are omitted: the operator does not need them, and they take time.
        await self._pods.patch_status(name, reports.running(address, datetime.now(UTC), ()))

    async def end(self, name: str, message: str = "") -> None:
        """Report all containers as succeeded, with the termination message of the sidecar."""
        now = datetime.now(UTC)
        self._over.add(name)
        states = dict.fromkeys(reports.CONTAINERS, reports.terminated(now))
        states["sidecar"] = reports.terminated(now, message=message)
        await self._pods.patch_status(name, {"phase": "Succeeded", **reports.status(states, now)})
        self.ended += 1


class Agents:
    """All agents, which listen on the same port."""

    def __init__(self, nodes: Nodes, tasks: asyncio.TaskGroup, *, number: int, slots: int, hold: bool) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._number = number
        self._slots = slots
        self._hold = hold
        self._assignments = {agent_address(agent): reports.Assignments() for agent in range(number)}
        self._held: dict[str, Assignment] = {}
        self._ready = False

    async def serve(self, port: int) -> None:
        """Listen, and create the agents' pods."""
        application = web.Application(client_max_size=2**24)
        application.router.add_get("/v1/assignments", self._report)
        application.router.add_put("/v1/assignments/{uid}", self._assign)
        application.router.add_delete("/v1/assignments/{uid}", self._withdraw)
        application.router.add_get("/counts", self._counts)
        application.router.add_post("/end", self._end_held)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port).start()
        for agent in range(self._number):
            await self._nodes.create_agent(f"agent-{agent}", agent_address(agent))
        self._ready = True

    async def _report(self, request: web.Request) -> web.Response:
        report = self._assignments[_local_address(request)].report(self._slots)
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _assign(self, request: web.Request) -> web.Response:
        assignment = msgspec.json.decode(await request.read(), type=Assignment)
        uid, assignments = assignment.episode_uid, self._assignments[_local_address(request)]
        if assignments.is_newer(assignment):
            assignments.held[uid] = assignment
            assignments.set(assignment, AssignmentState.RUNNING, active_seconds=1, steps=1)
            self._held[uid] = assignment
            if not self._hold:
                self._end((uid,))
        return web.json_response({})

    def _end(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._tasks.create_task(self._finish(self._held.pop(uid)))

    async def _finish(self, assignment: Assignment) -> None:
        message = TerminationMessage(
            episode_uid=assignment.episode_uid,
            attempt=assignment.attempt,
            outcome=AttemptOutcome(
                resolved=True,
                reason=EndReason.RESOLVED,
                score=1,
                max_score=1,
                steps=3,
                result_uri="file:///results/x",
            ),
        )
        await self._nodes.end(assignment.pod_name, encode_termination(message).decode())

    async def _withdraw(self, request: web.Request) -> web.Response:
        self._assignments[_local_address(request)].drop(request.match_info["uid"])
        return web.json_response({})

    async def _counts(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "ready": int(self._ready),
                "started": self._nodes.started,
                "ended": self._nodes.ended,
                "held": len(self._held),
            }
        )

    async def _end_held(self, request: web.Request) -> web.Response:
        """End ``count`` of the held episodes, ``rate`` per second."""
        count, rate = int(request.query["count"]), float(request.query["rate"])
        self._tasks.create_task(self._end_at_rate(count, rate))
        return web.json_response({})

    async def _end_at_rate(self, count: int, rate: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(count):
            await asyncio.sleep(begun + number / rate - loop.time())
            self._end(tuple(self._held)[:1])


def _local_address(request: web.Request) -> str:
    assert request.transport is not None
    return str(request.transport.get_extra_info("sockname")[0])


async def _main(given: argparse.Namespace) -> None:
    facts = json.loads((given.directory / "server.json").read_text())
    with (given.directory / "users.lock").open("rb") as share:
        server = ApiServer(given.directory, facts["url"], facts["token"], share)
        async with Pods.connect(server) as pods, asyncio.TaskGroup() as tasks:
            nodes = Nodes(pods, tasks)
            agents = Agents(nodes, tasks, number=given.agents, slots=given.slots, hold=given.hold)
            await agents.serve(given.port)
            await nodes.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agents", type=int, default=0)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--hold", action="store_true", help="end episodes only when told to")
    asyncio.run(_main(parser.parse_args()))
