"""What a test's call came to, seen before anyone makes a report of it.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import unittest

import pytest

_NOT_FAILED = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)


class Verdict(object):
    """``raised``: the call failed. ``silent``: a test of unittest that ended without any result, or before its end."""

    def __init__(self, item, stops):
        self._item = item
        self._stops = stops
        self._stopped_before = stops.count
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

    def close(self, excinfo):
        collected = getattr(self._item, "_excinfo", None) if self._unittest else None
        ended = self._succeeded and self._stops.count == self._stopped_before
        self.silent = self._unittest and not (ended or collected or excinfo)
        error = excinfo[1] if excinfo else collected[0].value if collected else None
        self.raised = isinstance(error, Exception) and not isinstance(error, _NOT_FAILED)

    def __exit__(self, *_exception):
        if self._unittest:
            vars(self._item).pop("addSuccess", None)
        self._item = None
