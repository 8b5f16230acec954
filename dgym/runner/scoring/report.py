"""The pytest plugin that reports the outcome of each test.

PYTEST_DONT_REWRITE: pytest must not touch this module.

Works with pytest 3.0 to 9. The score of a pytest run depends only on this report, and not on the output of the run. A
test passes only if its setup, its call and its teardown passed, so its outcome is reported after the teardown.
"""

import contextlib
import os
import unittest

import pytest

IDS_PER_RECORD = 500
_NOT_FAILED = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
_CAUSES = 2000
_CHAIN = 4
_TEXT = 200
_RANK = ("passed", "xpassed", "skipped", "xfailed", "failed", "error")


def make_reporter(settings, write):
    """Returns the plugin for a pytest session."""
    if settings["changed"] is None:
        return Reporter(write)
    from .canary import make_canary

    name = "test_" + os.urandom(6).hex()
    return Reporter(
        write,
        changed=[os.path.join(settings["workspace"], path) for path in settings["changed"]],
        make_canary=lambda session, *callbacks: make_canary(session, name, *callbacks),
    )


class Reporter(object):
    """The plugin.

    Args:
        write: ``write(kind, **fields)`` writes a record to the report descriptor.
        changed: Absolute paths of the files that the agent changed. If None, the causes of failures and skips are
            reported, too.
        make_canary: Creates the test that must fail, or None.
    """

    def __init__(self, write, changed=None, make_canary=None):
        self._write = write
        self._changed = None if changed is None else frozenset(os.path.realpath(path) for path in changed)
        self._make_canary = make_canary
        self._states = {}
        self._observers = {}
        self._running = None
        self._stops = Stops()
        self._causes = _CAUSES

    # Hooks that run before code of the workspace is imported

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(self):
        self.watch()
        yield

    def watch(self):
        """Start to observe unittest. Called directly if the plugin is registered too late for the hook above."""
        self._stops.watch()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_cmdline_main(self, config):
        """Run the tests in this process, because the plugin cannot observe worker processes of pytest-xdist."""
        if hasattr(config.option, "numprocesses"):
            config.option.numprocesses = 0
            config.option.dist = "no"
            config.option.tx = []
        yield

    # Hooks of the session

    def pytest_sessionstart(self):
        self._write("start", pytest=pytest.__version__)

    def pytest_collectreport(self, report):
        if report.failed:
            self._write("collection_error", id=report.nodeid)
        elif report.skipped:
            self._write_skip(report)

    def pytest_exception_interact(self, node, call, report):
        """Called by pytest for each failure of collection, setup, call and teardown."""
        self._write_cause(report.nodeid or node.nodeid, causes_of(call.excinfo.value) + printed_causes(report))

    def _write_skip(self, report):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        self._write_cause(report.nodeid, [{"type": "Skipped", "text": str(reason)[:_TEXT], "name": ""}])

    def _write_cause(self, nodeid, chain):
        if self._changed is None and self._causes > 0:
            self._causes -= 1
            self._write("cause", id=nodeid, chain=chain)

    def pytest_collection_finish(self, session):
        ids = [item.nodeid for item in session.items]
        for start in range(0, len(ids), IDS_PER_RECORD):
            self._write("collected", ids=ids[start : start + IDS_PER_RECORD])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtestloop(self, session):
        option = session.config.option
        runs_tests = not getattr(option, "collectonly", False) and not getattr(option, "setuponly", False)
        if self._make_canary is not None and runs_tests and session.items:
            session.items.append(self._make_canary(session, self._on_broken, self._on_canary))
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        with CallObserver(item, self._stops) as observer:
            self._running = observer
            outcome = yield
            self._running = None
            observer.close(outcome.excinfo)
        self._observers[item.nodeid] = observer

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call):
        # This wrapper runs before pytest's unittest plugin, which replaces the exception of a skip and its traceback.
        if self._running is not None:
            self._running.subtest_ended(call.excinfo)
        yield

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":
            self._states[report.nodeid] = None
        outcome = _outcome(report)
        if report.when == "call":
            outcome = self._checked(report.nodeid, outcome)
        if outcome is not None:
            known = self._states.get(report.nodeid)
            worst = outcome if known is None else max(known, outcome, key=_RANK.index)
            self._states[report.nodeid] = worst
        if report.skipped and not hasattr(report, "wasxfail"):
            self._write_skip(report)
        if report.when == "teardown":
            state = self._states.pop(report.nodeid, None)
            self._observers.pop(report.nodeid, None)
            if state is not None:
                self._write("test", id=report.nodeid, outcome=state)

    def _checked(self, nodeid, outcome):
        """Returns the outcome of a call. It is "passed" only if the observation of the call confirms it."""
        observer = self._observers.get(nodeid)
        if outcome != "passed" or observer is None:
            return outcome
        overruled = self._overruled(observer)
        if overruled is None:
            return outcome
        self._write("overruled", id=nodeid, outcome=outcome)
        return overruled

    def _overruled(self, observer):
        """Returns the outcome of a test that did not pass although pytest reports it as passed, else None."""
        if observer.silent:
            return "failed"
        if any(os.path.realpath(code.co_filename) in (self._changed or ()) for code in observer.skipping):
            return "skipped"
        return None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionfinish(self, exitstatus):
        self._write("end", status=int(exitstatus))
        yield

    # The canary

    def _on_broken(self, names):
        for name in names:
            self._write("tampering", why="%s no longer fails" % name)

    def _on_canary(self, outcome):
        self._write("canary", outcome=outcome)


