"""Whole trees: manifest, tar in, tar out. The work is done by short-lived children; this side passes the bytes on."""

import os
import subprocess
import sys
import threading


_HERE = os.path.dirname(os.path.abspath(__file__))
_ERROR_LIMIT = 4096


class TreeError(Exception):
    """A child could not do its work; the message is the child's."""


class Trees(object):
    """Operations on the workspace's tree."""

    def __init__(self, table, configuration):
        self._table = table
        self._configuration = configuration
        self._hashing = threading.Lock()

    def manifest(self, exclude):
        """The manifest as the JSON text the child printed."""
        cache = os.path.join(self._configuration.scratch, "state", "manifest.json")
        with self._hashing:
            child = self._start("child_manifest.py", [self._configuration.workspace, cache] + list(exclude))
            with child.stdout:
                text = child.stdout.read()
            self._finish(child)
        return text

    def unpack(self, path, chunks):
        """Extract the tar that arrives in chunks below ``path``."""
        os.makedirs(path, exist_ok=True)
        child = self._start("child_archive.py", ["unpack", path])
        child.stdout.close()
        try:
            with child.stdin:
                for chunk in chunks:
                    child.stdin.write(chunk)
        except BrokenPipeError:
            pass  # the child gave up; _finish says why
        except BaseException:
            self._table.kill_group(child, grace=0)
            raise
        self._finish(child)

    def pack(self, paths, send):
        """Hand the tar of the named workspace paths to ``send`` in chunks."""
        child = self._start("child_archive.py", ["pack", self._configuration.workspace])
        try:
            with child.stdin:
                child.stdin.write(b"\0".join(os.fsencode(path) for path in paths))
            with child.stdout:
                for block in iter(lambda: child.stdout.read(64 * 1024), b""):
                    send(block)
        except BaseException:
            self._table.kill_group(child, grace=0)
            raise
        self._finish(child)

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
            raise TreeError(text.splitlines()[-1] if "Traceback" in text else text)
