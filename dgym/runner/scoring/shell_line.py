"""Have the pytest of a shell line report, and notice when changed code ends a program of the line before its end.

``hook/sitecustomize.py`` calls this in every Python that the line starts, before anything of the workspace can be
found. The status of a shell line is the shell's, so a program that leaves by ``os._exit(0)`` looks like one that found
no fault.
"""

import json
import os
import sys

_ORDERS = "DGYM_REPORT_ORDERS_FD"
_REPORT = "DGYM_REPORT_FD"
_PLUGIN = "dgym_shell_plugin"


def enter_interpreter(load):
    """As an interpreter starts; ``load(name)`` imports a module of the runner, at any later time too."""
    _add_plugin(load)
    orders = _orders()
    if orders is not None:
        _watch(orders, load)


# The end of the program


def _orders():
    """The orders of the shell line; None in a program that does not belong to it, or if no code has changed."""
    try:
        descriptor = int(os.environ[_ORDERS])
        report = int(os.environ[_REPORT])
        orders = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode())
        os.fstat(report)
    except (KeyError, OSError, ValueError):
        return None
    return orders if orders.get("changed") else None


def _watch(orders, load):
    """Replace the functions that end this program by ones that report it when changed code calls them."""
    owner = os.getpid()
    report = load("descriptors").duplicate_high(int(os.environ[_REPORT]))
    write = load("scoring.wrapper").open_writer(report, orders["token"])
    changed = frozenset(os.path.realpath(os.path.join(orders["workspace"], path)) for path in orders["changed"])
    posix = sys.modules[os.name]

    def replace(name):
        original = getattr(posix, name)

        def leave(*arguments, **options):
            caller = _untrusted_caller(changed)
            if os.getpid() == owner and caller is not None:
                write("tampering", why="changed code ended a program early (os.%s in %s)" % (name, caller))
            return original(*arguments, **options)

        for module in (os, posix):
            setattr(module, name, leave)

    for name in ("_exit", "execv", "execve"):
        replace(name)


def _untrusted_caller(changed):
    """The changed file that calls, or "an exit handler" when no code does; None for any other file."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_globals is globals() or frame.f_globals is vars(os)):
        frame = frame.f_back
    if frame is None:
        return "an exit handler"
    path = os.path.realpath(frame.f_code.co_filename)
    return os.path.basename(path) if path in changed else None


# The report of pytest


def _add_plugin(load):
    """Have a pytest of this interpreter load a plugin that reports."""
    # The docstring asks pytest not to touch a module that is imported before pytest is.
    plugin = type(sys)(_PLUGIN, "PYTEST_DONT_REWRITE")
    plugin.__file__ = __file__

    def pytest_load_initial_conftests(early_config):
        _report(early_config.pluginmanager, load)

    plugin.pytest_load_initial_conftests = pytest_load_initial_conftests
    sys.modules[_PLUGIN] = plugin
    words = os.environ.get("PYTEST_ADDOPTS", "")
    if _ORDERS in os.environ and _PLUGIN not in words:
        os.environ["PYTEST_ADDOPTS"] = (words + " -p " + _PLUGIN).strip()


def _report(manager, load):
    """Register the reporter in this pytest.

    Its variables leave the environment, since a pytest that a test starts must not report.
    """
    descriptors = os.environ.pop(_ORDERS, None), os.environ.pop(_REPORT, None)
    words = os.environ.pop("PYTEST_ADDOPTS", "").replace("-p " + _PLUGIN, "").strip()
    if words:
        os.environ["PYTEST_ADDOPTS"] = words
    if None in descriptors:
        return
    wrapper = load("scoring.wrapper")
    try:
        orders = wrapper.read_orders(int(descriptors[0]))
        os.close(int(descriptors[0]))
        report = load("descriptors").move_high(int(descriptors[1]))
    except OSError:
        return
    reporter = load("scoring.report").make_reporter(orders, wrapper.open_writer(report, orders.pop("token")))
    reporter.watch()
    manager.register(reporter, "dgym-" + os.urandom(6).hex())
