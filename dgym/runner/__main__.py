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


def _open(mode, value):
    """Descriptors to read from and write to."""
    if mode == "--fd":
        descriptor = int(value)
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, True)
        return descriptor, descriptor
    if mode == "--stdio":
        return _take_standard_streams()
    return (_accept(value),) * 2


def _take_standard_streams():
    # Moved away, so that nothing printed by mistake can get between the frames.
    reading, writing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    return reading, writing


def _accept(path):
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Renamed into place once it listens: a client that sees the path may connect.
    listener.bind(path + ".new")
    os.chmod(path + ".new", 0o660)
    listener.listen(1)
    os.rename(path + ".new", path)
    client = listener.accept()[0]
    listener.close()
    os.unlink(path)
    client.setblocking(True)
    return client.detach()


class _Terminated(Exception):
    """A signal asked the runner to end."""


def _end_on_signals():
    def terminate(_number, _frame):
        for each in _SIGNALS:
            signal.signal(each, _ignore)
        raise _Terminated

    # As PID 1 a process is sent only the signals it has handlers for. A handler, unlike SIG_IGN, is not inherited.
    for number in _SIGNALS:
        signal.signal(number, terminate)


def _ignore(_number, _frame):
    pass


def _call_c(name, *arguments):
    """Call a function of the C library; not every Python has ctypes, not every system glibc."""
    try:
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)
    except (ImportError, OSError, AttributeError):
        pass


def main(arguments):
    """Serve one client; returns the exit status."""
    if not arguments or arguments[0] not in ("--fd", "--socket", "--stdio") or len(arguments) > 2:
        sys.stderr.write(__doc__)
        return 2
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [os.path.dirname(os.path.abspath(__file__))]
    from dgym_runner import connection, processes, server

    import threading

    threading.stack_size(512 * 1024)
    # One heap for all threads: one for each costs more memory than the contention it saves is worth.
    _call_c("mallopt", _M_ARENA_MAX, 1)
    os.umask(0o022)
    _end_on_signals()
    status = 0
    running = None
    # Programs of the same user may neither trace this process nor open its memory and descriptors below /proc. Children
    # inherit this until they execute a program.
    _call_c("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        client = connection.Connection(*_open(arguments[0], arguments[-1]))
        # Orphaned descendants are handed to this process, not to init, so that none escapes.
        _call_c("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        running = server.Server(client, processes.ProcessTable())
        running.serve()
    except (_Terminated, ConnectionError):
        pass
    except Exception as error:
        # The descendants must be killed after any error.
        sys.stderr.write("dgym runner: %s: %s\n" % (type(error).__name__, error))
        status = 70
    if running is not None and not running.end():
        status = 71
    return status


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    # Worker threads may still wait for a client that is gone: no joining them.
    os._exit(ended)
