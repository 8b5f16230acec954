"""Runs in a Python program that is debugged or scored, before the program's own code.

Python imports ``sitecustomize`` when an interpreter starts. A debugged program and a scored shell command have this
directory on ``PYTHONPATH``. The session of a debugged shell command contains a link to this file.
"""

import os
import sys

_RUNNER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "dgym_runner"
_PLUGIN = "dgym_shell_plugin"


def _load(name):
    """Import a module of the runner without adding its directory to ``sys.path``."""
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
        sys.modules[_PACKAGE].__path__ = [_RUNNER]
    __import__(_PACKAGE + "." + name)
    return sys.modules[_PACKAGE + "." + name]


def _act():
    loaded = frozenset(sys.modules)
    path = list(sys.path)
    shims = _load("shims")
    # The runner must not import a module of the program that has the name of a module of the standard library.
    sys.path[:] = shims.library_entries(path)
    if shims.START_VARIABLE in os.environ:
        _enter_debugger(shims, loaded, path)
        return
    session = os.path.dirname(_HERE)
    if shims.is_session(session):
        try:
            shims.enter_interpreter(session)
        except OSError:
            pass  # the session has ended
    else:
        _load("scoring.shell_line").enter_interpreter(_load)
    for name in set(sys.modules) - loaded - {_PLUGIN}:
        if name.partition(".")[0] == _PACKAGE or getattr(sys.modules[name], "__file__", None):
            del sys.modules[name]
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != _HERE]
    shims.run_next(_HERE)


def _enter_debugger(shims, loaded, path):
    try:
        begin, call_from = shims.enter_debugger(loaded, path, _HERE)
    except BaseException:
        # After an exception in sitecustomize, the interpreter would run the program without the debugger.
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    caller = sys._getframe()
    while caller is not None and caller.f_code.co_name != "_load_unlocked":  # the frame that imports this module
        caller = caller.f_back
    try:
        shims.run_next(_HERE, lambda *call: call_from(caller, *call))
    finally:
        begin()


# The debugger and the reporter do not support older interpreters.
if sys.version_info >= (3, 6):
    _act()
