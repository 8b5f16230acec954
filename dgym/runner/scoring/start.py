"""Runs the program in this process, under the entrypoint's own interpreter, and reports its exit status.

pytest runs with the reporting plugin, as ``python -m pytest`` or ``pytest`` would. A script or a module runs as
``__main__``. Code may call ``os._exit(0)`` or ``sys.exit(0)`` on import, so an exit status of 0 does not prove success.
The status does not count if a file that the agent changed, other than the program itself, ended the program.
"""

import importlib
import os
import sys
from sys import getprofile, gettrace, setprofile, settrace

from dgym_runner import main_program
from dgym_runner.frames import call_from


def run(settings, write, loaded):
    """Run the program of ``settings`` and exit. ``loaded`` has the names of the modules that the interpreter loads."""
    if settings["launch"]["is_pytest"]:
        _run_pytest(settings, write)
    else:
        _run_program(settings, write, loaded)


# pytest


def _run_pytest(settings, write):
    launch = settings["launch"]
    pytest = _import_pytest(launch)
    from .report import make_reporter

    sys.argv = [pytest.__file__ if launch["kind"] == "module" else launch["target"]] + _pytest_arguments(settings)
    status = int(_call_alone(pytest.main, sys.argv[1:], [make_reporter(settings, write)]))
    _flush_streams()
    write("status", status=status & 0xFF)
    sys.exit(status)


def _pytest_arguments(settings):
    extra = ["--setup-only", "--continue-on-collection-errors"] if settings["setup_only"] else []
    return list(settings["launch"]["argv"]) + extra


def _import_pytest(launch):
    """Import the installed pytest, and add the workspace to ``sys.path`` afterwards."""
    first = main_program.first_entry(launch["kind"], launch["target"])
    try:
        import pytest
    except ImportError:
        sys.path.insert(0, first or os.getcwd())
        import pytest
    else:
        _import_early()
        if first is not None:
            sys.path.insert(0, first)
    return pytest


def _import_early():
    """Import the modules of the standard library that pytest's plugins need.

    A module of the workspace with the same name would run before it is observed.
    """
    for name in ("difflib", "unittest", "xml.etree.ElementTree"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def _flush_streams():
    for stream in (sys.stderr, sys.stdout):
        try:
            _call_alone(stream.flush)
        except Exception:  # noqa: S112 - closed or replaced by the program
            continue


# Scripts and modules


def _run_program(settings, write, loaded):
    launch = settings["launch"]
    kind, target = launch["kind"], launch["target"]
    changed = [os.path.realpath(os.path.join(settings["workspace"], path)) for path in settings["changed"] or ()]
    sys.argv = ["-m" if kind == "module" else target] + list(launch["argv"])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = launch["orig_argv"]
    ending = abnormal = failure = tracing = function = None
    try:
        first = main_program.first_entry(kind, target)
        if first is not None:
            sys.path.insert(0, first)
        main_program.forget_modules(loaded)
        function, arguments = main_program.prepare(kind, target)
        try:
            _call_alone(function, *arguments)
        finally:
            # The program's trace function must not trace the code of the runner below.
            tracing = gettrace()
            settrace(None)
            setprofile(None)
    except SystemExit as error:
        ending = error.code
        abnormal = _abnormal_end(error.__traceback__, target, changed)
    except BaseException as error:
        failure = error
        ending = 1
    if function is exec:
        _flush_streams()  # as the interpreter does at the end of a script, before it prints an exception
    if failure is not None:
        _show_traceback(failure)
        tracing = gettrace() or tracing
        settrace(None)
    write("status", status=_exit_status(ending), **({} if abnormal is None else {"abnormal": abnormal}))
    settrace(tracing)
    sys.exit(ending)


def _call_alone(function, *arguments):
    """Returns the function's result. The runner's frames are removed from its stack if possible."""
    if gettrace() is None and getprofile() is None:
        return call_from(None, function, *arguments)
    return function(*arguments)


def _exit_status(code):
    """Returns the exit status of the interpreter after ``SystemExit(code)``; 1 for a message."""
    if code is None:
        return 0
    return int(code) & 0xFF if isinstance(code, int) else 1


def _abnormal_end(traceback, target, changed):
    """Returns a sentence if a changed file other than the program itself ended the program, else None."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    path = os.path.realpath(traceback.tb_frame.f_code.co_filename) if traceback is not None else ""
    if path in changed and path != os.path.realpath(target):
        return "changed code ended the program (sys.exit in %s)" % os.path.basename(path)
    return None


def _show_traceback(error):
    """Print an exception like the interpreter, without the frames of the runner."""
    traceback = error.__traceback__
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    while traceback is not None and os.path.realpath(traceback.tb_frame.f_code.co_filename).startswith(ours):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error  # novm
    _call_alone(sys.excepthook, type(error), error, traceback)
