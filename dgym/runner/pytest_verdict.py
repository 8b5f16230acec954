"""What a test's call came to, seen before anyone makes a report of it.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import unittest

import pytest

from .run_guard import codes_of

_NOT_FAILED = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)


class Verdict(object):
    """What the call did.

    ``raised``: it failed. ``silent``: a test of unittest that ended without any result, or before its end.
    ``skipping``: for each skip of a subtest the code objects that took part in it, outermost first.
    """

    def __init__(self, item, stops):
        self._item = item
        self._stops = stops
        self._stopped_before = stops.count
        del stops.skipped_subtests[:]
        self.skipping = []
        self._unittest = hasattr(item, "addSuccess")
        self._succeeded = False
        self.raised = self.silent = False

    def __enter__(self):
        if self._unittest:
            original = self._item.addSuccess

            def succeed(testcase):
                self._succeeded = True
                return original(testcase)

            self._item.addSuccess = succeed
        return self

    def subtest_ended(self, excinfo):
        """Record a subtest, whose report is made during the call; ``excinfo`` is what the subtest raised, or None."""
        try:
            error = None if excinfo is None else excinfo.value
        except TypeError:
            return  # pytest-subtests wraps an ExceptionInfo in another for a subtest of unittest, which ``stops`` has
        if isinstance(error, _NOT_FAILED):
            self.skipping.append(codes_of(error.__traceback__))

    def close(self, excinfo):
        collected = getattr(self._item, "_excinfo", None) if self._unittest else None
        self.skipping += self._stops.skipped_subtests
        # unittest announces no success of a test that skipped a subtest, and pytest reports the test as passed.
        succeeded = self._succeeded or bool(self._stops.skipped_subtests)
        ended = succeeded and self._stops.count == self._stopped_before
        self.silent = self._unittest and not (ended or collected or excinfo)
        error = excinfo[1] if excinfo else collected[0].value if collected else None
        self.raised = isinstance(error, Exception) and not isinstance(error, _NOT_FAILED)

    def __exit__(self, *_exception):
        if self._unittest:
            vars(self._item).pop("addSuccess", None)
        self._item = None
