"""The pytest plugin that keeps pytest from replacing the debugger. PYTEST_DONT_REWRITE

With it ``breakpoint()``, ``pdb.set_trace()``, ``--pdb`` and ``--trace`` lead to the session's debugger instead of
pytest's own. Works with pytest 3.0 and later.
"""

import functools
import importlib.util
import pdb  # noqa: T100 - its functions are replaced
import re
import sys

NAME = "_dgym_pytest_debug"
_XDIST = re.compile(r"(-n\s*=?\s*(?!0\b)\S*|--numprocesses(?!=0\b).*|--dist(?!=no\b).*|--tx.*)$")
_state = {}


def arguments(argv, environment):
    """Returns pytest's arguments, with options that disable capturing and plugins that conflict with the debugger."""
    given = " ".join(argv) + " " + environment.get("PYTEST_ADDOPTS", "")
    appended = ["-s"]
    for module, flag, name in (("xdist", "-n0", "xdist"), ("pytest_cov", "--no-cov", "pytest_cov")):
        automatic = not environment.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") or name in given
        if automatic and "no:" + name not in given and _importable(module):
            appended.append(flag)
    _state["argv"] = given.split()
    _state["appended"] = appended
    options, paths = (argv[: argv.index("--")], argv[argv.index("--") :]) if "--" in argv else (argv, [])
    return ["-p", NAME] + options + appended + paths


def connect(debugger):
    """Register this module in ``sys.modules`` under the name of the plugin that pytest loads."""
    _state["debugger"] = debugger
    _state["hooks"] = (pdb.set_trace, getattr(sys, "breakpointhook", None))
    sys.modules[NAME] = sys.modules.get(NAME) or _plugin_module()


def _plugin_module():
    module = type(sys)(NAME, __doc__)
    module.__dict__.update(
        {name: value for name, value in globals().items() if name.startswith("pytest_") and callable(value)}
    )
    module.__file__ = __file__
    return module


def _importable(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def pytest_configure(config):
    """Connect pytest's debugger hooks, which plugins use to pause timeouts, and report options without effect."""

    def find_hook(name):
        hook = getattr(config.hook, name, None)
        return hook and functools.partial(hook, config=config, pdb=_state["debugger"])

    _state["debugger"].find_hook = find_hook
    try:
        ini = config.getini("addopts")
    except (KeyError, ValueError):
        ini = []
    words = _state["argv"] + (ini.split() if isinstance(ini, str) else list(ini))
    notices = _state["debugger"].notices
    if "-n0" in _state["appended"] and any(_XDIST.match(word) for word in words):
        notices.append("pytest-xdist was requested: under the debugger the tests run in one process.")
    if "--no-cov" in _state["appended"] and any(word.startswith("--cov") for word in words):
        notices.append("Coverage is not measured under the debugger (it would disable breakpoints).")


def pytest_unconfigure():
    _state["debugger"].find_hook = None


def pytest_sessionstart(session):
    """Restore the functions that pytest's own debugging plugin replaced when it was configured."""
    pdb.set_trace, hook = _state["hooks"]
    if hook is not None:
        sys.breakpointhook = hook
    manager = session.config.pluginmanager
    for name in ("pdbinvoke", "pdbtrace"):
        plugin = manager.getplugin(name)
        if plugin is not None:
            manager.unregister(plugin)
            _state[name] = True


def pytest_exception_interact(call):
    """Implements ``--pdb``: stops at a failure, in the innermost frame of the workspace."""
    if _state.get("pdbinvoke"):
        error, trace = _reported(call.excinfo.value, call.excinfo.tb)
        _state["debugger"].post_mortem(error, trace, "goes on with the next test", in_workspace=True)


def _reported(error, trace):
    """Returns the original exception and its traceback if pytest or doctest wrapped it in its own exception."""
    while type(error).__module__.partition(".")[0] in ("_pytest", "doctest"):
        inner = getattr(error, "exc_info", None) or getattr(error, "excinfo", None)
        if inner is None:
            cause = getattr(error, "cause", None) or error.__cause__ or error.__context__
            inner = (type(cause), cause, getattr(cause, "__traceback__", None))
        if inner[2] is None:
            break
        error, trace = inner[1:]
    return error, trace


def pytest_runtest_setup(item):
    """Implements ``--trace``: stops at the first line of each test."""
    function = getattr(item, "obj", None)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if _state.get("pdbtrace") and code is not None:
        _state["debugger"].break_once(code)
