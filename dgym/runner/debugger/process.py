"""One run of the debugged program: its start, its output, its messages and its end.

The program is started as one process, or as the first Python program of a shell command. A start object has the
process's ``argv``, ``environment`` and ``pass_fds``, and the runner's ends of the connection: ``channel`` (None until a
program has connected to ``listener``) and ``traces``.

The program has ended when it is reaped. The end of a stream is not sufficient, because a child of the program may keep
the stream open.
"""

import fcntl
import os
import select
import shlex
import signal
import socket
import struct
import time

from ..descriptors import HeadAndTail
from ..execution import shell_argv
from ..files import remove
from ..launch import refusal
from ..processes import start_thread
from ..shims import TRACES, at_socket, driven, hook_session, passed_programs
from .takeover import ShellLaunch
from .wire import Decoder, checked, encode

INTERRUPT = signal.SIGRTMAX - 2
TRACEBACK = signal.SIGRTMAX - 3
_PIPE_SIZE = 1024 * 1024
_READ = 65536
_F_SETPIPE_SZ = 1031
_INTRODUCTION_SECONDS = 10
_SHOWN_CHARACTERS = 500


class Program(object):
    """The debugged program. The constructor starts it.

    Args:
        start: A ``DirectStart`` or a ``ShellStart``.
        limit: Size of the captured output in bytes.
        stdin: A descriptor, which the constructor closes, or None for an empty standard input.

    Attributes:
        ending: The program's last message, or None.
        started_command: Command line of the program that a shell command started, or None.
        hit_by_children: Numbers of the breakpoints that forked children reached.
        written: Captured output of the program.
    """

    def __init__(self, processes, start, workspace, limit, stdin=None):
        self._processes = processes
        self._start = start
        self._settings = None
        self._output, output = os.pipe()
        self._wake, self._woken_by = os.pipe()
        self._channel_open = start.channel is not None
        self._pid = None
        self._decoder = Decoder()
        self.ending = None
        self.started_command = None
        self.hit_by_children = set()
        self.written = HeadAndTail(limit)
        _enlarge(output)
        try:
            self.popen = processes.spawn(
                start.argv,
                env=start.environment,
                cwd=workspace,
                pass_fds=start.pass_fds,
                stdin=stdin,
                stdout=output,
                stderr=output,
            )
        except OSError:
            self._close()
            os.close(self._woken_by)
            raise
        finally:
            start.started()
            os.close(output)
            if stdin is not None:
                os.close(stdin)
        if self._channel_open:
            self._pid = self.popen.pid
        for descriptor in (self._output, start.traces):
            os.set_blocking(descriptor, False)
        start_thread(self._await_end, "debugged")

    def _await_end(self):
        self._processes.wait(self.popen, None)
        os.close(self._woken_by)

    @property
    def status(self):
        """The exit status (negative for a signal), or None while the program runs."""
        return self._processes.wait(self.popen, 0)

    def begin(self, settings, deadline):
        """Send the settings as soon as the program is connected, and wait like ``exchange``."""
        self._settings = settings
        return self.exchange(self._settings, deadline) if self._channel_open else self.wait(deadline)

    def unreached(self):
        """Returns the reason why a shell command started no program to debug, or None if it started one."""
        if self._pid is not None:
            return None
        status = self.status
        return self._start.unreached("it ran too long" if status is None else "it ended with %s" % describe(status))

    def exchange(self, message, deadline):
        """Send a message and wait until the program stops or ends.

        Returns:
            The program's message, or None if the program has ended.

        Raises:
            TimeoutError: The deadline, in seconds of ``time.monotonic``, has passed.
        """
        try:
            self._start.channel.settimeout(max(deadline - time.monotonic(), 0.1))
            self._start.channel.sendall(encode(message))
        except socket.timeout:
            raise TimeoutError
        except OSError:
            self._channel_open = False
        return self.wait(deadline)

    def wait(self, deadline):
        """Wait until the program stops or ends, like ``exchange``."""
        poll = select.poll()
        for descriptor in (self._output, self._wake, self._expected()):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(left, 0) * 1000)}
            if self._output in ready and not self._read_output():
                poll.unregister(self._output)
            expected = self._expected()
            if expected in ready:
                message = self._read_channel() if self._channel_open else self._connect()
                if message is not None:
                    self._drain()
                    return message
                if self._expected() != expected:
                    poll.unregister(expected)
                    if self._channel_open:
                        poll.register(self._expected(), select.POLLIN)
            if self._wake in ready:
                self._finish()
                return None
            if left <= 0:
                raise TimeoutError

    def _expected(self):
        """Returns the descriptor of the channel, or of the listener before the connection, or None after its end."""
        if self._channel_open:
            return self._start.channel.fileno()
        return self._start.listener.fileno() if self._pid is None else None

    def _connect(self):
        """Accept the connection of the first program of a shell command, if it has connected."""
        try:
            self._pid = self._start.accept()
            self._channel_open = True
        except OSError:
            pass

    def _read_output(self):
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return True
        self.written.write(data)
        return bool(data)

    def _drain(self):
        """Read the output that the program wrote before its message."""
        left = 4 * _PIPE_SIZE  # the program's threads may write continuously
        while left > 0:
            try:
                data = os.read(self._output, _READ)
            except BlockingIOError:
                return
            if not data:
                return
            self.written.write(data)
            left -= len(data)

    def _read_channel(self):
        """Read from the channel. Returns the program's next message, or None if it is not complete."""
        try:
            data = self._start.channel.recv(_READ)
        except OSError:
            data = b""
        if not data:
            self._channel_open = False
            return None
        self._decoder.feed(data)
        return self._next_message()

    def _next_message(self):
        """Returns the next message that ends the wait, or None. Other messages are recorded."""
        while True:
            try:
                message = self._decoder.next()
                message = None if message is None else checked(message)
            except (ValueError, RecursionError):
                # Code of the program has written to the channel. The program continues without a debugger.
                self._channel_open = False
                return None
            kind = None if message is None else message["type"]
            if kind == "end":
                self.ending = message
            elif kind == "hello":
                self._send_settings(message)
            elif kind == "child":
                self.hit_by_children.add(message["number"])
            else:
                return message

    def _send_settings(self, hello):
        """Send the settings to the program of a shell command, with the launch that the program reported."""
        launch = dict(hello, type="settings")
        self.started_command = launch["title"] = shown(hello["orig_argv"])
        try:
            self._start.channel.settimeout(_INTRODUCTION_SECONDS)
            self._start.channel.sendall(encode(dict(self._settings, **launch)))
        except OSError:
            self._channel_open = False

    def _finish(self):
        # The other end may still be open in a child, so reading must not block.
        if self._channel_open:
            self._start.channel.setblocking(False)
        while self._channel_open and self._read_channel() is not None:
            pass
        self._drain()

    def interrupt(self):
        """Send the signal that interrupts the program, or the command that it evaluates."""
        self._signal(INTERRUPT)

    def traceback(self):
        """Returns the traceback of every thread, without the runner's frames. This also works inside C code."""
        self._signal(TRACEBACK)
        text = b""
        deadline = time.monotonic() + 1
        # faulthandler writes the traceback in pieces and without an end mark.
        while time.monotonic() < deadline and select.select([self._start.traces], [], [], 0.3)[0]:
            data = os.read(self._start.traces, _READ)
            if not data:
                break
            text += data
        lines = text.decode("utf-8", "replace").splitlines()
        runner = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return "\n".join(line for line in lines if '"%s' % runner not in line)

    def _signal(self, number):
        if self.status is None and self._channel_open:
            try:
                os.kill(self._pid, number)
            except OSError:
                pass

    def kill(self):
        """Kill the program and all processes that it started, and keep its last output."""
        if self.status is None:
            self._processes.kill_group(self.popen, 0)
        else:
            self._processes.end_group(self.popen)
        self._drain()
        self._close()

    def _close(self):
        self._start.close()
        for descriptor in (self._output, self._wake):
            os.close(descriptor)


