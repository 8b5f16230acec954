"""Pytest plugin that writes the ids of passed tests to the file ``$OUTCOMES``."""

import json
import os
from pathlib import Path

_outcomes = {}


def pytest_cmdline_main(config):
    if hasattr(config.option, "numprocesses"):
        config.option.numprocesses = 0
        config.option.dist = "no"
        config.option.tx = []


def pytest_runtest_logreport(report):
    good = report.outcome == "passed" and report.when == "call"
    bad = report.failed or report.skipped
    if good:
        _outcomes.setdefault(report.nodeid, True)
    elif bad:
        _outcomes[report.nodeid] = False


def pytest_sessionfinish():
    # Tests that run pytest in this process also call this hook. The outermost session ends last and writes all tests.
    passed = sorted(test for test, good in _outcomes.items() if good)
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(passed))