def causes_of(error):
    """Returns type, text and missing name of an exception and of the exceptions that caused it."""
    chain = []
    while error is not None and len(chain) < _CHAIN:
        name = ""
        for attribute in ("argname", "filename", "name"):
            value = getattr(error, attribute, None)
            if isinstance(value, str) and value:
                name = value
                break
        try:
            text = str(error)
        except Exception:
            text = ""
        # The end of the text is kept, too: the text of pytest's ImportError contains a traceback, which ends with the
        # original error.
        kind = "%s.%s" % (type(error).__module__, type(error).__name__)
        chain.append({"type": kind, "text": _both_ends(text), "name": name[:_TEXT]})
        error = error.__cause__ or error.__context__
    return chain


def _both_ends(text):
    return text if len(text) <= 2 * _TEXT else "%s ... %s" % (text[:_TEXT], text[-_TEXT:])


def printed_causes(report):
    """Returns the last captured line of each stream, if it looks like the end of a traceback or an error of a shell."""
    chain = []
    for title, text in getattr(report, "sections", ())[:_CHAIN]:
        lines = text.rstrip().splitlines()[-1:]
        if "Captured std" in title and lines and ("Error: " in lines[0] or "not found" in lines[0]):
            kind, _, rest = lines[0].partition(": ")
            chain.append({"type": kind[-_TEXT:], "text": rest[:_TEXT], "name": ""})
    return chain


def _outcome(report):
    """Returns the outcome of this phase of a test, or None if the phase does not affect the test's outcome."""
    if report.outcome not in ("passed", "failed", "skipped"):
        return None
    if hasattr(report, "context"):
        return "failed" if report.failed else None
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    if report.when != "call":
        return None
    return "xpassed" if hasattr(report, "wasxfail") else "passed"


class Stops(object):
    """Records exceptions that unittest catches while a test runs.

    Attributes:
        count: Number of ``_ShouldStop`` exceptions, with which unittest ends a test after a failed subtest. If code
            under test raises it, the test ends early and unittest reports it as passed.
        skipped_subtests: The code objects in the tracebacks of skipped subtests.
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
                        self.skipped_subtests.extend(codes_of(skip.__traceback__))
                    raise

        outcome.testPartExecutor = executor


def codes_of(traceback):
    """Returns the code objects of a traceback, outermost first."""
    codes = []
    while traceback is not None:
        codes.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return codes


class CallObserver(object):
    """Observes the call of a test, before a plugin creates a report of it.

    Attributes:
        silent: True if a test of unittest ended without a result or before its end.
        skipping: The code objects in the tracebacks of skipped subtests.
    """

    def __init__(self, item, stops):
        self._item = item
        self._stops = stops
        self._stopped_before = stops.count
        del stops.skipped_subtests[:]
        self.skipping = []
        self._unittest = hasattr(item, "addSuccess")
        self._succeeded = False
        self.silent = False

    def __enter__(self):
        if self._unittest:
            original = self._item.addSuccess

            def succeed(testcase):
                self._succeeded = True
                return original(testcase)

            self._item.addSuccess = succeed
        return self

    def subtest_ended(self, excinfo):
        """Record the end of a subtest. ``excinfo`` is the pytest ``ExceptionInfo`` of the subtest, or None."""
        try:
            error = None if excinfo is None else excinfo.value
        except TypeError:
            # pytest-subtests nests two ExceptionInfo objects for a subtest of unittest. ``Stops`` records this subtest.
            return
        if isinstance(error, _NOT_FAILED):
            self.skipping += codes_of(error.__traceback__)

    def close(self, excinfo):
        collected = getattr(self._item, "_excinfo", None) if self._unittest else None
        self.skipping += self._stops.skipped_subtests
        # unittest does not call addSuccess for a test with a skipped subtest, although pytest reports it as passed.
        succeeded = self._succeeded or bool(self._stops.skipped_subtests)
        ended = succeeded and self._stops.count == self._stopped_before
        self.silent = self._unittest and not (ended or collected or excinfo)

    def __exit__(self, *_exception):
        if self._unittest:
            vars(self._item).pop("addSuccess", None)
        self._item = None
