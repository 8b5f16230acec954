"""A short-lived program that hashes the workspace: its memory goes with it, the runner stays small.

Arguments: the workspace, the cache file, names to leave out. Prints a JSON object of path to entry. Hashes are reused
for files whose identity, size and both times are as they were, unless they changed so shortly before they were hashed
that a second change could bear the same times. The change time decides: programs cannot set it back.
"""

import hashlib
import json
import os
import stat
import sys
import time

_LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_BYTECODE = (".pyc", ".pyo")
_SETTLED_NS = 100 * 1000 * 1000


def load_cache(path):
    try:
        with open(path, "rb") as stream:
            cache = json.loads(stream.read().decode("ascii"))
        return cache if isinstance(cache, dict) else {}
    except (OSError, ValueError):
        return {}


def save_cache(path, cache):
    temporary = path + ".%d" % os.getpid()
    with open(temporary, "w") as stream:
        json.dump(cache, stream)
    os.rename(temporary, path)


def digest(path):
    """The file's SHA-256; empty when it cannot be read, which no readable file has."""
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
    identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    old = known.get(key)
    if old and old[0] == identity and status.st_ctime_ns + _SETTLED_NS < old[1]:
        fresh[key] = old
        return old[2]
    begin = time.time_ns() if hasattr(time, "time_ns") else int(time.time() * 1e9)
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
    root, cache = arguments[:2]
    manifest, fresh = build(root, _LEFT_OUT.union(arguments[2:]), load_cache(cache))
    json.dump(manifest, sys.stdout, separators=(",", ":"))
    sys.stdout.flush()
    save_cache(cache, fresh)


if __name__ == "__main__":
    main(sys.argv[1:])
