"""Kills the command that would take the sandbox down: for memory at 90 % of the limit, or for too many processes.

A leaking program is then the agent's failure with an answer, instead of the kernel's choice, which may be the runner.
"""

import os
import threading
import time

from . import proctree

_SHARE = 0.9
# How fast a program can fill memory: the next check comes before the room left could be used up at this rate.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.02, 0.25
_UNLIMITED = 1 << 60
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))


class Watchdog(object):
    """Checks everything below the runner while something runs there."""

    def __init__(self, table, limits):
        self._table = table
        self._limits = limits
        self._group = find_group()

    def start(self):
        """Watch until the process ends."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self):
        interval = self._check()
        while True:
            self._table.wait_until_busy()
            time.sleep(interval)
            interval = self._check()

    def _check(self):
        """Kill a command that exceeds a bound; returns the seconds until the next check."""
        lookup = proctree.child_lookup()
        units = {}
        for child in lookup(os.getpid()):
            units[child] = [child] + proctree.descendants(child, lookup)
        most = self._limits.processes
        if most and sum(len(pids) for pids in units.values()) > most:
            self._kill(max(units, key=lambda unit: len(units[unit])), units, "killed")
            return _SHORTEST
        return self._check_memory(units)

    def _check_memory(self, units):
        sizes = _sizes(units, proctree.resident_bytes)
        room = self._room(sizes)
        if room is not None and room < 0:
            # The quick figure counts pages shared after fork several times: measure exactly before killing.
            sizes = _sizes(units, proctree.proportional_bytes)
            room = self._room(sizes)
            if room < 0:
                self._kill(max(sizes, key=lambda unit: sizes[unit]), units, "memory")
                return _SHORTEST
        return _LONGEST if room is None else min(_LONGEST, max(_SHORTEST, room / _BYTES_PER_SECOND))

    def _room(self, sizes):
        """Bytes until the nearest bound; None without a bound."""
        own = sum(sizes.values())
        rooms = []
        if self._limits.memory_bytes:
            rooms.append(_SHARE * self._limits.memory_bytes - own)
        if self._group is not None:
            used = self._group.usage()
            # On a laptop the group is shared with others: their use is no reason to kill a command of the agent.
            if own >= used / 2:
                rooms.append(_SHARE * self._group.limit - used)
        return min(rooms) if rooms else None

    def _kill(self, unit, units, why):
        for entry in self._table.running():
            if entry.popen.pid == unit:
                entry.ended_by = why
                self._table.kill_group(entry.popen, grace=0)
                return
        proctree.kill_all_of(lambda: [pid for pid in units[unit] if proctree.is_alive(pid)])


def _sizes(units, measure):
    return {unit: sum(measure(pid) for pid in pids) for unit, pids in units.items()}


class MemoryGroup(object):
    """One control group with a limit."""

    def __init__(self, directory, files, limit):
        self._directory = directory
        self._files = files
        self.limit = limit

    def usage(self):
        """Memory in use that the kernel cannot simply drop (page cache can be)."""
        used = _number(os.path.join(self._directory, self._files[1])) or 0
        for line in _lines(os.path.join(self._directory, "memory.stat")):
            name, _, value = line.partition(" ")
            if name in self._files[2]:
                used -= int(value)
        return max(0, used)


def find_group():
    """The innermost control group of this process with a memory limit; None where there is none."""
    own = _own_paths()
    for root, mount, version in _mounts():
        path = own.get(version)
        if path is None:
            continue
        files = _V1 if version == 1 else _V2
        relative = os.path.relpath(path, root) if (path + "/").startswith(root.rstrip("/") + "/") else "."
        directory = os.path.normpath(os.path.join(mount, relative))
        while directory.startswith(mount):
            limit = _number(os.path.join(directory, files[0]))
            if limit is not None and limit < _UNLIMITED:
                return MemoryGroup(directory, files, limit)
            directory = os.path.dirname(directory)
    return None


def _own_paths():
    paths = {}
    for line in _lines("/proc/self/cgroup"):
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and not controllers:
            paths[2] = path
    return paths


def _mounts():
    for line in _lines("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if kind[:1] == ["cgroup2"]:
            yield fields[3], fields[4], 2
        elif kind[:1] == ["cgroup"] and "memory" in kind[-1].split(","):
            yield fields[3], fields[4], 1


def _lines(path):
    try:
        with open(path) as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _number(path):
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None
