"""Episodes a second through the real operator and API server, against Jobs of the same PodSpec.

etcd, kube-apiserver, kube-controller-manager and the operator are real and processes of their own; kubelet and agents
are simulated and the same for both sides (``tests.perf.simulated_nodes``). CPU is that of the processes, from the
creation of the first object to the end of the last.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTaskSpec, custom_resource_definitions
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings
from hack.cluster.paths import find_binary
from tests.apiserver import ApiServer, start_api_server
from tests.perf.measure import Figure
from tests.perf.simulated_nodes import NAMESPACE

EPISODES = int(os.environ.get("DGYM_PERF_EPISODES", "2000"))
_SLOTS = 200
_DEADLINE = 900.0
_GROUP = f"/apis/dgym.dev/v1alpha1/namespaces/{NAMESPACE}"
_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_TICKS = os.sysconf("SC_CLK_TCK")


class Run(msgspec.Struct, frozen=True):
    """One side: wall seconds, and CPU seconds of the API server with etcd, and of the controller."""

    seconds: float
    server: float
    controller: float
    memory: float
    """The controller's largest resident set in MB."""
    requests: int
    """Writes of the audit log."""


def throughput_figures(scratch: Path) -> list[Figure]:
    """A set of episodes, then as many Jobs, each on a server of its own."""
    jobs = _measured(scratch / "jobs", _jobs)
    episodes = _measured(scratch / "episodes", _episodes)
    what = f"{EPISODES} episodes"
    return [
        _figure(f"{what}: a second each", "ms", 1e3 * episodes.seconds, 1e3 * jobs.seconds),
        _figure(f"{what}: CPU of API server and etcd", "ms", 1e3 * episodes.server, 1e3 * jobs.server),
        _figure(f"{what}: CPU of the operator", "ms", 1e3 * episodes.controller, 1e3 * jobs.controller, aim=5.0),
        _figure(f"{what}: writes", "writes", episodes.requests, jobs.requests),
        Figure(name=f"{what}: memory of the operator", unit="MB", median=episodes.memory),
    ]


def _figure(name: str, unit: str, ours: float, theirs: float, aim: float | None = None) -> Figure:
    per, baseline = ours / EPISODES, theirs / EPISODES
    return Figure(name=name, unit=f"{unit} each", median=per, aim=aim, baseline=baseline, baseline_name="Jobs")


def _measured(directory: Path, side: Callable[[ApiServer, contextlib.ExitStack], Run]) -> Run:
    server = start_api_server(directory)
    try:
        for definition in custom_resource_definitions():
            server.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        server.request("POST", "/api/v1/namespaces", namespace)
        with contextlib.ExitStack() as processes:
            return side(server, processes)
    finally:
        server.stop()


def _episodes(server: ApiServer, processes: contextlib.ExitStack) -> Run:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _wait(lambda: _served(server), "the definitions to be served")
    operator = processes.enter_context(_process(server, "-m", "dgym_operator", "run", environment=_settings(port)))
    nodes = ("-m", "tests.perf.simulated_nodes", str(server.directory), "--agent-port", str(port))
    processes.enter_context(_process(server, *nodes, "--slots", str(_SLOTS)))
    task = {"entrypoint": "python -m pytest -q", "source": {"files": [{"path": "calc.py", "content": "x = 1\n"}]}}
    _create(server, f"{_GROUP}/debugtasks", "DebugTask", {"name": "calc", "labels": {"suite": "calc"}}, task)
    _wait(lambda: _is_scheduled(server, "agent-0"), "the agent")
    before, writes, started = _cpu(server, operator), len(server.writes()), time.monotonic()
    spec = {
        "taskSelector": {"matchLabels": {"suite": "calc"}},
        "samples": EPISODES,
        "parallelism": EPISODES,
        "template": {"agent": {"name": "solution"}},
    }
    _create(server, f"{_GROUP}/episodesets", "EpisodeSet", {"name": "bench"}, spec)
    _wait(lambda: _set_finished(server), "all episodes to finish")
    return _run(server, operator, before, writes, started)


