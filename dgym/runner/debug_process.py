"""One run of the debugged program, seen from the runner: its start, its output, its answers and its end.

The program's end is what the reaper says, never the end of a stream: a child of the program may hold those.
"""

import os
import select
import signal
import socket
import threading
import time

from .debug_message import checked
from .debug_wire import FDS_VARIABLE, Decoder, HeadTail, encode

INTERRUPT = signal.SIGRTMAX - 2
TRACEBACK = signal.SIGRTMAX - 3
_PIPE_SIZE = 1024 * 1024
_READ = 65536
_F_SETPIPE_SZ = 1031
_DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "debug_driver.py")


class Program(object):
    """Started by the constructor; ``exchange`` sends a message and waits until the program stops, ends or is late."""

    def __init__(self, processes, launch, start, environment, workspace, limit):
        self._processes = processes
        self._socket, theirs = socket.socketpair()
        self._output, output = os.pipe()
        self._traces, traces = os.pipe()
        self._wake, self._woken_by = os.pipe()
        self._channel_open = True
        self._decoder = Decoder()
        self.ending = None
        self.written = HeadTail(limit)
        _enlarge(output)
        env = dict(environment)
        env.update(launch.env)
        env[FDS_VARIABLE] = "%d,%d" % (theirs.fileno(), traces)
        argv = [launch.python] + launch.flags + [_DRIVER]
        try:
            self.popen = processes.spawn(
                argv, env=env, cwd=workspace, pass_fds=(theirs.fileno(), traces), stdout=output, stderr=output
            )
        except OSError:
            self._close()
            os.close(self._woken_by)
            raise
        finally:
            theirs.close()
            os.close(output)
            os.close(traces)
        for descriptor in (self._output, self._traces):
            os.set_blocking(descriptor, False)
        self._start = start
        threading.Thread(target=self._await_end, name="debugged", daemon=True).start()

    def _await_end(self):
        self._processes.wait(self.popen, None)
        os.close(self._woken_by)

    @property
    def status(self):
        """The exit status (negative: a signal), None while it runs."""
        return self._processes.wait(self.popen, 0)

    def begin(self, deadline):
        """Tell the program what to run; like ``exchange``."""
        return self.exchange(self._start, deadline)

    def exchange(self, message, deadline):
        """Send, and wait: the program's message when it stops, None when it has ended, TimeoutError when late."""
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.1))
            self._socket.sendall(encode(message))
        except socket.timeout:
            raise TimeoutError
        except OSError:
            self._channel_open = False
        return self.wait(deadline)

    def wait(self, deadline):
        """Like ``exchange`` without sending."""
        poll = select.poll()
        for descriptor in (self._output, self._wake, self._socket.fileno()):
            poll.register(descriptor, select.POLLIN)
        if not self._channel_open:
            poll.unregister(self._socket.fileno())
        while True:
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(left, 0) * 1000)}
            if self._output in ready and not self._read_output():
                poll.unregister(self._output)
            if self._channel_open and self._socket.fileno() in ready:
                message = self._read_channel()
                if message is not None:
                    self._drain()
                    return message
                if not self._channel_open:
                    poll.unregister(self._socket.fileno())
            if self._wake in ready:
                self._finish()
                return None
            if left <= 0:
                raise TimeoutError

    def _read_output(self):
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return True
        self.written.add(data)
        return bool(data)

    def _drain(self, bound=4 * _PIPE_SIZE):
        """Take what the program had written when it answered; threads of it may go on writing for ever."""
        while bound > 0:
            try:
                data = os.read(self._output, _READ)
            except BlockingIOError:
                return
            if not data:
                return
            self.written.add(data)
            bound -= len(data)

    def _read_channel(self):
        """The program's next message to report, if there is one by now."""
        try:
            data = self._socket.recv(_READ)
        except OSError:
            data = b""
        if not data:
            self._channel_open = False
            return None
        self._decoder.feed(data)
        return self._next_message()

    def _next_message(self):
        try:
            message = self._decoder.next()
            message = None if message is None else checked(message)
        except ValueError:
            # The program speaks in the debugger's name: from here on it runs without one.
            self._channel_open = False
            return None
        if message is not None and message["type"] == "end":
            self.ending = message
            return self._next_message()
        return message

    def _finish(self):
        # What it sent before it ended, and only that: the other end may live on in a child.
        self._socket.setblocking(False)
        while self._channel_open and self._read_channel() is not None:
            pass
        self._drain()

    def interrupt(self):
        """Ask the program, or the command it evaluates, to stop where it is."""
        self._signal(INTERRUPT)

    def traceback(self):
        """Where every thread of a program is that cannot be stopped; works inside C code."""
        self._signal(TRACEBACK)
        text = b""
        deadline = time.monotonic() + 1
        # The traceback comes in pieces, without an end mark; the current thread's is the last.
        while time.monotonic() < deadline and select.select([self._traces], [], [], 0.3)[0]:
            data = os.read(self._traces, _READ)
            if not data:
                break
            text += data
        lines = text.decode("utf-8", "replace").splitlines()
        runner = os.path.dirname(_DRIVER)
        return "\n".join(line for line in lines if '"%s' % runner not in line)

    def _signal(self, number):
        if self.status is None:
            try:
                os.kill(self.popen.pid, number)
            except OSError:
                pass

    def kill(self):
        """End the program and all that it started; its last output is kept."""
        if self.status is None:
            self._processes.kill_group(self.popen, 0)
        else:
            self._processes.end_group(self.popen)
        self._drain()
        self._close()

    def _close(self):
        self._socket.close()
        for descriptor in (self._output, self._traces, self._wake):
            os.close(descriptor)


def _enlarge(pipe):
    # A larger pipe means fewer waits for a program that writes much; not every system lets us.
    import fcntl

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        pass


def interpreter_command(launch):
    """What ``sys.orig_argv`` would be without us."""
    target = ["-m", launch.target] if launch.kind == "module" else [launch.target]
    return [launch.python] + launch.flags + target + launch.argv
