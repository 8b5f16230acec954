"""Start the runner: ``PYTHON -I -S <this directory>/__main__.py --fd N | --socket PATH | --stdio``.

``-I -S`` keep the workspace and site-packages off ``sys.path``: the runner must not import a ``traceback.py`` of the
agent's repository. For the same reason this directory is made a package by hand instead of being put there.
"""

import os
import signal
import sys

_PACKAGE = "dgym_runner"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
_M_ARENA_MAX = -8


def _open(mode, value, wake):
    """Returns the descriptor to read requests from and the descriptor to write answers to."""
    if mode == "--fd":
        descriptor = int(value)
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, True)
        return descriptor, descriptor
    if mode == "--stdio":
        return _take_standard_streams()
    return (_accept(value, wake),) * 2


def _take_standard_streams():
    # The connection gets other descriptors. Text that is printed by mistake must not get between the frames.
    reading, writing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    return reading, writing


def _accept(path, wake):
    import socket

    from dgym_runner.connection import readiness

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The socket gets its final name after listen(): a client may connect as soon as the path exists.
    listener.bind(path + ".new")
    os.chmod(path + ".new", 0o660)
    listener.listen(1)
    os.rename(path + ".new", path)
    readiness(listener, wake).poll()
    client = listener.accept()[0]
    listener.close()
    os.unlink(path)
    client.setblocking(True)
    return client.detach()


class _Terminated(Exception):
    """The runner received a signal that terminates it."""


def _end_on_signals():
    """Raise ``_Terminated`` in the main thread on a signal. Returns a descriptor that a signal makes readable."""

    def terminate(_number, _frame):
        for each in _SIGNALS:
            signal.signal(each, _ignore)
        raise _Terminated

    # The kernel delivers to PID 1 only the signals that have a handler. Child processes inherit SIG_IGN, but not a
    # handler.
    for number in _SIGNALS:
        signal.signal(number, terminate)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    return reading


def _ignore(_number, _frame):
    pass


def _call_c(name, *arguments):
    """Call a function of the C library, if this Python has ctypes and the library has the function."""
    try:
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)
    except (ImportError, OSError, AttributeError):
        pass


def main(arguments):
    """Serve one client and return the exit status of the process."""
    if not arguments or arguments[0] not in ("--fd", "--socket", "--stdio") or len(arguments) > 2:
        sys.stderr.write(__doc__)
        return 2
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [os.path.dirname(os.path.abspath(__file__))]
    from dgym_runner import connection, processes, server

    import threading

    threading.stack_size(512 * 1024)
    # All threads share one heap. A heap for each thread reduces contention, but needs much more memory.
    _call_c("mallopt", _M_ARENA_MAX, 1)
    os.umask(0o022)
    wake = _end_on_signals()
    status = 0
    running = None
    # Programs of the same user can then neither trace this process nor open its memory and descriptors below /proc.
    # Child processes inherit the setting until they execute a program.
    _call_c("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        client = connection.Connection(*_open(arguments[0], arguments[-1], wake), wake=wake)
        # The kernel then makes this process, and not init, the parent of orphaned descendants, so that they are killed.
        _call_c("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        running = server.Server(client, processes.ProcessTable())
        running.serve()
    except (_Terminated, ConnectionError):
        pass
    except Exception as error:
        # Any error is caught, because the descendants must be killed below.
        sys.stderr.write("dgym runner: %s: %s\n" % (type(error).__name__, error))
        status = 70
    if running is not None and not running.end():
        status = 71
    return status


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    # A normal exit would join the worker threads, which may still wait for a client that has disconnected.
    os._exit(ended)
