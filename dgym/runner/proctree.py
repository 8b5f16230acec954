"""Processes as /proc shows them: descendants, environment, memory, the control group's memory; and signals to them.

Everything here tolerates processes that vanish meanwhile.
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
    # The command name, in parentheses, may hold spaces and parentheses itself: split after the last one.
    return _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def start_time(pid):
    """The boot-relative start of a process, which with the pid identifies it uniquely; None when it has ended."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def is_alive(pid):
    """Whether the process exists and is not a zombie."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def all_pids():
    """Every process id this /proc shows."""
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
    """A function from a process id to its children: cheap where the kernel lists them, else from one full scan."""
    if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return _children_from_tasks
    return _children_by_scan()


def descendants(pid, lookup=None):
    """Every process below ``pid``, parents before their children."""
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
    """The value of a variable in the environment a process was started with; None when unset or unreadable."""
    prefix = name.encode("ascii") + b"="
    for entry in _read("/proc/%d/environ" % pid).split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def resident_bytes(pid):
    """Private resident memory: an over-estimate where pages are shared after fork."""
    fields = _read("/proc/%d/statm" % pid).split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def proportional_bytes(pid):
    """Resident memory with shared pages divided among their holders: exact but slow; falls back to the estimate."""
    for line in _read("/proc/%d/smaps_rollup" % pid).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def send(pid, number):
    """Signal one process; no error when it has ended."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def prefer_for_oom_kill(pid):
    """Make the kernel choose this process, and what it starts, before others when memory runs out."""
    try:
        with open("/proc/%d/oom_score_adj" % pid, "wb", buffering=0) as stream:
            stream.write(b"1000")
    except OSError:
        pass


def send_group(group, number):
    """Signal a process group; False when it is empty."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def kill_all_of(find, seconds=10):
    """SIGKILL the processes that ``find()`` names until it names none; False when some remain after ``seconds``.

    All are stopped first: a program that forks as fast as it is killed would win otherwise.
    """
    deadline = time.monotonic() + seconds
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
    for directory, mount, version in _own_groups():
        files = _V1 if version == 1 else _V2
        while directory.startswith(mount):
            limit = _number(os.path.join(directory, files[0]))
            if limit is not None and limit < _UNLIMITED:
                return MemoryGroup(directory, files, limit)
            directory = os.path.dirname(directory)
    return None


def find_memory_kills():
    """A function that counts the processes of this control group that the kernel has killed for want of memory."""
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
    """The control groups of this process that account for memory: directory, mount, version."""
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
