"""Kills the command that would take the sandbox down: for memory at 90 % of the limit, or for too many processes.

A leaking program is then the agent's failure with an answer, instead of the kernel's choice, which may be the runner.
"""

import os
import threading
import time

from . import cgroup
from . import proctree

_SHARE = 0.9
# How fast a program can fill memory: the next look comes before the room left could be used up at this rate.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.02, 0.25


class Watchdog(object):
    """Looks at everything below the runner while something runs there."""

    def __init__(self, table, limits):
        self._table = table
        self._limits = limits
        self._group = cgroup.find()

    def start(self):
        """Watch until the process ends."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self):
        interval = self.look()
        while True:
            self._table.wait_until_busy()
            time.sleep(interval)
            interval = self.look()

    def look(self):
        """Look once, act if need be, and say how long to wait before the next look."""
        lookup = proctree.child_lookup()
        units = {}
        for child in lookup(os.getpid()):
            units[child] = [child] + proctree.descendants(child, lookup)
        most = self._limits.processes
        if most and sum(len(pids) for pids in units.values()) > most:
            self._kill(max(units, key=lambda unit: len(units[unit])), units, "killed")
            return _SHORTEST
        return self._look_at_memory(units)

    def _look_at_memory(self, units):
        sizes = _sizes(units, proctree.resident_bytes)
        room = self._room(sizes)
        if room is not None and room < 0:
            # The quick figure counts pages shared after fork several times: ask for the exact one before killing.
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
            # On a laptop the group is shared with others: their use is no reason to kill a command of ours.
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
