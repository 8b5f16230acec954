"""A short-lived program that works on whole trees. It is a separate process, so that the runner needs less memory.

``pack ROOT`` writes the paths on standard input (NUL-separated) as a tar to standard output.

``unpack ROOT`` extracts the tar on standard input below ROOT. It refuses absolute names, ``..``, links that lead
outside and special files. It does not write through symbolic links and does not set set-user-id bits.

``manifest ROOT CACHE TARGET LIMIT`` writes the file TARGET with a line of JSON for each path, which contains the path
and its entry. A hash is reused from CACHE if the file's identity, size and both times are the same. It is not reused if
the file changed so shortly before it was hashed that a second change could have the same times. The change time (ctime)
counts, because programs cannot set it. A workspace with more than LIMIT files is an error, because programs can create
more files than fit into memory.

The exit status is 3 for an OSError; its number and text are on standard error.
"""

import errno
import os
import stat
import sys
import time

START = """
import sys
sys.modules["dgym_runner"] = package = type(sys)("dgym_runner")
package.__path__ = [sys.argv.pop(1)]
from dgym_runner.tree_worker import main
sys.exit(main(*sys.argv[1:]))
"""
"""Starts the program: ``PYTHON -I -S -c START DIRECTORY COMMAND…`` with the directory of this file.

An imported module is loaded from its bytecode. A script would be compiled at each start, which takes longer than the
work on a small tree.
"""
_LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_BYTECODE = (".pyc", ".pyo")
SETTLED_NS = 100 * 1000 * 1000
MAX_BYTES = 64 * 1024 * 1024
MAX_MEMBER = 2 * 1024 * 1024 * 1024


# Tars


class Unsafe(Exception):
    """The archive is not a tar, or contains a member that must not be extracted."""


def parts_of(name):
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Unsafe("%r leads outside" % name)
    return parts


def check_link(parts, target):
    """Raise ``Unsafe`` if a symbolic link leads outside of the root."""
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
                # A header may contain any size, and reading up to the next member would take too long.
                raise Unsafe("%r has more than %d bytes" % (member.name, MAX_MEMBER))
            parts = parts_of(member.name)
            if parts:
                self._extract(archive, member, parts)
        # Modes are set last and deepest first, because a directory without write permission cannot be changed.
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
        """Create a directory and its parents. Symbolic links and files at these paths are replaced."""
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
            if mtime:
                os.utime(descriptor, (mtime, mtime))


def unpack(root, stream):
    """Extract a tar below ``root``. Raises ``Unsafe`` or OSError."""
    tarfile = import_tarfile()
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            Unpacker(root).extract(archive)
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as problem:
        raise Unsafe("the archive cannot be read: %s" % problem)
    # The padding after the end mark is read, too. Otherwise the sender would write to a closed pipe.
    while stream.read(64 * 1024):
        pass


def _unpack_input(root):
    unpack(root, sys.stdin.buffer)


def import_tarfile():
    """Import tarfile without shutil. Call it first when the process has one thread: others could import shutil, too.

    tarfile imports shutil for a function that packing and unpacking do not call. shutil imports bz2 and lzma, which
    would take longer and more memory than the rest.
    """
    absent = "shutil" not in sys.modules
    if absent:
        sys.modules["shutil"] = type(sys)("shutil")
    import tarfile

    if absent:
        sys.modules.pop("shutil", None)
    return tarfile


def pack(root):
    tarfile = import_tarfile()
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
    """Compute a fingerprint of a tree without reading its files.

    Returns:
        A number that changes with any change of the tree, the newest ctime in nanoseconds, the number of paths, and the
        total size in bytes.
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
    """Returns a SHA-256 constructor that does not load OpenSSL, or None.

    Loading OpenSSL takes 4 MiB and several milliseconds.
    """
    for name in ("_sha2", "_sha256"):
        try:
            return __import__(name).sha256
        except ImportError:
            pass
    return None


class LimitExceeded(OSError):
    """The operation exceeds the caller's limit."""

    def __init__(self):
        OSError.__init__(self, errno.ENODATA, "too much has changed")


class Hashing(object):
    """Computes the digests of files.

    Args:
        new: Constructor of the hash; hashlib's SHA-256 if None.
        left: How many bytes may be read in total. ``digest`` raises ``LimitExceeded`` beyond this; None is unlimited.
    """

    def __init__(self, new=None, left=None):
        if new is None:
            from hashlib import sha256 as new
        self._new = new
        self._left = left

    def digest(self, path):
        """Returns the SHA-256 of a file in hexadecimal, or an empty string if it cannot be read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return ""
        state = self._new()
        with open(descriptor, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""  # a program has replaced the file since lstat
            for block in iter(lambda: stream.read(256 * 1024), b""):
                if self._left is not None:
                    self._left -= len(block)
                    if self._left < 0:
                        raise LimitExceeded
                state.update(block)
        return state.hexdigest()


def walk(root, limit):
    """Yields each relative path and its lstat, without directories. Raises OSError (E2BIG) above ``limit`` entries."""
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
    """Yields the entries of a directory; yields nothing if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry
    except OSError:
        return


def hashed(path, status, known, fresh, key, hashing):
    """Returns the digest of a regular file, from the cache ``known`` if the file cannot have changed."""
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
    """Returns the key of a path and its entry in the manifest."""
    key = key_of(relative)
    entry = {"type": "other", "mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
    if stat.S_ISREG(status.st_mode):
        entry["type"] = "file"
        entry["sha256"] = hashed(os.path.join(root, relative), status, known, fresh, key, hashing)
    elif stat.S_ISLNK(status.st_mode):
        try:
            target = os.fsencode(os.readlink(os.path.join(root, relative)))
        except OSError:
            return key, entry  # a running program has removed the link
        entry["type"] = "symlink"
        entry["target"] = target.decode("utf-8", "backslashreplace")
    if os.fsencode(relative) != key.encode("utf-8"):
        entry["type"] = "unnamed"  # a patch cannot contain this name; the hash or target shows changes of the file
    return key, entry


def write_lines(root, target, limit, known, fresh, hashing):
    """Write the manifest to ``target``. Hashes are reused from ``known`` and stored in ``fresh``."""
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


def error_of(problem):
    """Returns the number and the text of an OSError."""
    where = ": %s" % problem.filename if problem.filename else ""
    return problem.errno or errno.EIO, "%s%s" % (problem.strerror or problem, where)


def main(command, *arguments):
    """Run one command and return the exit status. Only for a process of its own, see ``START``."""
    try:
        {"pack": pack, "unpack": _unpack_input, "manifest": write_manifest}[command](*arguments)
    except OSError as problem:
        sys.stderr.write("%d %s" % error_of(problem))
        return 3
    except Unsafe as problem:
        sys.stderr.write(str(problem))
        return 1
    return 0
