"""A cluster of one node on this machine, without a container engine: up, down, status, load."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from hack.cluster import images, network, node_config, paths, record
from hack.cluster.build import PAUSE, build
from hack.cluster.components import POLICIES, Files, find_cni_plugins, tails
from hack.cluster.init import MOUNT_POINTS
from hack.cluster.machine import (
    ClusterError,
    exclusive,
    missing_programs,
    remove_cgroups,
    run,
    say,
    wait_until,
)

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "mount", "sysctl", "openssl")
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", POLICIES)
OVERLAYFS = "overlayfs"
ANOTHER = (
    f"the interface {network.INTERFACE} is there: a cluster whose state is in another directory, or whose record is "
    "damaged, runs on this machine; take it down first, with its directory as DGYM_CLUSTER_STATE, or end its first "
    "process (python -m hack.cluster.init)"
)
# Interfaces and control groups have one name on a machine, wherever the state is.
LOCK = Path("/run/dgym-cluster.lock")


class LocalCluster:
    """The one cluster that this machine can have this way."""

    name = "local"

    def __init__(self, state: Path | None = None) -> None:
        self.files = Files(state or paths.state_directory())

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; its server is reached from this machine only."""
        return self.files.kubeconfig

    @property
    def audit_log(self) -> Path:
        """Every write since the start."""
        return self.files.api_server.audit_log

    def running(self) -> int | None:
        """The first process of the cluster, if it is the one that was started and still runs."""
        found = record.read(self.files.state)
        return found.running() if found else None

    def up(self) -> None:
        """Start the cluster, unless it runs."""
        with self._exclusive():
            if self.running():
                say("runs already")
            else:
                check_machine()
                self._up(build((*paths.BINARIES, PAUSE)))

    def _exclusive(self) -> AbstractContextManager[None]:
        return exclusive(LOCK, "another command for the cluster")

    def _up(self, binaries: Path) -> None:
        if self.files.state.exists():
            say("removing what an earlier cluster left")
            self._down()
        if network.connected():
            raise ClusterError(ANOTHER)
        started = time.monotonic()
        try:
            self._start(binaries)
        except BaseException as error:
            logs = tails(self.files, ["init", *json_keys(self.files.ended), "kube-apiserver", "kubelet"])
            self._down(keep_logs=True)
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}\n{logs}") from None
            raise
        say(f"ready in {time.monotonic() - started:.1f} s")

    def _start(self, binaries: Path) -> None:
        begun = record.begin(self.files.state, MOUNT_POINTS)
        self.files.write(snapshotter_for(self.files.state))
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "hack.cluster.init", str(self.files.state), str(binaries), str(writing)]
        with (self.files.logs / "init.log").open("wb") as log:
            launcher = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writing]
            )
        os.close(writing)
        ready = False
        with os.fdopen(reading) as report:
            for line in report:
                word, _, text = line.rstrip("\n").partition(" ")
                if word == "pid":
                    begun.with_process(int(text)).write(self.files.state)
                elif word == "namespaces":
                    network.connect(self._pid())
                elif word == "failed":
                    raise ClusterError(text.replace("\\n", "\n"))
                ready = word == "ready"
                if word == "step":
                    say(f"{text} …")
        launcher.wait(20)
        if not ready:
            raise ClusterError("the first process ended")

    def _pid(self) -> int:
        pid = self.running()
        if pid is None:
            raise ClusterError("the first process ended")
        return pid

    def down(self) -> None:
        """Leave nothing behind; harmless where nothing is."""
        with self._exclusive():
            self._down()

    def _down(self, *, keep_logs: bool = False) -> None:
        found = record.read(self.files.state)
        if pid := found and found.running():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.running() is None, 60, "the end of the cluster's processes")
            wait_until(_disconnected, 30, "the end of the cluster's network")
        elif found is None and self.files.state.exists() and network.connected():
            raise ClusterError(ANOTHER)
        if found:
            found.undo()
        if not network.connected():
            wait_until(lambda: _removed(node_config.CGROUP), 30, "the end of the cluster's control groups")
        if keep_logs and self.files.logs.exists():
            kept = paths.cache_directory() / "failed-start"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.files.logs, kept, ignore=shutil.ignore_patterns("pods", "containers"))
            say(f"all logs are in {kept}")
        record.remove(self.files.state)

    def status(self) -> str:
        """Which components run."""
        if not self.running():
            return "not running"
        ended = json_keys(self.files.ended)
        trouble = f"; ended: {', '.join(ended)} (logs in {self.files.logs})" if ended else ""
        try:
            version = self.files.client().request("GET", "/version")["gitVersion"]
        except OSError as error:
            return f"running, but its API server does not answer: {error}{trouble}"
        return f"running, Kubernetes {version}{trouble}"

    def load(self, names: Sequence[str]) -> None:
        """Bring images of podman or docker to the node."""
        if not self.running():
            raise ClusterError("there is no cluster to load images into: `make cluster-up` starts it")
        images.load(names, self.files.containerd_socket, self.files.snapshotter, self.files.state / "loaded.json")

    def stop(self, component: str) -> None:
        """Kill a component; it stays away until it is started."""
        self._set_stopped(component, stopped=True)

    def start(self, component: str) -> None:
        """Start a component that was stopped."""
        self._set_stopped(component, stopped=False)

    def _set_stopped(self, component: str, *, stopped: bool) -> None:
        if component not in COMPONENTS:
            raise ClusterError(f"not a component: {component} (there are {', '.join(COMPONENTS)})")
        with self._exclusive():
            pid = self._pid()
            names = {*json_keys(self.files.stopped)} - {component} | ({component} if stopped else set())
            self.files.stopped.write_text(json.dumps(dict.fromkeys(sorted(names), True)))
            os.kill(pid, signal.SIGHUP)
            wait_until(
                lambda: (component in json_keys(self.files.ended)) is stopped,
                30,
                f"the {'end' if stopped else 'start'} of {component}",
            )


def check_machine() -> None:
    """Say everything that is missing at once."""
    if missing := missing_programs(PROGRAMS):
        raise ClusterError(f"not found: {', '.join(missing)} (`hack/system-packages cluster` installs them on Debian)")
    find_cni_plugins()


def snapshotter_for(directory: Path) -> str:
    """Overlays cannot stand on an overlay: there, as in a container, layers are copied."""
    kind = run("stat", "--file-system", "--format", "%T", directory).strip()
    return "native" if kind == OVERLAYFS else OVERLAYFS


def json_keys(path: Path) -> list[str]:
    """The names in a JSON object, if the file is there."""
    return list(json.loads(path.read_text())) if path.exists() else []


def _disconnected() -> bool:
    network.disconnect()
    return not network.connected()


def _removed(cgroup: str) -> bool:
    try:
        remove_cgroups(cgroup)
    except OSError:
        return False
    return True
