"""Control plane for a single measurement: etcd, kube-apiserver, and the processes that use them.

CPU is read from /proc, requests from the API server's metrics, writes from its audit log. All three count only these
processes and do not depend on other load of the machine. Wall time does, so the load is also recorded.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import custom_resource_definitions
from hack.cluster.build import find_binary
from tests.support.apiserver import ApiServer, start_api_server

NAMESPACE = "bench"
GROUP = f"/apis/dgym.dev/v1alpha1/namespaces/{NAMESPACE}"
_DEADLINE = 1800.0
_TICKS = os.sysconf("SC_CLK_TCK")
_REQUEST = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PAUSE = 0.25


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a measurement has used, or the counters at its start or end.

    Attributes:
        seconds: Wall time.
        api_server: CPU seconds of kube-apiserver.
        etcd: CPU seconds of etcd.
        controller: CPU seconds of the operator, or of the Job controller.
        nodes: CPU seconds of the simulated nodes and agents.
    """

    seconds: float
    api_server: float
    etcd: float
    controller: float
    nodes: float

    def since(self, before: "Usage") -> "Usage":
        """The difference to earlier counters."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        return Usage(**{name: a - b for name, a, b in zip(self.__struct_fields__, mine, others, strict=True)})

    @property
    def server(self) -> float:
        """CPU seconds of API server and etcd."""
        return self.api_server + self.etcd


class Process:
    """A process of the measurement."""

    def __init__(self, name: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.child = child
        self.pid = child.pid
        self._log = log
        self._is_stopped = False

    @property
    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds(self.pid)

    @property
    def largest_mb(self) -> float:
        """The largest resident set so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def stop(self, number: int) -> None:
        """Send a signal that ends the process, and wait for the end."""
        self._is_stopped = True
        self.child.send_signal(number)
        self.child.wait(60)

    def check(self) -> None:
        """Raise ChildProcessError if the process has ended by itself."""
        if self.child.poll() is not None and not self._is_stopped:
            text = self._log.read_text(errors="replace")[-2000:]
            raise ChildProcessError(f"{self.name} ended with status {self.child.returncode}:\n{text}")


class ControlPlane:
    """The API server, etcd, and the started processes."""

    def __init__(self, server: ApiServer, processes: contextlib.ExitStack) -> None:
        self.server = server
        self._stack = processes
        self._started: list[Process] = []

    def start(
        self, name: str, *arguments: str, program: str = sys.executable, environment: dict[str, str] | None = None
    ) -> Process:
        """Start a process with the server's kubeconfig. It ends with the control plane."""
        log = self.server.directory / f"{name}.log"
        variables = {**os.environ, "KUBECONFIG": str(self.server.kubeconfig), **(environment or {})}
        with log.open("wb") as output:
            child = subprocess.Popen([program, *arguments], env=variables, stdout=output, stderr=output)
        process = Process(name, child, log)
        self._started.append(process)
        self._stack.callback(self.end, process)
        return process

    def end(self, process: Process) -> None:
        """Kill the process, if it still runs."""
        process.child.kill()
        process.child.wait(30)
        if process in self._started:
            self._started.remove(process)

    def create(self, kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> None:
        """Create an object of dgym's API group."""
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
        self.server.request("POST", f"{GROUP}/{kind.lower()}s", body)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Poll the condition until it is true. Raises if a process ends."""
        deadline = time.monotonic() + _DEADLINE
        while not condition():
            for process in self._started:
                process.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {_DEADLINE:g} s for {what}")
            time.sleep(_PAUSE)

    def usage(self, controller: Process, nodes: Process) -> Usage:
        """The current counters."""
        servers = dict(_servers(self.server.directory))
        return Usage(
            seconds=time.monotonic(),
            api_server=cpu_seconds(servers["kube-apiserver"]),
            etcd=cpu_seconds(servers["etcd"]),
            controller=controller.cpu,
            nodes=nodes.cpu,
        )

    def requests(self) -> Counter[str]:
        """Requests that the API server has answered so far, by verb and resource. Watches are counted when they end."""
        found: Counter[str] = Counter()
        for labels, number in _REQUEST.findall(self.server.request("GET", "/metrics")):
            named = dict(_LABEL.findall(labels))
            resource = "/".join(part for part in (named["resource"], named["subresource"]) if part)
            found[f"{named['verb']} {resource}"] += int(float(number))
        return found

    def writes(self) -> Counter[str]:
        """Writes in the audit log so far, by user agent, verb and resource."""
        found: Counter[str] = Counter()
        for entry in self.server.writes():
            about = entry.get("objectRef", {})
            resource = "/".join(part for part in (about.get("resource", ""), about.get("subresource", "")) if part)
            found[f"{entry.get('userAgent', '').partition('/')[0]}: {entry['verb']} {resource}"] += 1
        return found


@contextlib.contextmanager
def control_plane(directory: Path) -> Iterator[ControlPlane]:
    """A server with dgym's CustomResourceDefinitions and an empty namespace."""
    server = start_api_server(directory)
    try:
        for definition in custom_resource_definitions():
            server.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        server.request("POST", "/api/v1/namespaces", namespace)
        with contextlib.ExitStack() as processes:
            plane = ControlPlane(server, processes)
            plane.wait(lambda: _answers(server, f"{GROUP}/episodesets"), "the definitions to be served")
            yield plane
    finally:
        server.stop()


def binary(name: str) -> str:
    """The path of a program that ``make binaries`` builds."""
    found = find_binary(name)
    if found is None:
        raise FileNotFoundError(f"no {name}: make binaries")
    return str(found)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _answers(server: ApiServer, path: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(server.request("GET", path))
    return False


def _servers(directory: Path) -> Iterator[tuple[str, int]]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                program = Path(command[0]).name
                if program in ("etcd", "kube-apiserver") and str(directory) in " ".join(command):
                    yield program, int(entry.name)
