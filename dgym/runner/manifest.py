"""A short-lived program that hashes the workspace: its memory goes with it, the runner stays small.

Arguments: the workspace, the cache file, the file to write, the largest number of files. Writes a line of JSON for each
path: the path and its entry. A hash is reused while the file's identity, size and both times are the same, unless the
file changed so shortly before it was hashed that a second change could have the same times. The change time decides:
programs cannot set it back.

A workspace beyond the limits has no manifest: programs can make more files than fit into memory.
"""

import errno
import json
import os
import stat
import sys
import time

_LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_BYTECODE = (".pyc", ".pyo")
SETTLED_NS = 100 * 1000 * 1000
MAX_BYTES = 64 * 1024 * 1024


def load_cache(path):
    try:
        with open(path, "rb") as stream:
            cache = json.loads(stream.read().decode("ascii"))
        return cache if isinstance(cache, dict) else {}
    except (OSError, ValueError):
        return {}


def save(path, value):
    with open(path + ".new", "w") as stream:
        json.dump(value, stream, separators=(",", ":"))
    os.rename(path + ".new", path)


def now_ns():
    return int(time.time() * 1e9)


def fingerprint(root, limit):
    """A number that changes with any change of the tree, and the time of its newest change; reads no file."""
    value, newest = 0, 0
    for relative, status in walk(root, limit):
        value = hash((value, relative, status.st_mode) + tuple(identity_of(status)))
        newest = max(newest, status.st_ctime_ns)
    return value, newest


def identity_of(status):
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def digest(path):
    """The file's SHA-256; empty when it cannot be read, which no readable file has."""
    import hashlib

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return ""
    state = hashlib.sha256()
    with open(descriptor, "rb", buffering=0) as stream:
        for block in iter(lambda: stream.read(256 * 1024), b""):
            state.update(block)
    return state.hexdigest()


def walk(root, limit):
    """Relative paths and their lstat, directories themselves left out; ``OSError`` (E2BIG) above ``limit`` entries."""
    queue = [""]
    seen = 0
    while queue:
        prefix = queue.pop()
        for entry in _entries(os.path.join(root, prefix)):
            seen += 1
            if seen > limit:
                raise OSError(errno.E2BIG, "the workspace has more than %d files and directories" % limit)
            if entry.name in _LEFT_OUT or entry.name.endswith(_BYTECODE):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                queue.append(os.path.join(prefix, entry.name))
            else:
                yield os.path.join(prefix, entry.name), status


def _entries(directory):
    """The entries of a directory; none when it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry
    except OSError:
        return


def hashed(path, status, known, fresh, key):
    """The digest of one regular file, from the cache where that is safe."""
    identity = identity_of(status)
    old = known.get(key)
    if old and old[0] == identity and status.st_ctime_ns + SETTLED_NS < old[1]:
        fresh[key] = old
        return old[2]
    begin = now_ns()
    value = digest(path)
    fresh[key] = [identity, begin, value]
    return value


def describe(root, relative, status, known, fresh):
    """The key of one path and its entry."""
    key = os.fsencode(relative).decode("utf-8", "backslashreplace")
    # A name that is not UTF-8 cannot be named in a patch: it is reported as what cannot be carried.
    sound = os.fsencode(relative) == key.encode("utf-8")
    entry = {"type": "other", "mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
    if sound and stat.S_ISREG(status.st_mode):
        entry["type"] = "file"
        entry["sha256"] = hashed(os.path.join(root, relative), status, known, fresh, key)
    elif sound and stat.S_ISLNK(status.st_mode):
        try:
            target = os.fsencode(os.readlink(os.path.join(root, relative)))
        except OSError:
            return key, entry  # removed meanwhile by a program that still runs
        entry["type"] = "symlink"
        entry["target"] = target.decode("utf-8", "backslashreplace")
    return key, entry


def write_manifest(root, target, known, limit):
    """Write the manifest; returns the next cache."""
    fresh, size = {}, 0
    with open(target + ".new", "w") as stream:
        for relative, status in walk(root, limit):
            line = json.dumps(describe(root, relative, status, known, fresh), separators=(",", ":"))
            size += len(line)
            if size > MAX_BYTES:
                raise OSError(errno.E2BIG, "the paths of the workspace's files are too long together")
            stream.write(line + "\n")
    os.rename(target + ".new", target)
    return fresh


def main(arguments):
    root, cache, target, limit = arguments
    save(cache, write_manifest(root, target, load_cache(cache), int(limit)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as problem:
        sys.stderr.write("%d %s" % (problem.errno or errno.EIO, problem.strerror or problem))
        sys.exit(3)