def _jobs(server: ApiServer, processes: contextlib.ExitStack) -> Run:
    binary = find_binary("kube-controller-manager")
    if binary is None:
        raise FileNotFoundError("no kube-controller-manager: make binaries")
    flags = ("--controllers=job-controller", "--leader-elect=false", "--concurrent-job-syncs=50", "--secure-port=0")
    rates = ("--kube-api-qps=1000", "--kube-api-burst=1000", f"--kubeconfig={server.kubeconfig}")
    manager = processes.enter_context(_process(server, *flags, *rates, program=str(binary)))
    processes.enter_context(_process(server, "-m", "tests.perf.simulated_nodes", str(server.directory)))
    pod = _pod()
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    before, writes, started = _cpu(server, manager), len(server.writes()), time.monotonic()

    def create(number: int) -> None:
        metadata = {"name": f"bench-{number}"}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
        server.request("POST", _JOBS, body)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(EPISODES)))
    _wait(lambda: _jobs_finished(server), "all Jobs to finish")
    return _run(server, manager, before, writes, started)


def _settings(port: int) -> dict[str, str]:
    settings = {
        "namespace": NAMESPACE,
        "watch_namespaces": NAMESPACE,
        "sandbox_image": "sandbox:1",
        "sidecar_image": "sidecar:1",
        "agent_port": port,
        "host": "127.0.0.1",
        "port": 0,
        "api_qps": 1000,
        "api_burst": 1000,
        "log_level": "WARNING",
    }
    return {f"DGYM_OPERATOR_{name.upper()}": str(value) for name, value in settings.items()}


def _pod() -> dict[str, Any]:
    context = PodContext(
        name="bench-1",
        namespace=NAMESPACE,
        episode="bench",
        episode_uid="bench",
        attempt=1,
        task=DebugTaskSpec(),
        delivered=True,
        digests={role: secrets.token_hex(32) for role in ("prepare", "drive", "operate")},
        active_deadline_seconds=90_000,
        settings=Settings(sandbox_image="sandbox:1", sidecar_image="sidecar:1"),
    )
    pod = Renderer().render("restricted", context)
    del pod["metadata"]["labels"]["app.kubernetes.io/component"]
    return pod


@contextlib.contextmanager
def _process(
    server: ApiServer, *arguments: str, program: str = sys.executable, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A process with the server's kubeconfig, ended at the exit; its id."""
    log = server.directory / f"{Path(program).name}-{len(list(server.directory.glob('*.log')))}.log"
    variables = {**os.environ, "KUBECONFIG": str(server.kubeconfig), **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen([program, *arguments], env=variables, stdout=output, stderr=output)
    try:
        yield process.pid
    finally:
        ended = process.poll()
        process.kill()
        process.wait(30)
        if ended is not None:
            raise ChildProcessError(f"{program} ended with status {ended}:\n{log.read_text(errors='replace')[-2000:]}")


def _create(server: ApiServer, path: str, kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    server.request("POST", path, {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_DEADLINE:g} s for {what}")
        time.sleep(0.25)


def _served(server: ApiServer) -> bool:
    with contextlib.suppress(OSError):
        return bool(server.request("GET", f"{_GROUP}/episodesets"))
    return False


def _is_scheduled(server: ApiServer, name: str) -> bool:
    with contextlib.suppress(OSError):
        pod = server.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        return pod["status"].get("phase") == "Running"
    return False


def _set_finished(server: ApiServer) -> bool:
    status = server.request("GET", f"{_GROUP}/episodesets/bench").get("status", {})
    finished = any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", ()))
    if finished and status["resolved"] != EPISODES:
        raise AssertionError(f"not all episodes were resolved: {json.dumps(status)}")
    return finished


def _jobs_finished(server: ApiServer) -> bool:
    # A list of all Jobs is megabytes, which the server would encode each time.
    return not server.request("GET", f"{_JOBS}?fieldSelector=status.successful%3D0&limit=1")["items"]


def _cpu(server: ApiServer, controller: int) -> tuple[float, float]:
    """CPU seconds so far: of the API server and its etcd, and of the controller."""
    return sum(_seconds(pid) for pid in _server_processes(server)), _seconds(controller)


def _run(server: ApiServer, controller: int, before: tuple[float, float], writes: int, started: float) -> Run:
    seconds = time.monotonic() - started
    after = _cpu(server, controller)
    return Run(
        seconds=seconds,
        server=after[0] - before[0],
        controller=after[1] - before[1],
        memory=_largest_mb(controller),
        requests=len(server.writes()) - writes,
    )


def _server_processes(server: ApiServer) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                program = Path(command[0]).name
                if program in ("etcd", "kube-apiserver") and str(server.directory) in " ".join(command):
                    found.append(int(entry.name))
    return found


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _largest_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
