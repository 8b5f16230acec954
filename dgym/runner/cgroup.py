"""The memory limit of the control group this process lives in, version 1 or 2: in a pod, the container's."""

import os

_UNLIMITED = 1 << 60
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))


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


def find():
    """The innermost control group with a memory limit that holds us; None where there is none."""
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
