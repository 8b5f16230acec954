"""A local sandbox's resources on this machine: its private directory and, where one can be made, its control group.

A directory belongs to a live process as long as that process holds its lock. The next process that opens a sandbox
removes the directories and groups of dead processes.

Resource limits bind neither the number of root's processes nor the memory of a tree of processes; a control group
does. Few machines delegate one; elsewhere the runner's own watchdogs enforce the limits.
"""

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dgym.errors import SandboxStartFailed
from dgym.locks import acquire, try_acquire
from dgym.sandbox.local.regions import fresh_region, record_removal
from dgym.sandbox.protocol import Limits

_LOCK = "lock"
_YOUNG_SECONDS = 60.0

_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("pids", "memory")

_SPARE_TASKS = 64
"""Room for the runner's threads and for programs with threads: the group counts tasks, the limit means processes."""

_SPARE_BYTES = 64 * 1024**2
"""Room for the runner, so that its watchdog ends the largest command before the kernel picks a victim."""


class PrivateDirectory:
    """A directory of one sandbox that only this user can enter; the workspace is inside."""

    def __init__(self, path: Path, workspace: Path, lock: int) -> None:
        self.path = path
        self.workspace = workspace
        """Where the repository stands on this machine."""
        self._lock = lock

    @classmethod
    def make(cls) -> "PrivateDirectory":
        """Make it below the machine's directory for temporary files.

        Raises:
            SandboxStartFailed: the disk is full or not writable.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix())).resolve()
            lock = acquire(path / _LOCK)
            for name in ("home", "tmp", "run"):
                (path / name).mkdir()
            workspace = fresh_region(path) / "workspace"
            workspace.mkdir()
        except OSError as error:
            raise SandboxStartFailed(f"a directory for the sandbox could not be made: {error}") from error
        return cls(path, workspace, lock)

    def remove(self) -> None:
        """Remove everything, whatever modes the sandbox left on it. Idempotent."""
        if self._lock < 0:
            return
        with suppress(OSError):
            record_removal(self.workspace.parent)
        remove_tree(self.path)
        os.close(self._lock)
        self._lock = -1


def remove_tree(path: Path) -> None:
    """Remove a tree that untrusted programs made: directories without permissions or nested thousands deep."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # rm walks with descriptors, so neither depth nor the length of a path stops it.
        for command in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
            subprocess.run([*command, str(path)], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def remove_abandoned(also: Callable[[str], bool | None] | None = None) -> None:
    """Remove directories whose owner was killed.

    ``also`` is called with the name of each first; the directory is kept for later where it returns False.
    """
    young = time.time() - _YOUNG_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            # Between its making and its locking a directory looks abandoned: leave young ones alone.
            about = path.lstat()
            if about.st_mtime > young or about.st_uid != os.getuid():
                continue
            lock = try_acquire(path / _LOCK, create=False)
            if lock is None:
                continue
            try:
                if also is None or also(path.name) is not False:
                    remove_tree(path)
            finally:
                os.close(lock)


def _prefix() -> str:
    return f"dgym-{os.getuid()}-"


class ControlGroup:
    """The directories of one sandbox's control group: one in version 2, one for each controller in version 1."""

    def __init__(self, directories: list[Path]) -> None:
        self.directories = directories

    @classmethod
    def make(cls, name: str, limits: Limits) -> "ControlGroup | None":
        """Make a group with these bounds, or None where that is not possible."""
        group = cls([])
        for parent in _parents():
            with suppress(OSError):
                directory = parent / name
                directory.mkdir()
                group.directories.append(directory)
                _bound(directory, limits)
        return group if group.directories else None

    @classmethod
    def remove_named(cls, name: str) -> bool:
        """Remove a group that another process left behind; False while a process is in it."""
        return cls([parent / name for parent in _parents()]).remove()

    def add(self, process: int) -> None:
        """Move a process and whatever it will start into the group."""
        for directory in self.directories:
            with suppress(OSError):
                (directory / "cgroup.procs").write_text(str(process))

    def processes(self) -> set[int]:
        """The processes in the group."""
        found: set[int] = set()
        for directory in self.directories:
            with suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def memory_kills(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        killed = 0
        for directory in self.directories:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    lines = (directory / name).read_text().splitlines()
                    killed += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return killed

    def remove(self) -> bool:
        """Remove the group; False while the kernel still counts a dying process in it."""
        removed = True
        for directory in self.directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                removed = removed and error.errno != errno.EBUSY
        return removed


def _bound(directory: Path, limits: Limits) -> None:
    files: dict[str, int | None] = {}
    if limits.processes is not None:
        files["pids.max"] = limits.processes + _SPARE_TASKS
    if limits.memory_bytes is not None:
        files["memory.max"] = files["memory.limit_in_bytes"] = limits.memory_bytes + _SPARE_BYTES
        files["memory.swap.max"] = 0
    for name, value in files.items():
        if (directory / name).exists():
            (directory / name).write_text(str(value))


def _parents() -> list[Path]:
    """The groups below which ours may be made."""
    try:
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    parents: list[Path] = []
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            parents += _delegated(_CGROUPS / path.lstrip("/"))
        elif controllers in _CONTROLLERS:
            parents.append(_CGROUPS / controllers / path.lstrip("/"))
    return [parent for parent in parents if parent.is_dir() and os.access(parent, os.W_OK)]


def _delegated(group: Path) -> list[Path]:
    """Version 2: only where the controllers are already handed down, since our own process stands in the group."""
    try:
        handed_down = (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    return [group] if set(_CONTROLLERS) & set(handed_down) else []
