"""What is asked of the machine: commands, processes, sysctls, control groups."""

import fcntl
import os
import shutil
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
    """Something a user can act on; the message says what."""


def say(message: str) -> None:
    """Show progress."""
    print(f"cluster: {message}", file=sys.stderr, flush=True)


def run(*command: str | Path, check: bool = True, timeout: float = 60, stdin: str | None = None) -> str:
    """Run a command and return its standard output; failing says what it wrote."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise ClusterError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Ask again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Keep others of this user's processes out; the kernel lets them in when we end, however that happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what} is running; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_time(pid: int) -> str | None:
    """When a process started, in ticks since boot; None once it has ended. With the id it names a process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def boot() -> str:
    """The name of this life of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def missing_programs(names: Sequence[str]) -> list[str]:
    """Those that are not on PATH, where that of a user may lack the administrator's directories."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in names if shutil.which(name, path=path) is None]


def read_tunables(root: Path = SETTINGS) -> dict[str, str]:
    """The machine's settings before kubelet changes them."""
    return {name: (root / name).read_text().strip() for name in TUNABLES if (root / name).exists()}


def restore_tunables(values: Mapping[str, str], root: Path = SETTINGS) -> None:
    """Put back what differs."""
    for name, value in values.items():
        if (root / name).read_text().strip() != value:
            (root / name).write_text(value)


def cgroup_roots(root: Path = CGROUPS) -> list[Path]:
    """The tops of the hierarchies: one in version 2, one for each controller in version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted({path.resolve() for path in root.iterdir() if (path / "cgroup.procs").exists()})


def make_cgroups(name: str, root: Path = CGROUPS) -> None:
    """Make a group for everything kubelet starts."""
    if (root / "cgroup.controllers").exists():
        delegate(root)
    for top in cgroup_roots(root):
        group = top / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # Version 1 starts nothing in a group without processors and memory.
            if (group / setting).exists() and (top / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((top / setting).read_text())


def delegate(root: Path) -> None:
    """Let groups below the top of version 2 have limits. In a container the top must be free of processes first."""
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
    """Remove the group and all below it; a group that still has processes is an error."""
    for top in cgroup_roots(root):
        for directory, _, _ in os.walk(top / name, topdown=False):
            os.rmdir(directory)  # noqa: PTH106
