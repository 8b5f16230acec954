"""A test that must fail. It runs last and detects whether tests can still fail.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import functools
import types

UNITTEST_CHECKS = (
    ("assertEqual", (1, 2)),
    ("assertNotEqual", (1, 1)),
    ("assertTrue", (False,)),
    ("assertFalse", (True,)),
    ("assertIn", (1, [2])),
    ("assertIs", (1, 2)),
    ("fail", ()),
)


def make_canary(session, name, on_broken, on_outcome):
    """Create a test item that must fail and that only dgym's reporter can see.

    The item does not belong to a file, and pytest calls all hooks for it. Only its reports are withheld from the other
    plugins, so that it changes neither the output nor the exit status.

    Args:
        session: The pytest session.
        name: Name of the test.
        on_broken: Called with the names of the checks that no longer fail, if there are any.
        on_outcome: Called with the outcome of the test.
    """
    import pytest

    def must_fail():
        broken = broken_checks()
        if broken:
            on_broken(broken)
        raise AssertionError("this test must fail")

    module = types.ModuleType(name)
    setattr(module, name, must_fail)

    class Holder(pytest.Module):
        def _getobj(self):
            return module

    class Canary(pytest.Function):
        @property
        def ihook(self):
            return _Quiet(session.config.hook, on_outcome)

    holder = _new_module(Holder, session, name + ".py")
    if hasattr(Canary, "from_parent"):
        return Canary.from_parent(holder, name=name, callobj=must_fail)
    return Canary(name, holder, callobj=must_fail)


def _new_module(holder, session, file_name):
    if not hasattr(holder, "from_parent"):
        return holder(session.fspath.join(file_name), parent=session)
    try:
        import pathlib

        root = pathlib.Path(str(getattr(session.config, "rootpath", None) or session.config.rootdir))
        return holder.from_parent(session, path=root / file_name)
    except TypeError:
        return holder.from_parent(session, fspath=session.fspath.join(file_name))


class _Quiet(object):
    """The hooks of a session, except those that report a test to other plugins."""

    _SHOWING = frozenset(["pytest_runtest_logstart", "pytest_runtest_logfinish", "pytest_exception_interact"])

    def __init__(self, hook, on_outcome):
        self._hook = hook
        self._on_outcome = on_outcome

    def __getattr__(self, name):
        if name == "pytest_runtest_logreport":
            return self._take
        if name in self._SHOWING:
            return _ignore
        return getattr(self._hook, name)

    def _take(self, report):
        if report.when == "call" and report.outcome in ("passed", "failed", "skipped"):
            self._on_outcome(report.outcome)


def _ignore(**_arguments):
    return None


def broken_checks():
    """Returns the names of the functions of pytest and unittest that should raise and do not."""
    import unittest

    import pytest

    case = unittest.TestCase("__init__")
    checks = [
        ("pytest.fail", lambda: pytest.fail("must fail")),
        ("pytest.raises", lambda: _expect_nothing_raised(pytest.raises)),
        ("pytest.raises", lambda: _raise_another_error(pytest.raises)),
        ("pytest.approx", lambda: _assert_unequal_is_equal(getattr(pytest, "approx", None))),
        ("unittest.TestCase.assertRaises", lambda: _expect_nothing_raised(case.assertRaises)),
    ]
    for name, arguments in UNITTEST_CHECKS:
        checks.append(("unittest.TestCase." + name, functools.partial(getattr(case, name), *arguments)))
    return sorted(set(name for name, check in checks if not _fails(check)))


def _fails(check):
    try:
        check()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return True
    return False


def _expect_nothing_raised(raises):
    with raises(KeyError):
        pass


def _raise_another_error(raises):
    with raises(KeyError):
        raise ValueError


def _assert_unequal_is_equal(approx):
    if approx is None or approx(1.0) != 2.0:
        raise AssertionError
