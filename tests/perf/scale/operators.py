"""Measured operators, and the simulated nodes and agent pods that they use."""

import json
import socket
import urllib.request
from typing import Any

from tests.perf.scale.control_plane import GROUP, NAMESPACE, ControlPlane, Process

SET = "bench"
TASK = "calc"
_SAMPLES = 1000
"""Highest number of samples for a task in a set."""
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/dgym-operator"


class Replica:
    """An operator process with settings as in the chart. ``settings`` replace them."""

    def __init__(self, plane: ControlPlane, number: int = 0, *, agent_port: int | None = None, **settings: Any) -> None:
        self.name = f"operator-{number}"
        self.agent_port = agent_port or free_port()
        self.port = free_port()
        given = {
            "namespace": NAMESPACE,
            "pod_name": self.name,
            "watch_namespaces": NAMESPACE,
            "sandbox_image": "sandbox:1",
            "sidecar_image": "sidecar:1",
            "agent_port": self.agent_port,
            "host": "127.0.0.1",
            "port": self.port,
            **settings,
        }
        environment = {f"DGYM_OPERATOR_{name.upper()}": str(value) for name, value in given.items()}
        self.process = plane.start(self.name, "-m", "dgym_operator", "run", environment=environment)

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def is_ready(self) -> bool:
        """True if the caches are filled."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    def leads(self) -> bool:
        """True if the replica reports in its metrics that it holds the Lease."""
        try:
            return self.metric("dgym_operator_is_leader") == 1.0
        except OSError:
            return False


class SimulatedNodes:
    """The process of all nodes and agents."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}"

    def counts(self) -> dict[str, int]:
        """Pods ``started`` and ``ended`` so far, and episodes that are ``held``."""
        with urllib.request.urlopen(f"{self._url}/counts", timeout=30) as answer:
            found: dict[str, int] = json.loads(answer.read())
            return found

    def end(self, count: int, *, rate: float) -> None:
        """End ``count`` of the held episodes, ``rate`` per second."""
        request = urllib.request.Request(f"{self._url}/end?count={count}&rate={rate}", method="POST")
        urllib.request.urlopen(request, timeout=30).close()


def start_nodes(
    plane: ControlPlane, replica: Replica | None, *, agents: int = 0, slots: int = 0, hold: bool = False
) -> SimulatedNodes:
    """Start nodes, and agents if there is an operator. Returns once they serve."""
    port = replica.agent_port if replica is not None else free_port()
    arguments = ["--port", str(port), "--agents", str(agents), "--slots", str(slots), *(["--hold"] if hold else [])]
    process = plane.start("nodes", "-m", "tests.perf.scale.nodes", str(plane.server.directory), *arguments)
    nodes = SimulatedNodes(process, port)

    def serve() -> bool:
        try:
            return nodes.counts()["ready"] > 0
        except OSError:
            return False

    plane.wait(serve, "the simulated nodes")
    if replica is not None:
        plane.wait(
            lambda: replica.leads() and replica.metric("dgym_agents") == agents, "the operator to see its agents"
        )
    return nodes


def create_set(plane: ControlPlane, number: int, **spec: Any) -> None:
    """Create a set of ``number`` episodes, with as few tasks as the limit of ``samples`` allows."""
    task = {"entrypoint": "python -m pytest -q", "source": {"files": [{"path": "calc.py", "content": "x = 1\n"}]}}
    tasks = -(-number // _SAMPLES)
    if number % tasks:
        raise ValueError(f"{number} episodes are not as many of each of {tasks} tasks")
    for index in range(tasks):
        plane.create("DebugTask", {"name": f"{TASK}-{index}"}, task)
    plane.create(
        "EpisodeSet",
        {"name": SET},
        {
            "tasks": [{"name": f"{TASK}-{index}"} for index in range(tasks)],
            "samples": number // tasks,
            "parallelism": number,
            "template": {"agent": {"name": "solution"}},
            **spec,
        },
    )


def finished_set(plane: ControlPlane, number: int) -> bool:
    """True if the set has finished.

    Raises:
        AssertionError: If the set has finished and not all episodes were resolved.
    """
    status = plane.server.request("GET", f"{GROUP}/episodesets/{SET}").get("status", {})
    finished = any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", ()))
    if finished and status["resolved"] != number:
        raise AssertionError(f"not all episodes were resolved: {json.dumps(status)}")
    return finished


def lease(plane: ControlPlane) -> dict[str, Any]:
    """The spec of the leader's Lease."""
    spec: dict[str, Any] = plane.server.request("GET", _LEASE)["spec"]
    return spec


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
