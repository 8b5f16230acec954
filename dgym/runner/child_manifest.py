"""A short-lived program that hashes the workspace: its memory goes with it, the runner stays small.

Arguments: the workspace, the cache file, the file to write, names to leave out. Writes a JSON object of path to entry.
Hashes are reused
for files whose identity, size and both times are as they were, unless they changed so shortly before they were hashed
that a second change could bear the same times. The change time decides: programs cannot set it back.
"""

import json
import os
import stat
import sys
import time

_LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_BYTECODE = (".pyc", ".pyo")
SETTLED_NS = 100 * 1000 * 1000


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


def fingerprint(root, exclude):
    """A number that changes with any change of the tree, and the newest change in it; nothing is read for it."""
    value, newest = 0, 0
    for relative, status in walk(root, _LEFT_OUT.union(exclude)):
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


def walk(root, left_out):
    """Relative paths and their lstat, directories themselves left out."""
    queue = [""]
    while queue:
        prefix = queue.pop()
        try:
            entries = list(os.scandir(os.path.join(root, prefix)))
        except OSError:
            continue
        for entry in entries:
            if entry.name in left_out or entry.name.endswith(_BYTECODE):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                queue.append(os.path.join(prefix, entry.name))
            else:
                yield os.path.join(prefix, entry.name), status


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


def build(root, left_out, known):
    """The manifest and the next cache."""
    manifest, fresh = {}, {}
    for relative, status in walk(root, left_out):
        key = os.fsencode(relative).decode("utf-8", "backslashreplace")
        # A name that is not UTF-8 cannot be named in a patch: it is reported as what cannot be carried.
        sound = os.fsencode(relative) == key.encode("utf-8")
        entry = {"type": "other", "mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
        if sound and stat.S_ISREG(status.st_mode):
            entry["type"] = "file"
            entry["sha256"] = hashed(os.path.join(root, relative), status, known, fresh, key)
        elif sound and stat.S_ISLNK(status.st_mode):
            entry["type"] = "symlink"
            target = os.fsencode(os.readlink(os.path.join(root, relative)))
            entry["target"] = target.decode("utf-8", "backslashreplace")
        manifest[key] = entry
    return manifest, fresh


def main(arguments):
    root, cache, target = arguments[:3]
    manifest, fresh = build(root, _LEFT_OUT.union(arguments[3:]), load_cache(cache))
    save(target, manifest)
    save(cache, fresh)


if __name__ == "__main__":
    main(sys.argv[1:])
