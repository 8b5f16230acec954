"""The pytest plugin that reports what each test did.

PYTEST_DONT_REWRITE: pytest must not touch this module.

Works on pytest 3.0 to 9. It is the only source of a pytest score: what a run prints is never read. A test passes only
if its setup, its call and its teardown passed, so nothing is reported before the teardown.
"""

import pytest

IDS_PER_RECORD = 500
_RANK = ("passed", "xpassed", "skipped", "xfailed", "failed", "error")


class Reporter(object):
    """Plugin object; ``write(kind, **fields)`` puts one record on the report descriptor.

    ``guard`` (or None) watches for tampering; ``make_canary`` makes a test that must fail (or is None).
    """

    def __init__(self, write, guard=None, make_canary=None):
        self._write = write
        self._guard = guard
        self._make_canary = make_canary
        self._states = {}
        self._told = set()

    # Before anything of the workspace is imported

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(self, early_config):
        self.take_snapshot(early_config.pluginmanager)
        yield

    def take_snapshot(self, pluginmanager):
        if self._guard is not None:
            self._guard.snapshot(pluginmanager)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_cmdline_main(self, config):
        """Keep the tests in this process: a worker of pytest-xdist is out of sight."""
        if hasattr(config.option, "numprocesses"):
            config.option.numprocesses = 0
            config.option.dist = "no"
            config.option.tx = []
        yield

    # What the session does

    def pytest_sessionstart(self):
        self._write("start", pytest=pytest.__version__)

    def pytest_collectreport(self, report):
        if report.failed:
            self._write("collection_error", id=report.nodeid)

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
    def pytest_runtest_protocol(self):
        """Look between tests, when what a test patches for itself is undone."""
        self._tell_replaced()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self):
        """Look while the test's own objects still live: a class made in a test is gone soon after."""
        yield
        if self._guard is not None:
            self._tell_wildcards(self._guard.look_for_wildcards())

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":
            self._states[report.nodeid] = None
        outcome = _outcome(report)
        if outcome is not None:
            known = self._states.get(report.nodeid)
            worst = outcome if known is None else max(known, outcome, key=_RANK.index)
            self._states[report.nodeid] = worst
        if report.when == "teardown":
            state = self._states.pop(report.nodeid, None)
            if state is not None:
                self._write("test", id=report.nodeid, outcome=state)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionfinish(self, session):
        if self._guard is not None:
            self._tell_replaced()
            self._tell_wildcards(self._guard.wildcards())
            hooks = self._guard.hooked(session.config.pluginmanager)
            self._tell("changed code took part in the hook %s" % name for name in hooks)
        self._write("end")
        yield

    # Signs of tampering

    def _tell_replaced(self):
        if self._guard is not None:
            self._tell("changed code replaced %s" % name for name in self._guard.replaced())

    def _tell_wildcards(self, names):
        self._tell("instances of %s equal everything" % name for name in names)

    def _on_broken(self, names):
        self._tell("%s no longer fails" % name for name in names)

    def _on_canary(self, outcome):
        self._write("canary", outcome=outcome)

    def _tell(self, reasons):
        for why in reasons:
            if why not in self._told:
                self._told.add(why)
                self._write("tampering", why=why)


def _outcome(report):
    """What this phase adds to the test's outcome; None when nothing."""
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
