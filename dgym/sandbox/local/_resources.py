"""Resources of a local sandbox on this machine: its private directory and, if possible, its control group.

On ext4 the files of a workspace are placed away from files that were removed recently.
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
from dgym.sandbox._protocol import SandboxLimits

_LOCK = "lock"
_YOUNG_SECONDS = 60.0
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("pids", "memory")
_SPARE_TASKS = 64
"""Added for threads of the runner and of programs: the group counts tasks, but ``SandboxLimits.processes`` are
processes."""
_SPARE_BYTES = 64 * 1024**2
"""Added for the runner, so that its watchdog kills the largest command before the kernel's OOM killer chooses."""
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of ioctl_iflags(2), on 64-bit machines."""
_TOP_DIRECTORY = 0x00020000
"""FS_TOPDIR_FL."""
_REUSED_SECONDS = 300.0
"""ext4 reuses the inode of a removed file after one minute, or after five if its block is not yet written."""
_REGION_INODES = 131_072
"""Default number of inodes of a region: 16 groups of 8,192."""
_REGIONS_TRIED = 8
_removed: deque[tuple[int, float]] = deque(maxlen=64)
"""Inode and time of each workspace that this process has removed."""


class PrivateDirectory:
    """The directory of one sandbox, which contains the workspace. Only this user can access it."""

    def __init__(self, path: Path, workspace: Path, lock: int) -> None:
        self.path = path
        self.workspace = workspace
        """Path of the workspace on this machine."""
        self._lock = lock

    @classmethod
    def make(cls) -> "PrivateDirectory":
        """Create it below the machine's directory for temporary files.

        Raises:
            SandboxStartFailed: The disk is full or not writable.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix())).resolve()
            lock = acquire(path / _LOCK)
            for name in ("home", "tmp", "run"):
                (path / name).mkdir()
            workspace = fresh_region(path) / "workspace"
            workspace.mkdir()
        except OSError as error:
            raise SandboxStartFailed(f"a directory for the sandbox could not be created: {error}") from error
        return cls(path, workspace, lock)

    def remove(self) -> None:
        """Remove the directory, including files without permissions. Idempotent."""
        if self._lock < 0:
            return
        with suppress(OSError):
            record_removal(self.workspace.parent)
        remove_tree(self.path)
        os.close(self._lock)
        self._lock = -1


def remove_tree(path: Path) -> None:
    """Remove a tree that untrusted programs wrote. Directories may lack permissions or be nested thousands deep."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # rm uses directory descriptors, so that it handles any depth and any length of a path.
        for command in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
            subprocess.run([*command, str(path)], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def remove_abandoned(also: Callable[[str], bool | None] | None = None) -> None:
    """Remove the directories of processes that are dead.

    ``also`` is called with the name of each directory first. If it returns False, the directory is kept.
    """
    young = time.time() - _YOUNG_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            # A new directory that is not locked yet looks abandoned, so young directories are skipped.
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
    """The control group of one sandbox. It has one directory in cgroups v2, and one for each controller in v1."""

    def __init__(self, directories: list[Path]) -> None:
        self.directories = directories

    @classmethod
    def make(cls, name: str, limits: SandboxLimits) -> "ControlGroup | None":
        """Create a group with these limits; return None if that is not possible."""
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
        """Remove a group that another process left behind. Returns False if it still contains a process."""
        return cls([parent / name for parent in _parents()]).remove()

    def add(self, process: int) -> None:
        """Move a process into the group. Its later child processes belong to the group too."""
        for directory in self.directories:
            with suppress(OSError):
                (directory / "cgroup.procs").write_text(str(process))

    def processes(self) -> set[int]:
        """Return the ids of the processes in the group."""
        found: set[int] = set()
        for directory in self.directories:
            with suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def memory_kills(self) -> int:
        """Return how many processes of the group the kernel has killed because of the memory limit."""
        killed = 0
        for directory in self.directories:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    lines = (directory / name).read_text().splitlines()
                    killed += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return killed

    def remove(self) -> bool:
        """Remove the group. Returns False if the kernel still counts a dying process in it."""
        removed = True
        for directory in self.directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                removed = removed and error.errno != errno.EBUSY
        return removed


def _bound(directory: Path, limits: SandboxLimits) -> None:
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
    """Return the groups in which this process can create a group."""
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
    """Return the group if its controllers are already enabled for its children (cgroups v2), else nothing.

    They cannot be enabled here, because a group that contains processes cannot enable them, and it contains this one.
    """
    try:
        handed_down = (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    return [group] if set(_CONTROLLERS) & set(handed_down) else []


def fresh_region(parent: Path) -> Path:
    """Create a directory in ``parent`` whose files ext4 places away from those of removed sandboxes.

    In a directory that is marked as the top of a hierarchy, ext4 chooses the place by the name, which is random here.
    """
    tries = _REGIONS_TRIED if _mark_as_top(parent) else 0
    region = Path(tempfile.mkdtemp(prefix="files-", dir=parent))
    while tries and _is_near_removed(region):
        tries -= 1
        region.rmdir()
        region = Path(tempfile.mkdtemp(prefix="files-", dir=parent))
    return region


def record_removal(region: Path) -> None:
    """Record that the files in ``region`` will be removed now."""
    _removed.append((region.stat().st_ino, time.monotonic()))


def _is_near_removed(directory: Path) -> bool:
    """True if this process has recently removed a workspace nearby. Inodes of one region have adjacent numbers."""
    since, inode = time.monotonic() - _REUSED_SECONDS, directory.stat().st_ino
    return any(when > since and abs(other - inode) < _REGION_INODES for other, when in tuple(_removed))


def _mark_as_top(directory: Path) -> bool:
    """Set the attribute ``T`` of chattr(1). Returns False if the file system does not support it."""
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
