"""A short-lived program that works on whole trees: its memory goes with it, the runner stays small.

``pack ROOT`` writes the paths named on standard input (NUL-separated) as a tar to standard output. ``unpack ROOT``
extracts the tar on standard input below ROOT, and nothing anywhere else: no absolute names, no ``..``, no writing
through symbolic links, no links that lead outside, no special files, no set-user-id bits.

``manifest ROOT CACHE TARGET LIMIT`` hashes at most LIMIT files and writes TARGET: a line of JSON for each path, that is
the path and its entry. A hash is reused from CACHE while the file's identity, size and both times are the same, unless
the file changed so shortly before it was hashed that a second change could have the same times. The change time
decides: programs cannot set it back. A workspace beyond the limits has no manifest: programs can make more files than
fit into memory.

The status is 3 for an error of the system, whose number and text are on standard error.
"""

import errno
import os
import stat
import sys
import time

_LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_BYTECODE = (".pyc", ".pyo")
SETTLED_NS = 100 * 1000 * 1000
MAX_BYTES = 64 * 1024 * 1024
MAX_MEMBER = 2 * 1024 * 1024 * 1024


# Tars


class Unsafe(Exception):
    """The archive is no tar, or holds something that must not be extracted."""


def parts_of(name):
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Unsafe("%r leads outside" % name)
    return parts


def check_link(parts, target):
    """A symbolic link may only lead to places below the root."""
    if target.startswith("/"):
        raise Unsafe("the link %r leads to %r" % ("/".join(parts), target))
    depth = len(parts) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise Unsafe("the link %r leads to %r" % ("/".join(parts), target))


class Unpacker(object):
    """Extracts members below one root."""

    def __init__(self, root):
        self._root = os.path.realpath(root)
        self._sound = {""}
        self._modes = {}

    def extract(self, archive):
        for member in archive:
            if member.size > MAX_MEMBER:
                # A header may announce any size; to skip that much would take for ever.
                raise Unsafe("%r has more than %d bytes" % (member.name, MAX_MEMBER))
            parts = parts_of(member.name)
            if parts:
                self._extract(archive, member, parts)
        # Last, since a directory without write permission takes no files; deepest first for the same reason.
        for path in sorted(self._modes, reverse=True):
            os.chmod(path, self._modes[path])

    def _extract(self, archive, member, parts):
        self._directory(parts[:-1])
        path = os.path.join(self._root, *parts)
        if member.isdir():
            self._directory(parts)
            self._modes[path] = stat.S_IMODE(member.mode) & 0o777 | 0o700
            return
        self._clear(path, parts)
        if member.issym():
            check_link(parts, member.linkname)
            os.symlink(member.linkname, path)
        elif member.islnk():
            source = parts_of(member.linkname)
            self._directory(source[:-1])
            os.link(os.path.join(self._root, *source), path, follow_symlinks=False)
        elif member.isreg():
            self._write(archive.extractfile(member), path, stat.S_IMODE(member.mode) & 0o777, member.mtime)
        else:
            raise Unsafe("%r is a special file" % member.name)

    def _directory(self, parts):
        """Make the directory, in the place of symbolic links and files on the way to it."""
        for count in range(1, len(parts) + 1):
            key = "/".join(parts[:count])
            if key in self._sound:
                continue
            path = os.path.join(self._root, key)
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    os.mkdir(path, 0o755)
            except FileNotFoundError:
                os.mkdir(path, 0o755)
            self._sound.add(key)

    def _clear(self, path, parts):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            raise Unsafe("%r is a directory already" % "/".join(parts))
        os.unlink(path)

    @staticmethod
    def _write(source, path, mode, mtime):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as target:
            for block in iter(lambda: source.read(64 * 1024), b""):
                target.write(block)
            target.flush()
            os.fchmod(descriptor, mode)
            if mtime:  # A member without a date is as old as its extraction.
                os.utime(descriptor, (mtime, mtime))


def unpack(root):
    import tarfile  # here, since hashing a workspace mostly takes less time than this import

    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            Unpacker(root).extract(archive)
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as problem:
        raise Unsafe("the archive cannot be read: %s" % problem)
    # What follows the end mark is padding: read it, so that the sender does not meet a closed pipe.
    while sys.stdin.buffer.read(64 * 1024):
        pass


def pack(root):
    import tarfile

    names = [os.fsdecode(name) for name in sys.stdin.buffer.read().split(b"\0") if name]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            archive.add(os.path.join(root, name), arcname=name, filter=_anonymous)


def _anonymous(member):
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# The manifest


def load_cache(path):
    import json

    try:
        with open(path, "rb") as stream:
            cache = json.loads(stream.read().decode("ascii"))
        return cache if isinstance(cache, dict) else {}
    except (OSError, ValueError):
        return {}