def _enlarge(pipe):
    # A program that writes much waits less often with a larger pipe. Not every system permits this.
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        pass


def describe(status):
    """Returns an exit status as text."""
    return "signal %d" % -status if status < 0 else "exit status %d" % status


def shown(words):
    """Returns a command line for a message, with the interpreter's name instead of its path."""
    words = [word.encode("utf-8", "backslashreplace").decode("utf-8") for word in words]
    return " ".join(shlex.quote(word) for word in [os.path.basename(words[0])] + words[1:])[:_SHOWN_CHARACTERS]


_PEER = struct.Struct("3i")


def make_start(launch, config):
    """Returns the start object for the result of ``takeover.choose``."""
    return ShellStart(launch, config) if isinstance(launch, ShellLaunch) else DirectStart(launch, config)


class DirectStart(object):
    """Start of a single program, which inherits the connection."""

    listener = None

    def __init__(self, launch, config):
        self.channel, self._theirs = socket.socketpair()
        self.traces, self._their_traces = os.pipe()
        self.pass_fds = (self._theirs.fileno(), self._their_traces)
        self.argv, self.environment = driven(launch, self.pass_fds, dict(config.environment, **launch.env))

    def started(self):
        """Close the descriptors that the process has inherited."""
        self._theirs.close()
        os.close(self._their_traces)

    def close(self):
        """Close the runner's ends."""
        self.channel.close()
        os.close(self.traces)


class ShellStart(object):
    """Start of a shell. The debugged program connects to a socket in the session's private directory."""

    pass_fds = ()

    def __init__(self, launch, config):
        self._line = launch.line
        self._directory = os.path.realpath(os.path.join(config.scratch, "debug-%s" % os.urandom(6).hex()))
        self.channel = None
        self.listener = socket.socket(socket.AF_UNIX)
        os.mkdir(self._directory, 0o700)
        at_socket(self._directory, self.listener.bind)
        self.listener.listen(1)
        self.listener.setblocking(False)
        traces = os.path.join(self._directory, TRACES)
        os.mkfifo(traces, 0o600)
        self.traces = os.open(traces, os.O_RDONLY | os.O_NONBLOCK)
        self.environment = hook_session(self._directory, config.environment)
        self.argv = shell_argv(launch.line, config.environment)

    def accept(self):
        """Accept the program's connection and return its process id. Raises OSError."""
        channel, _ = self.listener.accept()
        pid = _PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        if pid <= 0:
            # The process is in another PID namespace. A signal to process id 0 would reach the runner itself.
            channel.close()
            raise OSError("the program's process is not visible")
        self.channel = channel
        return pid

    def unreached(self, how):
        """Returns the reason why no program was debugged. ``how`` is a sentence about the end of the shell command."""
        why = "%s before the debugger could take over a Python program" % how
        passed = passed_programs(self._directory)
        if passed:
            why += " (started without it: %s)" % "; ".join(passed)
        return str(refusal(self._line, why))

    def started(self):
        """Does nothing, because the shell inherits no descriptor of the connection."""

    def close(self):
        """Close the runner's ends and remove the private directory."""
        for end in (self.channel, self.listener):
            if end is not None:
                end.close()
        os.close(self.traces)
        remove(self._directory)
