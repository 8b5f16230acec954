"""Hard bounds on processes and memory by control groups, where this machine lets us make them.

Resource limits do not bind root's processes in number, nor a tree of processes in memory. A control group does. Few
machines delegate one, so its absence is ordinary: the runner's own watchdogs are then what there is.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from dgym.sandbox.protocol import Limits

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("pids", "memory")

_SPARE_TASKS = 64
"""Room for the runner's threads and for programs with threads: the group counts tasks, the limit means processes."""

_SPARE_BYTES = 64 * 1024**2
"""Room for the runner, so that its watchdog ends the largest command before the kernel picks a victim."""


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
            parents += _delegated(_ROOT / path.lstrip("/"))
        elif controllers in _CONTROLLERS:
            parents.append(_ROOT / controllers / path.lstrip("/"))
    return [parent for parent in parents if parent.is_dir() and os.access(parent, os.W_OK)]


def _delegated(group: Path) -> list[Path]:
    """Version 2: only where the controllers are already handed down, since our own process stands in the group."""
    try:
        handed_down = (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    return [group] if set(_CONTROLLERS) & set(handed_down) else []
