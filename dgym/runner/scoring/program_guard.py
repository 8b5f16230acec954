"""Notice when changed code worked on what decides about a program's exit status, with or without pytest.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import contextlib
import os
import sys
import threading

from .trust import Trust, Wildcards, code_of

FREE_BUILTINS = frozenset(["_", "copyright", "credits", "exit", "help", "input", "license", "open", "print", "quit"])
JUDGES = ("builtins", "doctest", "math", "operator", "os", "sys", "unittest")
_HOOKS_OF_SYS = frozenset(["breakpointhook", "displayhook", "excepthook", "unraisablehook"])


class Stops(object):
    """Counts the exceptions that unittest swallows while a test runs.

    ``count``: how often the one by which its own subtests stop a test. Code under test can raise it, too: the test then
    ends in the middle and looks passed. ``skipped_subtests``: the code that took part in each skip of a subtest.
    """

    def __init__(self):
        self.count = 0
        self.skipped_subtests = []

    def watch(self):
        from unittest import SkipTest, case

        stop, outcome = getattr(case, "_ShouldStop", None), getattr(case, "_Outcome", None)
        subtest = getattr(case, "_SubTest", ())
        if stop is None or not hasattr(outcome, "testPartExecutor"):
            return
        original = outcome.testPartExecutor

        @contextlib.contextmanager
        def executor(running, part, *arguments, **options):
            with original(running, part, *arguments, **options):
                try:
                    yield
                except stop:
                    self.count += not getattr(running, "expecting_failure", False)
                    raise
                except SkipTest as skip:
                    if isinstance(part, subtest):
                        self.skipped_subtests.append(codes_of(skip.__traceback__))
                    raise

        outcome.testPartExecutor = executor


def codes_of(traceback):
    """The code objects of a traceback, outermost first."""
    codes = []
    while traceback is not None:
        codes.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return codes


class ProgramGuard(object):
    """``changed`` are the absolute paths of files whose code is not trusted."""

    def __init__(self, changed):
        self._trust = Trust(changed)
        self._wildcards = Wildcards(self._trust)
        self._stops = Stops()
        self._known = []

    def snapshot(self):
        """Keep the builtins and the ways to exit as they are before the program's first line."""
        self._stops.watch()
        builtins = sys.modules["builtins"]
        names = [name for name in vars(builtins) if name not in FREE_BUILTINS]
        self._known = [(builtins, name, getattr(builtins, name)) for name in names]
        self._known += [(sys, "exit", sys.exit), (os, "_exit", os._exit)]

    def finished(self):
        """A sentence about the first sign of tampering; None when there is none."""
        found = [replaced(owner, name) for owner, name, value in self._known if self._is_replaced(owner, name, value)]
        judges = [name for name in sorted(sys.modules) if name.partition(".")[0] in JUDGES]
        modules = [sys.modules[name] for name in judges if sys.modules[name] is not None]
        found += patches(self._trust, modules, _HOOKS_OF_SYS) + traces(self._trust) + self._wildcards.finished()
        if self._stops.count:
            found.append("a test of unittest ended before its end")
        return found[0] if found else None

    def _is_replaced(self, owner, name, value):
        current = getattr(owner, name, None)
        return current is not value and not self._trust.is_harmless(current)


def replaced(owner, name):
    """The sign that a member of a module or class is not what it was."""
    return "changed code replaced %s.%s" % (getattr(owner, "__module__", None) or owner.__name__, name)


def patches(trust, modules, exempt=frozenset()):
    """A sign for each member of the modules and of their classes that is a function of changed code."""
    found = set()
    for module in modules:
        for owner in [module] + [value for value in list(vars(module).values()) if isinstance(value, type)]:
            for name, value in list(vars(owner).items()):
                if code_of(value) is not None and name not in exempt and trust.distrusts(value):
                    found.add(replaced(owner, name))
    return sorted(found)


def traces(trust):
    """The sign that changed code traces this process."""
    hooks = [sys.gettrace(), sys.getprofile()]
    hooks += [getattr(threading, name, None) for name in ("_trace_hook", "_profile_hook")]
    hooks += _monitors()
    traced = any(hook is not None and trust.distrusts(hook) for hook in hooks)
    return ["changed code traces the program"] if traced else []


def _monitors():
    """The callbacks of ``sys.monitoring`` (from Python 3.12 on), which can only be read by replacing them."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return []
    events = [1 << number for number in range(20)]
    found = []
    for tool in range(6):
        if monitoring.get_tool(tool) is None:
            continue
        for event in events:
            try:
                callback = monitoring.register_callback(tool, event, None)
                monitoring.register_callback(tool, event, callback)
            except ValueError:
                break
            found.append(callback)
    return found
