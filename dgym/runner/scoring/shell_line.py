"""Adds the reporter to a pytest that a shell line starts, and reports if changed code ends a Python program early.

``hook/sitecustomize.py`` calls this module in every Python interpreter that the line starts, before code of the
workspace can be imported. The shell's exit status does not distinguish a program that calls ``os._exit(0)`` from a
program that succeeds.
"""

import json
import os
import sys

_SETTINGS = "DGYM_REPORT_SETTINGS_FD"
_REPORT = "DGYM_REPORT_FD"
_PLUGIN = "dgym_shell_plugin"


def enter_interpreter(load):
    """Called when an interpreter starts. ``load(name)`` imports a module of the runner and can also be called later."""
    _add_plugin(load)
    settings = _settings()
    if settings is not None:
        _watch(settings, load)


# The end of the program


def _settings():
    """Returns the settings of the shell line, or None if they are not available or if no file has changed."""
    try:
        descriptor = int(os.environ[_SETTINGS])
        report = int(os.environ[_REPORT])
        settings = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode())
        os.fstat(report)
    except (KeyError, OSError, ValueError):
        return None
    return settings if settings.get("changed") else None


def _watch(settings, load):
    """Replace the functions that end this program by wrappers that report calls from changed code."""
    owner = os.getpid()
    report = load("descriptors").duplicate_high(int(os.environ[_REPORT]))
    write = load("scoring.stages").open_writer(report, settings["token"])
    changed = frozenset(os.path.realpath(os.path.join(settings["workspace"], path)) for path in settings["changed"])
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
    """Returns the name of the changed file that contains the caller, "an exit handler" without a caller, else None."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_globals is globals() or frame.f_globals is vars(os)):
        frame = frame.f_back
    if frame is None:
        return "an exit handler"
    path = os.path.realpath(frame.f_code.co_filename)
    return os.path.basename(path) if path in changed else None


# The report of pytest


def _add_plugin(load):
    """Make a pytest in this interpreter load a plugin that registers the reporter."""
    # The marker in the docstring prevents a warning of pytest, which cannot rewrite an already imported module.
    plugin = type(sys)(_PLUGIN, "PYTEST_DONT_REWRITE")
    plugin.__file__ = __file__

    def pytest_load_initial_conftests(early_config):
        _report(early_config.pluginmanager, load)

    plugin.pytest_load_initial_conftests = pytest_load_initial_conftests
    sys.modules[_PLUGIN] = plugin
    words = os.environ.get("PYTEST_ADDOPTS", "")
    if _SETTINGS in os.environ and _PLUGIN not in words:
        os.environ["PYTEST_ADDOPTS"] = (words + " -p " + _PLUGIN).strip()


def _report(manager, load):
    """Register the reporter in this pytest.

    Its variables are removed from the environment, because a pytest that a test starts must not report.
    """
    descriptors = os.environ.pop(_SETTINGS, None), os.environ.pop(_REPORT, None)
    words = os.environ.pop("PYTEST_ADDOPTS", "").replace("-p " + _PLUGIN, "").strip()
    if words:
        os.environ["PYTEST_ADDOPTS"] = words
    if None in descriptors:
        return
    stages = load("scoring.stages")
    try:
        settings = stages.read_settings(int(descriptors[0]))
        os.close(int(descriptors[0]))
        report = load("descriptors").move_high(int(descriptors[1]))
    except OSError:
        return
    reporter = load("scoring.report").make_reporter(settings, stages.open_writer(report, settings.pop("token")))
    reporter.watch()
    manager.register(reporter, "dgym-" + os.urandom(6).hex())
