"""Runs the program in this process, under the entrypoint's own interpreter, and reports whether it went to its end.

pytest runs with the reporting plugin, as ``python -m pytest`` or ``pytest`` would. A script or a module runs as
``__main__``. Its exit status says little when code may call ``os._exit(0)`` or ``sys.exit(0)`` on import: the status
counts only when the program's own code or the library asked for it, not a file that the agent changed.
"""

import importlib
import os
import sys

from dgym_runner import main_program


def run(orders, write, loaded):
    """Run what ``orders`` name; ends the process. ``loaded`` are the modules that the interpreter began with."""
    if orders["launch"]["is_pytest"]:
        _run_pytest(orders, write)
    else:
        _run_program(orders, write, loaded)


# pytest


def make_reporter(orders, write):
    """The plugin for one pytest session."""
    from .report import Reporter

    if orders["changed"] is None:
        return Reporter(write)
    from .canary import make_canary

    name = "test_" + os.urandom(6).hex()
    return Reporter(
        write,
        changed=[os.path.join(orders["workspace"], path) for path in orders["changed"]],
        make_canary=lambda session, *callbacks: make_canary(session, name, *callbacks),
    )


def _run_pytest(orders, write):
    launch = orders["launch"]
    pytest = _import_pytest(launch)
    sys.argv = [pytest.__file__ if launch["kind"] == "module" else launch["target"]] + _pytest_arguments(orders)
    status = int(pytest.main(sys.argv[1:], plugins=[make_reporter(orders, write)]))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
    write("status", status=status & 0xFF)
    sys.exit(status)


def _pytest_arguments(orders):
    extra = []
    if orders["collect_only"]:
        extra.append("--collect-only")
    if orders["setup_only"]:
        extra += ["--setup-only", "--continue-on-collection-errors"]
    return list(orders["launch"]["argv"]) + extra + list(orders["select"])


def _import_pytest(launch):
    """Import pytest from where it is installed, and only then let the workspace be found."""
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
    """Import what pytest's own plugins need of the library: the workspace's code must not run before it is watched."""
    for name in ("difflib", "unittest", "xml.etree.ElementTree"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


# Scripts and modules


def _run_program(orders, write, loaded):
    launch = orders["launch"]
    changed = [os.path.realpath(os.path.join(orders["workspace"], path)) for path in orders["changed"] or ()]
    sys.argv = [launch["target"]] + list(launch["argv"])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = launch["orig_argv"]
    status, abnormal = 0, None
    try:
        first = main_program.first_entry(launch["kind"], launch["target"])
        if first is not None:
            sys.path.insert(0, first)
        main_program.forget_modules(loaded)
        code, namespace = main_program.load(launch["kind"], launch["target"])
        exec(code, namespace)
    except SystemExit as error:
        status = _exit_status(error.code)
        abnormal = _abnormal_end(error.__traceback__, launch["target"], changed)
    except BaseException:
        status = 1
        _show_traceback()
    write("status", status=status, **({} if abnormal is None else {"abnormal": abnormal}))
    sys.exit(status)


def _exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    sys.stderr.write("%s\n" % (code,))
    return 1


def _abnormal_end(traceback, target, changed):
    """A sentence when a changed file other than the program itself ended it; None when the end is normal."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    path = os.path.realpath(traceback.tb_frame.f_code.co_filename) if traceback is not None else ""
    if path in changed and path != os.path.realpath(target):
        return "changed code ended the program (sys.exit in %s)" % os.path.basename(path)
    return None


def _show_traceback():
    """What the interpreter would print, without the frames of the runner and of the import system."""
    kind, value, traceback = sys.exc_info()
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    while traceback is not None and (
        os.path.realpath(traceback.tb_frame.f_code.co_filename).startswith(ours)
        or traceback.tb_frame.f_globals.get("__name__") == "runpy"
    ):
        traceback = traceback.tb_next
    sys.excepthook(kind, value.with_traceback(traceback), traceback)
