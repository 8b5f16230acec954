"""Helpers for commands, processes, sysctls, control groups and the network of the machine.

The cluster has its own network namespace, which a veth pair and two routes connect to the machine. The machine does not
forward or translate packets for the cluster, so it does not need packet filter rules. Processes of the machine can
reach nodes, pods and services. Pods can reach the machine and nothing beyond it."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# kubelet sets these for the whole machine.
TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
SETTINGS = Path("/proc/sys")
CGROUPS = Path("/sys/fs/cgroup")


class ClusterError(Exception):
    """A problem that the user can solve. The message has the remedy."""


def say(message: str) -> None:
    """Print a line about progress to standard error."""
    print(f"cluster: {message}", file=sys.stderr, flush=True)


def run(*command: str | Path, check: bool = True, timeout: float = 60, stdin: str | None = None) -> str:
    """Run a command and return its standard output. With ``check``, a failure raises ``ClusterError``."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise ClusterError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll ``condition`` every 50 ms. Raise ``ClusterError`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold a file lock against other processes. The kernel releases it when this process ends in any way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what} is running; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_time(pid: int) -> str | None:
    """Return the start time of a process in ticks since boot, or None if it has ended.

    PID and start time together identify a process, because PIDs are reused.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def boot() -> str:
    """Return the ID of the current boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def missing_programs(names: Sequence[str]) -> list[str]:
    """Return the programs that are neither on PATH nor in /usr/sbin or /sbin, which a user's PATH may lack."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in names if shutil.which(name, path=path) is None]


def read_tunables(root: Path = SETTINGS) -> dict[str, str]:
    """Return the machine's settings that kubelet changes."""
    return {name: (root / name).read_text().strip() for name in TUNABLES if (root / name).exists()}


def restore_tunables(values: Mapping[str, str], root: Path = SETTINGS) -> None:
    """Write back the settings that differ from ``values``."""
    for name, value in values.items():
        if (root / name).read_text().strip() != value:
            (root / name).write_text(value)


def cgroup_roots(root: Path = CGROUPS) -> list[Path]:
    """Return the roots of the hierarchies: one in version 2, one for each controller in version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted({path.resolve() for path in root.iterdir() if (path / "cgroup.procs").exists()})


def make_cgroups(name: str, root: Path = CGROUPS) -> None:
    """Create the control group for all processes that kubelet starts."""
    if (root / "cgroup.controllers").exists():
        delegate(root)
    for top in cgroup_roots(root):
        group = top / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # In version 1, a group without CPUs and memory nodes cannot have processes.
            if (group / setting).exists() and (top / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((top / setting).read_text())


def delegate(root: Path) -> None:
    """Enable all controllers below the root of version 2. In a container, processes must first leave the root."""
    controllers = (root / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{controller}" for controller in controllers)
    try:
        (root / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        (root / "init").mkdir(exist_ok=True)
        for pid in (root / "cgroup.procs").read_text().split():
            (root / "init" / "cgroup.procs").write_text(pid)
        (root / "cgroup.subtree_control").write_text(wanted)


def remove_cgroups(name: str, root: Path = CGROUPS) -> None:
    """Remove the group and its subgroups. Raise ``OSError`` if one still has processes."""
    for top in cgroup_roots(root):
        for directory, _, _ in os.walk(top / name, topdown=False):
            os.rmdir(directory)  # noqa: PTH106


INTERFACE = "dgym-cluster"
HOST = "10.231.0.1"
NODE = "10.231.0.2"
LINK_PREFIX = 30
PODS = "10.231.1.0/24"
SERVICES = "10.231.2.0/24"
API_SERVICE = "10.231.2.1"


def inside_names() -> Sequence[str]:
    """Return the interfaces of this process's network namespace."""
    return [name for _, name in socket.if_nameindex()]


def connect(pid: int) -> None:
    """On the machine: connect the network namespace of a process to it."""
    run("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "address", "add", f"{HOST}/{LINK_PREFIX}", "dev", INTERFACE)
    run("ip", "link", "set", INTERFACE, "up")
    for subnet in (PODS, SERVICES):
        run("ip", "route", "replace", subnet, "via", NODE, "dev", INTERFACE)


def connected() -> bool:
    """On the machine: return True if the interface exists, which is the case while a cluster runs."""
    return INTERFACE in inside_names()


def disconnect() -> None:
    """On the machine: remove the interface and its routes. The kernel also removes them with the namespace."""
    if connected():
        run("ip", "link", "delete", INTERFACE, check=False)


def configure_node() -> None:
    """In the namespace: set the address of the node, and enable forwarding for pods."""
    wait_until(lambda: "eth0" in inside_names(), 20, "the interface from the machine")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{NODE}/{LINK_PREFIX}", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    # The namespace has no default route, so other connections fail at once, not after a timeout. Processes of the node
    # need a route to services, because routing happens before their addresses are translated.
    run("ip", "route", "add", SERVICES, "dev", "lo", "src", NODE)
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    # Otherwise replies between pods on the bridge bypass the translation of service addresses.
    run("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1", check=False)
