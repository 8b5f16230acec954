"""A cluster with one node that runs as processes on this machine, without a container engine.

Its state directory has a record: its first process, and its changes to the machine. After a restart of the machine, the
record still exists, but the process and the changed settings do not. The PID may belong to another process, and other
programs may have put files into the created directories."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hack.cluster import components, images, machine
from hack.cluster.build import BINARIES, PAUSE, build, cache_directory, state_directory
from hack.cluster.components import POLICIES, Files, find_cni_plugins, tails
from hack.cluster.init import MOUNT_POINTS
from hack.cluster.machine import (
    SETTINGS,
    ClusterError,
    boot,
    exclusive,
    missing_programs,
    read_tunables,
    remove_cgroups,
    restore_tunables,
    run,
    say,
    start_time,
    wait_until,
)

FILE = "init.json"
_FRESH = f"{FILE}.new"


@dataclass(frozen=True)
class Record:
    """The content of the record.

    Attributes:
        boot: ID of the boot in which the cluster was started.
        tunables: Settings of the machine before the start.
        made: Directories that the cluster created.
        pid: The first process, or 0 before it has started.
        started: Start time of the first process.
    """

    boot: str
    tunables: dict[str, str]
    made: tuple[str, ...]
    pid: int = 0
    started: str = ""

    def running(self) -> int | None:
        """Return the PID of the first process, or None if it does not run any more."""
        same = self.boot == boot() and self.pid and start_time(self.pid) == self.started
        return self.pid if same else None

    def with_process(self, pid: int) -> "Record":
        """Return a copy with a running process."""
        return replace(self, pid=pid, started=start_time(pid) or "")

    def write(self, state: Path) -> None:
        """Write the record atomically."""
        fresh = state / _FRESH
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(state / FILE)

    def undo(self, settings: Path = SETTINGS) -> None:
        """Restore settings, unless the machine was restarted, and remove created directories that are empty."""
        if self.boot == boot():
            restore_tunables(self.tunables, settings)
        for directory in self.made:
            with suppress(OSError):
                Path(directory).rmdir()


def begin(state: Path, mount_points: Iterable[Path], settings: Path = SETTINGS) -> Record:
    """Write the record, and then create the directories to mount on, so that an interrupted start can be undone."""
    made = tuple(str(point) for point in mount_points if not point.exists())
    record = Record(boot=boot(), tunables=read_tunables(settings), made=made)
    state.mkdir(parents=True, mode=0o755, exist_ok=True)
    record.write(state)
    for point in made:
        Path(point).mkdir(parents=True)
    return record


def read(state: Path) -> Record | None:
    """Return the record, or None if it is missing or damaged. Records of older versions do not have ``boot``."""
    try:
        found = json.loads((state / FILE).read_text())
        since = found.get("boot", boot())
        return Record(since, found["tunables"], tuple(found["made"]), found["pid"], found["started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove(state: Path) -> None:
    """Remove the state directory. The record is removed last, so that an interrupted removal can be repeated."""
    if not state.exists():
        return
    names = {entry.name for entry in state.iterdir()}
    if FILE not in names and names - {_FRESH}:
        raise ClusterError(
            f"{state} is not the state of a cluster: {FILE} is missing. Remove it if nobody needs it, or name another"
            " directory with DGYM_CLUSTER_STATE"
        )
    for entry in state.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != FILE:
            entry.unlink()
    shutil.rmtree(state)


ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "mount", "sysctl", "openssl")
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", POLICIES)
OVERLAYFS = "overlayfs"
ANOTHER = (
    f"the interface {machine.INTERFACE} is there: a cluster whose state is in another directory, or whose record is "
    "damaged, runs on this machine; take it down first, with its directory as DGYM_CLUSTER_STATE, or end its first "
    "process (python -m hack.cluster.init)"
)
# One lock for all state directories, because names of interfaces and control groups are fixed.
LOCK = Path("/run/dgym-cluster.lock")


class LocalCluster:
    """The local cluster. A machine can have only one."""

    name = "local"

    def __init__(self, state: Path | None = None) -> None:
        self.files = Files(state or state_directory())

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig. Its server can be reached only from this machine."""
        return self.files.kubeconfig

    @property
    def audit_log(self) -> Path:
        """Path of the log of all writes since the start."""
        return self.files.api_server.audit_log

    def running(self) -> int | None:
        """Return the PID of the cluster's first process, or None if it does not run."""
        found = read(self.files.state)
        return found.running() if found else None

    def up(self) -> None:
        """Start the cluster unless it runs."""
        with self._exclusive():
            if self.running():
                say("runs already")
            else:
                check_machine()
                self._up(build((*BINARIES, PAUSE)))

    def _exclusive(self) -> AbstractContextManager[None]:
        return exclusive(LOCK, "another command for the cluster")

    def _up(self, binaries: Path) -> None:
        if self.files.state.exists():
            say("removing what an earlier cluster left")
            self._down()
        if machine.connected():
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
        begun = begin(self.files.state, MOUNT_POINTS)
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
                    machine.connect(self._pid())
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
        """Remove the cluster and everything that it changed on the machine. Idempotent."""
        with self._exclusive():
            self._down()

    def _down(self, *, keep_logs: bool = False) -> None:
        found = read(self.files.state)
        if pid := found and found.running():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.running() is None, 60, "the end of the cluster's processes")
            wait_until(_disconnected, 30, "the end of the cluster's network")
        elif found is None and self.files.state.exists() and machine.connected():
            raise ClusterError(ANOTHER)
        if found:
            found.undo()
        if not machine.connected():
            wait_until(lambda: _removed(components.CGROUP), 30, "the end of the cluster's control groups")
        if keep_logs and self.files.logs.exists():
            kept = cache_directory() / "failed-start"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.files.logs, kept, ignore=shutil.ignore_patterns("pods", "containers"))
            say(f"all logs are in {kept}")
        remove(self.files.state)

    def status(self) -> str:
        """Return the version of the cluster and the components that have ended."""
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
        """Load images of podman or docker into the node."""
        if not self.running():
            raise ClusterError("there is no cluster to load images into: `make cluster-up` starts it")
        images.load(names, self.files.containerd_socket, self.files.snapshotter, self.files.state / "loaded.json")

    def stop(self, component: str) -> None:
        """Kill a component, which does not run until ``start`` is called."""
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
    """Raise an error that lists all missing programs."""
    if missing := missing_programs(PROGRAMS):
        raise ClusterError(f"not found: {', '.join(missing)} (`hack/system-packages cluster` installs them on Debian)")
    find_cni_plugins()


def snapshotter_for(directory: Path) -> str:
    """Return containerd's snapshotter. ``native`` copies layers, because an overlay on an overlay is not possible."""
    kind = run("stat", "--file-system", "--format", "%T", directory).strip()
    return "native" if kind == OVERLAYFS else OVERLAYFS


def json_keys(path: Path) -> list[str]:
    """Return the keys of a JSON object, or an empty list if the file does not exist."""
    return list(json.loads(path.read_text())) if path.exists() else []


def _disconnected() -> bool:
    machine.disconnect()
    return not machine.connected()


def _removed(cgroup: str) -> bool:
    try:
        remove_cgroups(cgroup)
    except OSError:
        return False
    return True
