"""Whole trees: manifest, tar in, tar out. Short-lived processes do the work; this side forwards the bytes."""

import contextlib
import os
import subprocess
import sys
import threading

from . import tree_worker
from .connection import RequestError

_ERROR_LIMIT = 4096


class TreeError(RequestError):
    """A worker has failed; the message is the worker's."""

    kind = "tree"


class Trees(object):
    """Operations on the workspace's tree."""

    def __init__(self, table, configuration):
        self._table = table
        self._configuration = configuration
        self._hashing = threading.Lock()
        self._seen = None
        self._hashed_at = 0

    def manifest(self, limit):
        """A descriptor of the manifest: a line of JSON for each path; ``OSError`` (E2BIG) above ``limit`` files.

        While the tree is unchanged, which is most of the time, nothing is hashed and no process is started.
        """
        state = os.path.join(self._configuration.scratch, "state")
        target = os.path.join(state, "manifest.json")
        with self._hashing:
            begin = tree_worker.now_ns()
            value, newest = tree_worker.fingerprint(self._configuration.workspace, limit)
            if value != self._seen or newest + tree_worker.SETTLED_NS >= self._hashed_at:
                self._seen = None
                cache = os.path.join(state, "hashes.json")
                with self._worker("manifest", self._configuration.workspace, cache, target, str(limit)) as worker:
                    worker.stdout.close()
                self._seen, self._hashed_at = value, begin
            return os.open(target, os.O_RDONLY)

    def unpack(self, path, chunks):
        """Extract the tar that arrives in chunks below ``path``."""
        os.makedirs(path, exist_ok=True)
        with self._worker("unpack", path) as worker:
            worker.stdout.close()
            self._feed(worker, chunks)

    def pack(self, names, send):
        """Hand the tar of workspace paths to ``send`` in chunks; ``names`` holds them in chunks, each with a NUL."""
        with self._worker("pack", self._configuration.workspace) as worker:
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
            pass  # the worker has failed; its message says why

    @contextlib.contextmanager
    def _worker(self, *command):
        """A process of ``tree_worker``; waits for its end, which is an error unless it reports success."""
        argv = [sys.executable, "-I", "-S", "-B", tree_worker.__file__] + list(command)
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


def _check(status, message):
    """Raise the error of a worker that has ended with this status and message; none with status 0."""
    if status == 0:
        return
    text = message.decode("utf-8", "replace").strip() or "exit status %s" % status
    number, _, reason = text.partition(" ")
    if status == 3 and number.isdigit():
        raise OSError(int(number), reason)
    raise TreeError(text.splitlines()[-1] if "Traceback" in text else text)
