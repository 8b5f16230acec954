"""Access from this machine to the node of a local cluster: container processes, control groups and volumes."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hack.cluster import components, machine
from hack.cluster.cli import choose
from hack.cluster.local import LocalCluster
from hack.cluster.machine import cgroup_roots
from tests.e2e.cluster.support import Kubectl, run, until

# Address of the pods' bridge, from which the kubelet's probes come.
GATEWAY = machine.PODS.replace(".0/24", ".1")
_STORE_BYTES = 48 * 1024**2
_FROZEN_SECONDS, _THAWED_SECONDS = 8.0, 0.5
_HOG = """
import os, sys
procs, first = sys.argv[1], sys.argv[2]
open(procs, "w").write(str(os.getpid()))
held = []
while os.path.exists("/proc/" + first) and len(held) < 512:
    held.append(bytearray(os.urandom(4096)) * 256)
"""
_FREEZER = """
import select, subprocess, sys
directory, frozen, thawed = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

def asked_to_end(seconds):
    return bool(select.select([sys.stdin], [], [], seconds)[0])

ends = False
while not ends and not asked_to_end(thawed):
    subprocess.run(["fsfreeze", "--freeze", directory], check=True)
    try:
        ends = asked_to_end(frozen)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", directory], check=True)
"""


def local_cluster() -> LocalCluster | None:
    """The running cluster, if it is a cluster of processes on this machine. Otherwise None."""
    try:
        cluster = choose(os.environ)
    except Exception:
        return None
    return cluster if isinstance(cluster, LocalCluster) and cluster.running() else None


def container_status(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """A container's status."""
    return next(each for each in pod["status"]["containerStatuses"] if each["name"] == name)


def groups(name: str) -> Iterator[Path]:
    """The control groups of a container or pod, at most one in each hierarchy."""
    for root in cgroup_roots():
        for top, below, _ in os.walk(root / components.CGROUP):
            if name in below:
                yield Path(top, name)
                break


def programs(pod: dict[str, Any], name: str) -> set[str]:
    """The names of the programs that run in a container. Empty if it has terminated."""
    identity = container_status(pod, name)["containerID"].rpartition("/")[2]
    found = set()
    # A group is removed with its last process, and a process may end at any time.
    with contextlib.suppress(OSError):
        for group in itertools.islice(groups(identity), 1):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    found.add(Path("/proc", pid, "comm").read_text().strip())
    return found


def first_process(pod: dict[str, Any], name: str) -> int:
    """The process that has id 1 in a container."""
    identity = container_status(pod, name)["containerID"].rpartition("/")[2]
    for group in groups(identity):
        for pid in (group / "cgroup.procs").read_text().split():
            status = Path("/proc", pid, "status").read_text()
            (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
            if line.split()[-1] == "1":
                return int(pid)
    raise LookupError(f"container {name} has no first process")


def kill(pod: dict[str, Any], name: str) -> None:
    """Kill a container with SIGKILL and wait for its end."""
    pid = first_process(pod, name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), what=f"the end of container {name}")


def exhaust_memory(pod: dict[str, Any], name: str) -> None:
    """Let the kernel OOM-kill a container's first process: another process joins its group and takes all memory."""
    pid = first_process(pod, name)
    identity = container_status(pod, name)["containerID"].rpartition("/")[2]
    (group,) = (group for group in groups(identity) if (group / _limit_file(group)).exists())
    usage = group / ("memory.usage_in_bytes" if _limit_file(group) == "memory.limit_in_bytes" else "memory.current")
    (group / _limit_file(group)).write_text(str(int(usage.read_text()) + 2 * 1024**2))

    def gone() -> bool:
        command = [sys.executable, "-c", _HOG, str(group / "cgroup.procs"), str(pid)]
        subprocess.run(command, capture_output=True, check=False, timeout=60)
        return not Path(f"/proc/{pid}").exists()

    until(gone, what=f"the end of container {name}")


def _limit_file(group: Path) -> str:
    return "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"


def kill_pod(pod: dict[str, Any]) -> None:
    """Kill every process of a pod, as the loss of its node does."""
    pids = set()
    for group in groups(f"pod{pod['metadata']['uid']}"):
        for directory, _, _ in os.walk(group):
            # A group is removed with its last process.
            with contextlib.suppress(OSError):
                pids.update(Path(directory, "cgroup.procs").read_text().split())
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def partitioned(pod: dict[str, Any], name: str) -> Iterator[None]:
    """Drop every packet of a pod except those of the kubelet's probes."""
    enter = ("nsenter", "--target", str(first_process(pod, name)), "--net", "iptables")
    rules = [(chain, *each) for chain, flag in (("INPUT", "-s"), ("OUTPUT", "-d")) for each in (
        (flag, GATEWAY, "-j", "ACCEPT"), ("!", "-i" if chain == "INPUT" else "-o", "lo", "-j", "DROP"),
    )]  # fmt: skip
    for rule in rules:
        run(*enter, "-A", *rule)
    try:
        yield
    finally:
        for rule in rules:
            run(*enter, "-D", *rule, check=False)


def inside(cluster: LocalCluster, path: Path) -> Path:
    """The path outside the cluster for a path in the cluster's mount namespace."""
    return Path(f"/proc/{cluster.running()}/root{path}")


@contextmanager
def small_file_system(cluster: LocalCluster, path: Path) -> Iterator[None]:
    """Mount a separate file system of 48 MiB over a directory of the cluster."""
    # Enter the PID namespace too, because umount reads /proc.
    enter = ("nsenter", "--target", str(cluster.running()), "--mount", "--pid")
    image = cluster.files.state / f"{path.name}.ext4"
    with image.open("wb") as file:
        file.truncate(_STORE_BYTES)
    run("mkfs.ext4", "-q", "-m", "0", str(image))
    # The kernel frees the loop device with the mount, and the mount when the cluster ends.
    run(*enter, "mount", "-o", "loop", str(image), str(path))
    inside(cluster, path).chmod(0o777)
    try:
        yield
    finally:
        run(*enter, "umount", "--lazy", str(path))
        image.unlink()


@contextmanager
def slowed(directory: Path) -> Iterator[None]:
    """Delay every write to a directory's file system: repeatedly freeze it for seconds and thaw it for a moment."""
    # A separate process, which thaws the file system even if the tests are killed.
    command = [sys.executable, "-c", _FREEZER, str(directory), str(_FROZEN_SECONDS), str(_THAWED_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        assert process.poll() is None, "the file system was not frozen"
    assert process.returncode == 0


def volume_of(kubectl: Kubectl) -> Path:
    """The directory of the only PersistentVolumeClaim in a namespace."""
    (claim,) = kubectl.items("persistentvolumeclaims")
    volume = kubectl.get("persistentvolume", claim["spec"]["volumeName"])
    assert volume is not None
    return Path(volume["spec"]["local"]["path"])


def remains(cluster: LocalCluster, uids: Iterable[str]) -> list[str]:
    """Remains of pods on the node: control groups (and so processes) and directories."""
    wanted = set(uids)
    names = {f"pod{uid}" for uid in wanted}
    found = [str(Path(top, name)) for root in cgroup_roots() for top, below, _ in os.walk(root / components.CGROUP)
             for name in names.intersection(below)]  # fmt: skip
    directories = cluster.files.state / "lib" / "kubelet" / "pods"
    return found + [str(each) for each in directories.iterdir() if each.name in wanted]
