"""Start the first Python program of a shell command under the debugger.

A session's private directory has a link to this file on ``PYTHONPATH``, so that every Python that the command starts
imports it before anything else.
"""

import os
import sys

_RUNNER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_HERE = os.path.dirname(os.path.abspath(__file__))
_SESSION = os.path.dirname(_HERE)
_PACKAGE = "dgym_runner"


def _load(name):
    """Import a file of the runner without putting its directory on ``sys.path``."""
    import importlib

    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
        sys.modules[_PACKAGE].__path__ = [_RUNNER]
    return importlib.import_module(_PACKAGE + "." + name)


def _leave_no_trace():
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


def _command():
    """The words that started this interpreter."""
    with open("/proc/self/cmdline", "rb") as stream:
        return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]


def _take_over():
    """Become the debugged program, or take the session out of the environment of a program that is not debugged."""
    directory = _load("debugger.directory")
    unclaimed = directory.is_unclaimed(_SESSION)
    environment = _consider(directory) if unclaimed else directory.cleaned(os.environ, _SESSION)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _consider(directory):
    """The environment of a program that is not debugged; does not return from the one that is."""
    path = list(sys.path)
    sys.path[:] = _load("shims").library_entries(path)
    try:
        launch, takeover = _load("launch"), _load("debugger.takeover")
    finally:
        sys.path[:] = path
    words = _command()
    try:
        found = launch.parse_interpreter(" ".join(words), sys.executable, words[1:])
    except launch.LaunchRefused:
        directory.record_passed(_SESSION, words)
        return os.environ
    return takeover.take_over(_SESSION, found, os.environ)


# Older interpreters, which the debugger does not support, run as they are.
if sys.version_info >= (3, 6):
    try:
        _take_over()
    except OSError:
        pass  # the session has ended
    _run_next = _load("shims").run_next
    _leave_no_trace()
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    _run_next(_HERE)
