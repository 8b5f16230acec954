"""Operations on whole trees: manifest, pack, unpack. Processes of ``tree_worker`` execute them.

The runner itself unpacks a small tar and writes the manifest of few and small files, because this is faster than
starting a process.
"""

import contextlib
import errno
import io
import itertools
import json
import os
import stat
import subprocess
import sys
import threading

from . import tree_worker
from .connection import RequestError

_ERROR_LIMIT = 4096
_FEW_PATHS = 1000
_FEW_BYTES = 2 * 1024 * 1024
_FEW_UNPACKED = 256 * 1024
_MOST_LINES = 2000
_LARGEST_HASHED = 1024 * 1024
_MOST_HASHED = 16 * 1024 * 1024


class TreeError(RequestError):
    """A process of ``tree_worker`` failed; the message comes from that process."""

    kind = "tree"


class Trees(object):
    """Operations on the workspace's tree."""

    def __init__(self, table, configuration):
        self._table = table
        self._configuration = configuration
        self._hashing = threading.Lock()
        self._seen = None
        self._hashed_at = 0
        tree_worker.import_tarfile()  # here, because the runner has one thread yet

    def manifest(self, limit):
        """Returns a descriptor of the manifest, which has a line of JSON for each path.

        If the tree has not changed since the last call, the file of the last call is returned. Raises OSError (E2BIG)
        above ``limit`` files.
        """
        state = os.path.join(self._configuration.scratch, "state")
        target = os.path.join(state, "manifest.json")
        with self._hashing:
            begin = tree_worker.now_ns()
            value, newest, paths, size = tree_worker.fingerprint(self._configuration.workspace, limit)
            if value != self._seen or newest + tree_worker.SETTLED_NS >= self._hashed_at:
                self._seen = None
                if paths > _FEW_PATHS or size > _FEW_BYTES or not self._write_in_process(target, limit):
                    cache = os.path.join(state, "hashes.json")
                    with self._worker("manifest", self._configuration.workspace, cache, target, str(limit)) as worker:
                        worker.stdout.close()
                self._seen, self._hashed_at = value, begin
            return os.open(target, os.O_RDONLY)

    def _write_in_process(self, target, limit):
        """Write the manifest in this process. Returns False if this would take too long."""
        new = tree_worker.small_sha256()
        if new is None:
            return False
        hashing = tree_worker.Hashing(new, left=_FEW_BYTES)
        try:
            tree_worker.write_lines(self._configuration.workspace, target, min(limit, 4 * _FEW_PATHS), {}, {}, hashing)
        except OSError:
            return False  # the tree has grown since the fingerprint
        return True

    def unpack(self, path, chunks):
        """Extract a tar below ``path``; ``chunks`` are the bytes of the tar. Raises ``TreeError``, OSError."""
        os.makedirs(path, exist_ok=True)
        chunks, begin = iter(chunks), bytearray()
        for chunk in chunks:
            begin += chunk
            if len(begin) > _FEW_UNPACKED:
                break
        else:
            _unpack_in_process(path, begin)
            return
        with self._worker("unpack", path) as worker:
            worker.stdout.close()
            self._feed(worker, itertools.chain([begin], chunks))

    def pack(self, path, names, send):
        """Create a tar and pass it to ``send`` in chunks.

        ``names`` are chunks of bytes with the paths below ``path``, each with a final NUL.
        """
        with self._worker("pack", path) as worker:
            self._feed(worker, names)
            with worker.stdout:
                for block in iter(lambda: worker.stdout.read(64 * 1024), b""):
                    send(block)

    @staticmethod
    def _feed(worker, chunks):
        try:
            with worker.stdin:
                for chunk in chunks:
                    worker.stdin.write(chunk)
        except BrokenPipeError:
            pass  # _check raises the worker's error

    @contextlib.contextmanager
    def _worker(self, *command):
        """Run a process of ``tree_worker``, and wait for its end. Raises ``TreeError`` or OSError if it fails."""
        directory = os.path.dirname(os.path.abspath(tree_worker.__file__))
        argv = [sys.executable, "-I", "-S", "-B", "-c", tree_worker.START, directory] + list(command)
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as errors:
            try:
                worker = self._table.spawn(
                    argv,
                    env={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=writing,
                )
            finally:
                os.close(writing)
            try:
                yield worker
            except BaseException:
                self._table.kill_group(worker, grace=0)
                raise
            worker.stdin.close()
            message = errors.read(_ERROR_LIMIT)
        _check(self._table.wait(worker), message)


class ChangedPaths(object):
    """Finds the paths of a tree that have changed since ``begin``, without reading unchanged files."""

    def __init__(self, root):
        self._root = root
        self._lock = threading.Lock()
        self._before = None
        self._began = 0
        self._described = {}
        self._hashes = {}

    def begin(self, limit):
        """Record the current state of the tree and return the number of its paths."""
        with self._lock:
            self._before, self._described, self._hashes = None, {}, {}
            self._began = tree_worker.now_ns()
            self._before = {path: _identity(status) for path, status in tree_worker.walk(self._root, limit)}
            return len(self._before)

    def lines(self, limit):
        """Returns the lines of the manifest for all paths that may have changed since ``begin``.

        A removed path has null as its entry. Raises OSError (ENODATA) if ``begin`` failed, or if more than
        ``_MOST_LINES`` paths or more than ``_FEW_BYTES`` of content have changed.
        """
        with self._lock:
            new = tree_worker.small_sha256()
            if self._before is None or new is None:
                raise OSError(errno.ENODATA, "the changes are not known")
            hashing, fresh, paths, lines = tree_worker.Hashing(new, left=_FEW_BYTES), {}, set(), []
            for path, status in tree_worker.walk(self._root, limit):
                paths.add(path)
                # A file that changed shortly before ``begin`` may have changed again within the same tick of the file
                # system's clock.
                settled = status.st_ctime_ns + tree_worker.SETTLED_NS < self._began
                if settled and self._before.get(path) == _identity(status):
                    continue
                lines.append(tree_worker.describe(self._root, path, status, self._hashes, fresh, hashing))
                if len(lines) > _MOST_LINES:
                    raise tree_worker.LimitExceeded
            self._hashes = fresh
            lines += [(tree_worker.key_of(path), None) for path in self._before if path not in paths]
            if len(lines) > _MOST_LINES:
                raise tree_worker.LimitExceeded
            return [json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n" for line in lines]

    def digest(self, limit):
        """Compute one digest of all changed paths.

        The digest covers the type, the executable bit and the content of each path. For a file above 1 MiB, the size
        replaces the content; for a symbolic link, the target.

        Returns:
            The SHA-256 and the number of all paths. The SHA-256 is empty if more than 16 MiB have changed since the
            last call, or if ``begin`` failed.
        """
        import hashlib  # imported here, because it takes 2 ms and a verifier does not need it

        with self._lock:
            if self._before is None:
                return "", limit
            described, paths, left = {}, set(), _MOST_HASHED
            for path, status in tree_worker.walk(self._root, limit):
                paths.add(path)
                identity = _identity(status)
                if self._before.get(path) == identity:
                    continue
                known = self._described.get(path)
                # A file may change twice within one tick of the file system's clock.
                if known is None or known[0] != identity or status.st_ctime_ns + tree_worker.SETTLED_NS >= known[1]:
                    left -= min(status.st_size, _LARGEST_HASHED)
                    if left < 0:
                        return "", len(paths)
                    known = (identity, tree_worker.now_ns(), _description(os.path.join(self._root, path), status))
                described[path] = known
            self._described = described
            lines = [os.fsencode(path) + b"\0" + known[2] for path, known in described.items()]
            lines += [os.fsencode(path) + b"\0" for path in self._before if path not in paths]
            return hashlib.sha256(b"\0\0".join(sorted(lines))).hexdigest(), len(paths)


def _identity(status):
    return hash((status.st_mode,) + tuple(tree_worker.identity_of(status)))


def _description(path, status):
    """Returns type, executable bit and content (or its digest) of one path."""
    if stat.S_ISLNK(status.st_mode):
        try:
            return b"link " + os.fsencode(os.readlink(path))
        except OSError:
            return b"other"  # a running program has removed the link
    if not stat.S_ISREG(status.st_mode):
        return b"other"
    kind = "program" if status.st_mode & stat.S_IXUSR else "file"
    large = status.st_size > _LARGEST_HASHED
    content = "%d bytes" % status.st_size if large else tree_worker.Hashing().digest(path)
    return ("%s %s" % (kind, content)).encode("ascii")


def _unpack_in_process(path, data):
    try:
        tree_worker.unpack(path, io.BytesIO(data))
    except tree_worker.Unsafe as problem:
        raise TreeError(str(problem))
    except OSError as problem:
        raise OSError(*tree_worker.error_of(problem))


def _check(status, message):
    """Raise the error of a worker with this exit status and message; does nothing for status 0."""
    if status == 0:
        return
    text = message.decode("utf-8", "replace").strip() or "exit status %s" % status
    number, _, reason = text.partition(" ")
    if status == 3 and number.isdigit():
        raise OSError(int(number), reason)
    raise TreeError(text.splitlines()[-1] if "Traceback" in text else text)
