"""Two ways to start the debugged program: as one process, or as the first Python program of a shell command.

A start has the process's ``argv``, ``environment`` and ``pass_fds``, and the runner's ends of the connection:
``channel`` (None until a program has connected to ``listener``) and ``traces``.
"""

import os
import socket
import struct

from .. import shims
from ..configuration import RUNNER_DIRECTORY
from ..execution import shell_argv
from ..files import remove
from ..launch import refusal
from .directory import HOOK, PROGRAMS, SOCKET, TRACES, at_directory, passed_programs
from .takeover import DRIVER, ShellLaunch
from .wire import FDS_VARIABLE

_PEER = struct.Struct("3i")


def make_start(launch, config):
    """The start of what ``choice.choose`` returned."""
    return ShellStart(launch, config) if isinstance(launch, ShellLaunch) else DirectStart(launch, config)


class DirectStart(object):
    """The program is the started process, which inherits the connection."""

    listener = None

    def __init__(self, launch, config):
        self.channel, self._theirs = socket.socketpair()
        self.traces, self._their_traces = os.pipe()
        self.argv = [launch.python] + launch.flags + [DRIVER]
        self.pass_fds = (self._theirs.fileno(), self._their_traces)
        self.environment = dict(config.environment, **launch.env)
        self.environment[FDS_VARIABLE] = "%d,%d" % self.pass_fds

    def started(self):
        """Close what the process has inherited."""
        self._theirs.close()
        os.close(self._their_traces)

    def close(self):
        """Close the runner's ends."""
        self.channel.close()
        os.close(self.traces)


class ShellStart(object):
    """A shell is the started process; the debugged program connects by the session's private directory."""

    pass_fds = ()

    def __init__(self, launch, config):
        self._line = launch.line
        self._directory = os.path.realpath(os.path.join(config.scratch, "debug-%s" % os.urandom(6).hex()))
        self.channel = None
        self.listener = socket.socket(socket.AF_UNIX)
        os.mkdir(self._directory, 0o700)
        at_directory(self._directory, self.listener.bind, SOCKET)
        self.listener.listen(1)
        self.listener.setblocking(False)
        traces = os.path.join(self._directory, TRACES)
        os.mkfifo(traces, 0o600)
        self.traces = os.open(traces, os.O_RDONLY | os.O_NONBLOCK)
        self.environment = self._hooked(config)
        self.argv = shell_argv(launch.line, config.environment)

    def _hooked(self, config):
        environment = dict(config.environment)
        programs, hook = os.path.join(self._directory, PROGRAMS), os.path.join(self._directory, HOOK)
        shims.make(programs, self._directory, environment)
        os.mkdir(hook)
        name = "sitecustomize.py"
        os.symlink(os.path.join(RUNNER_DIRECTORY, "debugger", "hook", name), os.path.join(hook, name))
        for variable, first in (("PATH", programs), ("PYTHONPATH", hook)):
            environment[variable] = os.pathsep.join(filter(None, [first, environment.get(variable)]))
        return environment

    def accept(self):
        """Accept the program's connection; returns its process id."""
        channel, _ = self.listener.accept()
        pid = _PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        if pid <= 0:
            # A process of another PID namespace; a signal to 0 would reach the runner itself.
            channel.close()
            raise OSError("the program's process is not visible")
        self.channel = channel
        return pid

    def unreached(self, how):
        """Why no program was debugged; ``how`` says how the shell command ended."""
        why = "%s before the debugger could take over a Python program" % how
        passed = passed_programs(self._directory)
        if passed:
            why += " (started without it: %s)" % "; ".join(passed)
        return str(refusal(self._line, why))

    def started(self):
        """The process has inherited nothing."""

    def close(self):
        """Close the runner's ends and remove the directory."""
        for end in (self.channel, self.listener):
            if end is not None:
                end.close()
        os.close(self.traces)
        remove(self._directory)