def save(path, value):
    import json

    with open(path + ".new", "w") as stream:
        json.dump(value, stream, separators=(",", ":"))
    os.rename(path + ".new", path)


def now_ns():
    return int(time.time() * 1e9)


def fingerprint(root, limit):
    """A number that changes with any change of the tree, and the time of its newest change; reads no file.

    Then the number of its paths, and the bytes of its files.
    """
    value, newest, paths, size = 0, 0, 0, 0
    for relative, status in walk(root, limit):
        value = hash((value, relative, status.st_mode) + tuple(identity_of(status)))
        newest = max(newest, status.st_ctime_ns)
        paths += 1
        size += status.st_size
    return value, newest, paths, size


def identity_of(status):
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def small_sha256():
    """A SHA-256 without OpenSSL, whose library takes 4 MiB and several milliseconds; None if there is none."""
    for name in ("_sha2", "_sha256"):
        try:
            return __import__(name).sha256
        except ImportError:
            pass
    return None


class TooMuch(OSError):
    """There is more to read than the caller allows."""

    def __init__(self):
        OSError.__init__(self, errno.ENODATA, "too much has changed")


class Hashing(object):
    """The digests of files.

    ``new`` makes a hash; None: hashlib's. ``left`` is how many bytes may be read in all, beyond which it raises
    ``TooMuch``; None: any number.
    """

    def __init__(self, new=None, left=None):
        if new is None:
            from hashlib import sha256 as new
        self._new = new
        self._left = left

    def digest(self, path):
        """The file's SHA-256; empty when it cannot be read, which no readable file has."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return ""
        state = self._new()
        with open(descriptor, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""  # replaced by a program since it was found
            for block in iter(lambda: stream.read(256 * 1024), b""):
                if self._left is not None:
                    self._left -= len(block)
                    if self._left < 0:
                        raise TooMuch
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


def hashed(path, status, known, fresh, key, hashing):
    """The digest of one regular file, from the cache where that is safe."""
    identity = identity_of(status)
    old = known.get(key)
    if old and old[0] == identity and status.st_ctime_ns + SETTLED_NS < old[1]:
        fresh[key] = old
        return old[2]
    begin = now_ns()
    value = hashing.digest(path)
    fresh[key] = [identity, begin, value]
    return value


def key_of(relative):
    return os.fsencode(relative).decode("utf-8", "backslashreplace")


def describe(root, relative, status, known, fresh, hashing):
    """The key of one path and its entry."""
    key = key_of(relative)
    entry = {"type": "other", "mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
    if stat.S_ISREG(status.st_mode):
        entry["type"] = "file"
        entry["sha256"] = hashed(os.path.join(root, relative), status, known, fresh, key, hashing)
    elif stat.S_ISLNK(status.st_mode):
        try:
            target = os.fsencode(os.readlink(os.path.join(root, relative)))
        except OSError:
            return key, entry  # removed meanwhile by a program that still runs
        entry["type"] = "symlink"
        entry["target"] = target.decode("utf-8", "backslashreplace")
    if os.fsencode(relative) != key.encode("utf-8"):
        entry["type"] = "unnamed"  # A patch cannot name it. Its hash or target shows that it has changed.
    return key, entry


def write_lines(root, target, limit, known, fresh, hashing):
    """Write the manifest to ``target``; hashes are taken from ``known`` and put into ``fresh``."""
    import json

    size = 0
    with open(target + ".new", "w") as stream:
        for relative, status in walk(root, limit):
            line = json.dumps(describe(root, relative, status, known, fresh, hashing), separators=(",", ":"))
            size += len(line)
            if size > MAX_BYTES:
                raise OSError(errno.E2BIG, "the paths of the workspace's files are too long together")
            stream.write(line + "\n")
    os.rename(target + ".new", target)


def write_manifest(root, cache, target, limit):
    fresh = {}
    write_lines(root, target, int(limit), load_cache(cache), fresh, Hashing())
    save(cache, fresh)


def main(command, *arguments):
    """Run one command; returns the exit status."""
    try:
        {"pack": pack, "unpack": unpack, "manifest": write_manifest}[command](*arguments)
    except OSError as problem:
        where = ": %s" % problem.filename if problem.filename else ""
        sys.stderr.write("%d %s%s" % (problem.errno or errno.EIO, problem.strerror or problem, where))
        return 3
    except Unsafe as problem:
        sys.stderr.write(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    # tarfile imports shutil for a function that packing and unpacking do not call. With re, bz2 and lzma, which shutil
    # imports, it takes longer than all the rest of the start.
    sys.modules["shutil"] = type(sys)("shutil")
    sys.exit(main(*sys.argv[1:]))
