"""Comparison of episodes with the operator, and as many Jobs of the same PodSpec with the Job controller.

Each side has a separate server, with the same simulated nodes. CPU is counted from the creation of the first object
to the end of the last. The operator creates episodes from a set. This process creates Jobs over persistent
connections. The operator deletes the pods of episodes, the Job controller keeps the pods of Jobs.
"""

import asyncio
import os
import secrets
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from dgym.api import DebugTaskSpec
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings
from tests.perf.measure import Figure
from tests.perf.scale.control_plane import NAMESPACE, ControlPlane, Process, Usage, binary, control_plane
from tests.perf.scale.operators import SET, Replica, create_set, finished_set, start_nodes

_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_CREATORS = 16
_AGENT_PODS, _SLOTS = 4, 50
_FASTER, _LIGHTER = 1.4, 0.7
_OPERATOR_MS = 5.0
_GROWTH = 1.2
_SIZES = (("EPISODES", "2000"), ("MANY", "10000"))


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the episodes or of the Jobs.

    Attributes:
        number: Number of episodes or Jobs.
        usage: CPU and wall time of all of them.
        memory: The controller's largest resident set in MB.
        requests: Number of requests by verb and resource, from the API server's metrics.
        writes: Number of writes by user agent, verb and resource, from the audit log.
        load: Load average of the machine over the last minute, at the end.
    """

    number: int
    usage: Usage
    memory: float
    requests: dict[str, int]
    writes: dict[str, int]
    load: float

    def each(self, seconds: float) -> float:
        """Milliseconds for each episode or Job."""
        return 1e3 * seconds / self.number

    @property
    def writes_each(self) -> float:
        """Writes for each episode or Job."""
        return sum(self.writes.values()) / self.number


class Comparison(msgspec.Struct, frozen=True):
    """Figures of the episodes and of the Jobs."""

    episodes: Side
    jobs: Side


def compare(scratch: Path, number: int) -> Comparison:
    """Measure ``number`` Jobs, then as many episodes."""
    with control_plane(scratch / "jobs") as plane:
        jobs = run_jobs(plane, number)
    with control_plane(scratch / "episodes") as plane:
        episodes = run_episodes(plane, number)
    return Comparison(episodes, jobs)


def throughput_figures(scratch: Path) -> list[Figure]:
    """The comparison with ``DGYM_PERF_EPISODES`` episodes, and the operator with ``DGYM_PERF_MANY`` episodes."""
    number, many = (int(os.environ.get(f"DGYM_PERF_{name}", default)) for name, default in _SIZES)
    found = compare(scratch, number)
    with control_plane(scratch / "many") as plane:
        large = run_episodes(plane, many)
    small_ms = found.episodes.each(found.episodes.usage.controller)
    growth = Figure(
        name=f"{many:,} episodes: CPU of the operator",
        unit="ms",
        median=large.each(large.usage.controller),
        aim=small_ms * _GROWTH,
        baseline=small_ms,
        baseline_name=f"{number:,}",
    )
    return [*comparison_figures(found), growth]


def comparison_figures(found: Comparison) -> list[Figure]:
    """The figures of a comparison, with their aims."""
    episodes, jobs = found.episodes, found.jobs
    what = f"{episodes.number:,} episodes"

    def figure(name: str, unit: str, ours: float, theirs: float, aim: float | None = None) -> Figure:
        return Figure(name=f"{what}: {name}", unit=unit, median=ours, aim=aim, baseline=theirs, baseline_name="Jobs")

    wall = jobs.each(jobs.usage.seconds)
    server = jobs.each(jobs.usage.server)
    return [
        figure("wall time each", "ms", episodes.each(episodes.usage.seconds), wall, wall / _FASTER),
        figure("CPU of API server and etcd", "ms", episodes.each(episodes.usage.server), server, server * _LIGHTER),
        figure(
            "CPU of the operator",
            "ms",
            episodes.each(episodes.usage.controller),
            jobs.each(jobs.usage.controller),
            _OPERATOR_MS,
        ),
        figure("CPU of nodes", "ms", episodes.each(episodes.usage.nodes), jobs.each(jobs.usage.nodes)),
        figure("writes", "each", episodes.writes_each, jobs.writes_each),
        figure("memory of the operator", "MB", episodes.memory, jobs.memory),
        figure("load average of the machine", "", episodes.load, jobs.load),
    ]


def run_episodes(plane: ControlPlane, number: int) -> Side:
    """Measure a set of episodes, from its creation to its end."""
    replica = Replica(plane)
    nodes = start_nodes(plane, replica, agents=_AGENT_PODS, slots=_SLOTS)
    before = _Before(plane, replica.process, nodes.process)
    create_set(plane, number)
    plane.wait(lambda: finished_set(plane, number), "all episodes to finish")
    return before.until_now(number)


def run_jobs(plane: ControlPlane, number: int) -> Side:
    """Measure Jobs, from the creation of the first to the end of the last."""
    flags = (
        "--controllers=job-controller",
        "--leader-elect=false",
        "--concurrent-job-syncs=50",
        "--kube-api-qps=5000",
        "--kube-api-burst=10000",
        "--secure-port=0",
        f"--kubeconfig={plane.server.kubeconfig}",
    )
    manager = plane.start("job-controller", *flags, program=binary("kube-controller-manager"))
    nodes = start_nodes(plane, None)
    before = _Before(plane, manager, nodes.process)
    asyncio.run(_create_jobs(plane, number))
    plane.wait(lambda: nodes.counts()["ended"] >= number, "all pods to end")
    plane.wait(lambda: _are_complete(plane), "all Jobs to be complete")
    return before.until_now(number)


class _Before:
    """The state before a measurement."""

    def __init__(self, plane: ControlPlane, controller: Process, nodes: Process) -> None:
        self._plane = plane
        self._controller = controller
        self._nodes = nodes
        # The API server uses CPU to return metrics, so they are requested outside of the measured time.
        self._requests, self._writes = plane.requests(), plane.writes()
        self._usage = plane.usage(controller, nodes)

    def until_now(self, number: int) -> Side:
        usage = self._plane.usage(self._controller, self._nodes).since(self._usage)
        load, memory = os.getloadavg()[0], self._controller.largest_mb
        requests, writes = self._plane.requests(), self._plane.writes()
        return Side(
            number=number,
            usage=usage,
            memory=memory,
            requests=_sorted(requests - self._requests),
            writes=_sorted(writes - self._writes),
            load=load,
        )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(counts.most_common())


async def _create_jobs(plane: ControlPlane, number: int) -> None:
    template = job_template()
    tls = ssl.create_default_context(cafile=plane.server.ca_file)
    headers = {"Authorization": f"Bearer {plane.server.token}", "User-Agent": "benchmark"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers) as session:
        numbers = iter(range(number))

        async def create() -> None:
            for each in numbers:
                body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"bench-{each}"}}
                async with session.post(
                    plane.server.url + _JOBS, json=body | {"spec": {"template": template}}
                ) as answer:
                    await answer.read()
                    answer.raise_for_status()

        async with asyncio.TaskGroup() as creators:
            for _ in range(_CREATORS):
                creators.create_task(create())


def _are_complete(plane: ControlPlane) -> bool:
    # The server would have to encode megabytes for a list of all Jobs.
    found = plane.server.request("GET", f"{_JOBS}?fieldSelector=status.successful%3D0&limit=1")
    return not found["items"]


def job_template() -> dict[str, Any]:
    """The pod template of a Job, with the spec and the labels of an episode's pod."""
    context = PodContext(
        name="bench-1",
        namespace=NAMESPACE,
        episode=SET,
        episode_uid=SET,
        attempt=1,
        task=DebugTaskSpec(),
        delivered=True,
        digests={role: secrets.token_hex(32) for role in ("prepare", "drive", "operate")},
        active_deadline_seconds=90_000,
        settings=Settings(sandbox_image="sandbox:1", sidecar_image="sidecar:1"),
    )
    pod = Renderer().render("restricted", context)
    # Another component, because the simulated kubelet keeps sandbox pods until an agent has ended their episode.
    pod["metadata"]["labels"]["app.kubernetes.io/component"] = "job"
    return {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
