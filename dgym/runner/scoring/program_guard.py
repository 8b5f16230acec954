"""Notice when changed code worked on what decides about a program's exit status, without any pytest.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import contextlib
import os
import sys

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
        self._stops.watch()
        builtins = sys.modules["builtins"]
        names = [name for name in vars(builtins) if name not in FREE_BUILTINS]
        self._known = [(builtins, name, getattr(builtins, name)) for name in names]
        self._known += [(sys, "exit", sys.exit), (os, "_exit", os._exit)]

    def finished(self):
        """A sentence about the first thing that is wrong; None when nothing is."""
        found = [_replaced(owner, name) for owner, name, value in self._known if self._is_replaced(owner, name, value)]
        found += self._patched()
        if any(hook is not None and self._trust.distrusts(hook) for hook in (sys.gettrace(), sys.getprofile())):
            found.append("changed code traces the program")
        found += ["instances of %s equal everything" % name for name in self._wildcards.find()]
        found += [
            "%s uses a value of a library of tests that equals everything" % n for n in self._wildcards.borrowed()
        ]
        if self._stops.count:
            found.append("a test of unittest ended before its end")
        return found[0] if found else None

    def _is_replaced(self, owner, name, value):
        current = getattr(owner, name, None)
        return current is not value and not self._trust.is_harmless(current)

    def _patched(self):
        found = []
        for module_name, module in sorted(sys.modules.items()):
            if module_name.partition(".")[0] not in JUDGES or module is None:
                continue
            owners = [module] + [value for value in list(vars(module).values()) if isinstance(value, type)]
            for owner in owners:
                for name, value in list(vars(owner).items()):
                    if code_of(value) is not None and name not in _HOOKS_OF_SYS and self._trust.distrusts(value):
                        found.append(_replaced(owner, name))
        return found


def _replaced(owner, name):
    return "changed code replaced %s.%s" % (owner.__name__, name)
