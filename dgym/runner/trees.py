"""Whole trees: manifest, tar in, tar out. Short-lived children do the work; this side forwards the bytes."""

import os
import subprocess
import sys
import threading

from .connection import RequestError
from .manifest import SETTLED_NS, fingerprint, now_ns

_HERE = os.path.dirname(os.path.abspath(__file__))
_ERROR_LIMIT = 4096


class TreeError(RequestError):
    """A child could not do its work; the message is the child's."""

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

        While the tree is unchanged, which is most of the time, nothing is hashed and no child is started.
        """
        state = os.path.join(self._configuration.scratch, "state")
        target = os.path.join(state, "manifest.json")
        with self._hashing:
            begin = now_ns()
            value, newest = fingerprint(self._configuration.workspace, limit)
            if value != self._seen or newest + SETTLED_NS >= self._hashed_at:
                self._seen = None
                arguments = [self._configuration.workspace, os.path.join(state, "hashes.json"), target, str(limit)]
                child = self._start("manifest.py", arguments)
                child.stdout.close()
                self._finish(child)
                self._seen, self._hashed_at = value, begin
            return os.open(target, os.O_RDONLY)

    def unpack(self, path, chunks):
        """Extract the tar that arrives in chunks below ``path``."""
        os.makedirs(path, exist_ok=True)
        child = self._start("archive.py", ["unpack", path])
        child.stdout.close()
        try:
            self._feed(child, chunks)
        except BaseException:
            self._table.kill_group(child, grace=0)
            raise
        self._finish(child)

    def pack(self, names, send):
        """Hand the tar of workspace paths to ``send`` in chunks; ``names`` holds them in chunks, each with a NUL."""
        child = self._start("archive.py", ["pack", self._configuration.workspace])
        try:
            self._feed(child, names)
            with child.stdout:
                for block in iter(lambda: child.stdout.read(64 * 1024), b""):
                    send(block)
        except BaseException:
            self._table.kill_group(child, grace=0)
            raise
        self._finish(child)

    @staticmethod
    def _feed(child, chunks):
        try:
            with child.stdin:
                for chunk in chunks:
                    child.stdin.write(chunk)
        except BrokenPipeError:
            pass  # the child gave up; _finish says why

    def _start(self, program, arguments):
        argv = [sys.executable, "-I", "-S", "-B", os.path.join(_HERE, program)] + arguments
        reading, writing = os.pipe()
        try:
            child = self._table.spawn(
                argv,
                env={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=writing,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child.dgym_errors = reading
        return child

    def _finish(self, child):
        child.stdin.close()
        with open(child.dgym_errors, "rb", buffering=0) as stream:
            message = stream.read(_ERROR_LIMIT)
        status = self._table.wait(child)
        if status != 0:
            text = message.decode("utf-8", "replace").strip() or "exit status %s" % status
            number, _, reason = text.partition(" ")
            if status == 3 and number.isdigit():
                raise OSError(int(number), reason)
            raise TreeError(text.splitlines()[-1] if "Traceback" in text else text)
