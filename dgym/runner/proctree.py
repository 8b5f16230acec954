"""Reads processes and the memory of control groups from /proc, and sends signals.

All functions tolerate processes that end during the call.
"""

import os
import signal
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))


def _read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _stat_fields(pid):
    # The command name is in parentheses and may itself contain spaces and parentheses, so the last one is searched.
    return _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def start_time(pid):
    """Returns the start time of a process in clock ticks since boot, or None if it has ended.

    The process id and the start time together identify a process uniquely.
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def is_alive(pid):
    """Returns True if the process exists and is not a zombie."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def all_pids():
    """Returns all process ids in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children_from_tasks(pid):
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return []
    found = []
    for task in tasks:
        found.extend(int(child) for child in _read("/proc/%d/task/%s/children" % (pid, task)).split())
    return found


def _children_by_scan():
    children = {}
    for pid in all_pids():
        fields = _stat_fields(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    return lambda pid: children.get(pid, [])


def child_lookup():
    """Returns a function that returns the children of a process id.

    If the kernel does not list the children of a process, the function uses one full scan of /proc.
    """
    if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return _children_from_tasks
    return _children_by_scan()


def descendants(pid, lookup=None):
    """Returns all descendants of ``pid``, parents before their children."""
    lookup = lookup or child_lookup()
    found, queue = [], [pid]
    seen = {pid}
    while queue:
        for child in lookup(queue.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                queue.append(child)
    return found


def environment_value(pid, name):
    """Returns a variable of the environment with which a process was started, or None if unset or unreadable."""
    prefix = name.encode("ascii") + b"="
    for entry in _read("/proc/%d/environ" % pid).split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def resident_bytes(pid):
    """Returns the private resident memory in bytes. Pages that are shared after fork count for each process."""
    fields = _read("/proc/%d/statm" % pid).split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def proportional_bytes(pid):
    """Returns the proportional set size, which divides shared pages among processes. This is exact but slow.

    Returns ``resident_bytes`` if the kernel does not report it.
    """
    for line in _read("/proc/%d/smaps_rollup" % pid).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def send(pid, number):
    """Signal one process; does not raise if it has ended."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def prefer_for_oom_kill(pid):
    """Make the OOM killer prefer this process and its future children."""
    try:
        with open("/proc/%d/oom_score_adj" % pid, "wb", buffering=0) as stream:
            stream.write(b"1000")
    except OSError:
        pass


def send_group(group, number):
    """Signal a process group. Returns False if it has no process."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def kill_all_of(find):
    """Kill the processes that ``find()`` returns, until it returns none.

    All processes are stopped before they are killed. Otherwise a fork bomb could start processes faster than they are
    killed.

    Returns:
        False if processes are left after 10 seconds.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stopped = set()
        while time.monotonic() < deadline:
            fresh = [pid for pid in find() if pid not in stopped]
            if not fresh:
                break
            for pid in fresh:
                send(pid, signal.SIGSTOP)
            stopped.update(fresh)
        if not stopped:
            return True
        for pid in stopped:
            send(pid, signal.SIGKILL)
        _wait_gone(stopped)
    return False


def _wait_gone(pids):
    deadline = time.monotonic() + 0.5
    pause = 0.0005
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


class MemoryGroup(object):
    """A control group with a memory limit."""

    def __init__(self, directory, files, limit):
        self._directory = directory
        self._files = files
        self.limit = limit

    def usage(self):
        """Returns the memory in use in bytes, without the page cache, which the kernel can reclaim."""
        used = _number(os.path.join(self._directory, self._files[1])) or 0
        for line in _lines(os.path.join(self._directory, "memory.stat")):
            name, _, value = line.partition(" ")
            if name in self._files[2]:
                used -= int(value)
        return max(0, used)


def find_group():
    """Returns the innermost control group of this process with a memory limit, or None."""
    for directory, mount, version in _own_groups():
        files = _V1 if version == 1 else _V2
        while directory.startswith(mount):
            limit = _number(os.path.join(directory, files[0]))
            if limit is not None and limit < _UNLIMITED:
                return MemoryGroup(directory, files, limit)
            directory = os.path.dirname(directory)
    return None


def find_memory_kills():
    """Returns a function that returns the number of OOM kills in this control group (0 if it is not reported)."""
    for directory, _, version in _own_groups():
        path = os.path.join(directory, "memory.oom_control" if version == 1 else "memory.events")
        if _memory_kills(path) is not None:
            return lambda: _memory_kills(path) or 0
    return lambda: 0


def _memory_kills(path):
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def _own_groups():
    """Yields directory, mount and version of the control groups of this process that account for memory."""
    own = _own_paths()
    for root, mount, version in _mounts():
        path = own.get(version)
        if path is not None:
            relative = os.path.relpath(path, root) if (path + "/").startswith(root.rstrip("/") + "/") else "."
            yield os.path.normpath(os.path.join(mount, relative)), mount, version


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
    return os.fsdecode(_read(path)).splitlines()


def _number(path):
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None
