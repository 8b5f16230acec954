"""A local sandbox's resources on this machine: its private directory and, where one can be made, its control group.

A directory belongs to a live process as long as that process holds its lock. The next process that opens a sandbox
removes the directories and groups of dead processes.

Resource limits bind neither the number of root's processes nor the memory of a tree of processes; a control group
does. Few machines delegate one; elsewhere the runner's own watchdogs enforce the limits.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dgym.errors import SandboxStartFailed
from dgym.locks import acquire, try_acquire
from dgym.sandbox.protocol import Limits

_LOCK = "lock"
_YOUNG_SECONDS = 60.0

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of ioctl_iflags(2), on machines of 64 bits."""
_TOP_DIRECTORY = 0x00020000
"""FS_TOPDIR_FL."""

_REUSED_SECONDS = 300.0
"""ext4 gives out the inode of a removed file after a minute, or five while its block is not written."""
_REGION_INODES = 131_072
"""Inodes of a region by default: 16 groups of 8,192."""
_REGIONS_TRIED = 8
_removed: deque[tuple[int, float]] = deque(maxlen=64)
"""Where and when this process has removed workspaces."""

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
            workspace = _fresh_region(path) / "workspace"
            workspace.mkdir()
        except OSError as error:
            raise SandboxStartFailed(f"a directory for the sandbox could not be made: {error}") from error
        return cls(path, workspace, lock)

    def remove(self) -> None:
        """Remove everything, whatever modes the sandbox left on it. Idempotent."""
        if self._lock < 0:
            return
        with suppress(OSError):
            _removed.append((self.workspace.parent.stat().st_ino, time.monotonic()))
        remove_tree(self.path)
        os.close(self._lock)
        self._lock = -1


def _fresh_region(parent: Path) -> Path:
    """A new directory in ``parent`` whose files ext4 places apart from those of earlier sandboxes.

    ext4 puts a directory beside its parent, and reuses no inode for a minute or more after its file was removed. A
    workspace beside one that was just removed therefore searches past every removed inode for each new file: 5,000
    files take 4.5 s instead of 0.14 s. Below a directory that counts as the top of a hierarchy ext4 chooses the place
    by the name, which is random here. Other file systems need and take no such hint.
    """
    tries = _REGIONS_TRIED if _mark_as_top(parent) else 0
    region = Path(tempfile.mkdtemp(prefix="files-", dir=parent))
    while tries and _is_near_removed(region):
        tries -= 1
        region.rmdir()
        region = Path(tempfile.mkdtemp(prefix="files-", dir=parent))
    return region


def _is_near_removed(directory: Path) -> bool:
    """Whether this process has removed a workspace nearby lately; the inodes of one region have adjacent numbers."""
    since, inode = time.monotonic() - _REUSED_SECONDS, directory.stat().st_ino
    return any(when > since and abs(other - inode) < _REGION_INODES for other, when in tuple(_removed))


def _mark_as_top(directory: Path) -> bool:
    """Set the attribute ``T`` of chattr(1); False where the file system has none."""
    if sys.platform != "linux":
        return False
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack_from("=I", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("=Q", flags | _TOP_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


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
