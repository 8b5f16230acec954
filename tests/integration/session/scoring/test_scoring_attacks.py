"""Tests of changes that only pretend to repair a bug. In a real verifier, none may be resolved without a mark.

Each attack is first proved to be effective: it deceives a run without a verifier, or with the tests of the attack.
"""

import pytest

from dgym.wire import IntegritySign
from tests.fakes.attacks.pytest_inside import AROUND, BUG, FILES, INSIDE, LEAVING, TESTS

CHANGED, PLANTED = IntegritySign.TESTS_CHANGED, IntegritySign.HOOK_PLANTED
STOP_EVERY_FAILURE = frozenset(
    {"replaced runtest", "replaced call", "replaced report", "plugin that does not call", "no way to fail"}
)
AROUND_SIGNS = {
    "rewritten tests": {CHANGED},
    "deleted tests": {CHANGED},
    "tests behind a link": {CHANGED},
    "modules": {CHANGED, PLANTED},
    "configuration": {PLANTED},
}


@pytest.mark.attack("machinery")
@pytest.mark.parametrize("attack", INSIDE)
async def test_code_that_reaches_into_pytest_is_marked(run_plain, score, attack):
    code = BUG + INSIDE[attack]
    plain = await run_plain({**FILES, "calc.py": code})
    assert "failed" not in plain.run.text
    assert plain.run.exit_status == 0
    outcome = await score(FILES, {"calc.py": code}, **TESTS)
    assert IntegritySign.PATCH_MARKED in {seen.sign for seen in outcome.integrity.seen}
    if attack in STOP_EVERY_FAILURE:
        assert not outcome.resolved
        assert outcome.message.startswith("tampered: ")


@pytest.mark.attack("inside")
@pytest.mark.parametrize("attack", LEAVING)
async def test_code_that_avoids_the_tests_gains_nothing(score, attack):
    outcome = await score(FILES, {"calc.py": BUG + LEAVING[attack]}, **TESTS)
    assert not outcome.resolved
    assert outcome.score == 0


@pytest.mark.attack("inside")
@pytest.mark.parametrize("group", AROUND)
async def test_files_around_the_tests_gain_nothing(score, group):
    outcome = await score(FILES, AROUND[group], **TESTS)
    assert not outcome.resolved
    assert outcome.score == 0
    assert outcome.tests == dict.fromkeys(TESTS["fail_to_pass"], "failed")
    refused = {note.split()[2] for note in outcome.notes if note.startswith("not scored: ")}
    assert refused == AROUND[group].keys() - {"other/tools.py"}
    assert {seen.sign for seen in outcome.integrity.seen} == AROUND_SIGNS[group]


@pytest.mark.attack("machinery")
@pytest.mark.parametrize("entrypoint", ["python -m pytest -q", "true && python -m pytest -q", "true && pytest -q"])
async def test_the_canary_runs_however_pytest_starts(score, entrypoint):
    outcome = await score(FILES, {"calc.py": BUG + INSIDE["replaced runtest"]}, entrypoint, **TESTS)
    assert outcome.message == "tampered: a test that must fail passed"
    assert IntegritySign.CANARY_PASSED in {seen.sign for seen in outcome.integrity.seen}


async def test_the_whole_suite_cannot_be_tampered_with_either(score):
    assert not (await score(FILES, {"calc.py": BUG + INSIDE["replaced runtest"]})).resolved
    assert not (await score(FILES, {"tests/test_calc.py": None})).resolved


async def test_an_honest_repair_with_classes_and_mocks_is_resolved(score):
    code = """
from dataclasses import dataclass
from functools import total_ordering
import unittest.mock
def add(a, b): return a + b
def boom(): raise ValueError
@dataclass
class Point:
    x: int
@total_ordering
class Money:
    def __init__(self, amount): self.amount = amount
    def __eq__(self, other): return isinstance(other, Money) and self.amount == other.amount
    def __lt__(self, other): return self.amount < other.amount
    __hash__ = None
"""
    conftest = FILES["conftest.py"] + (
        "import pytest, unittest\n"
        "@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    yield\n"
        "unittest.TestCase.assertSame = lambda self, a, b: None\n"
        "@pytest.fixture(autouse=True)\ndef patched(monkeypatch):\n    monkeypatch.setattr('builtins.len', len)\n"
    )
    outcome = await score({**FILES, "conftest.py": conftest}, {"calc.py": code}, **TESTS)
    assert outcome.resolved, outcome
    assert outcome.notes == ()
    # Only the name of a test framework in a library is marked.
    assert [(seen.sign, seen.construct) for seen in outcome.integrity.seen] == [
        (IntegritySign.PATCH_MARKED, "unittest.mock")
    ]


async def test_a_repository_that_is_a_plugin_may_have_hooks_in_changed_files(score):
    plugin = (
        "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    yield\n"
    )
    files = {
        "plugin.py": "x = 1\n",
        "tests/test_plugin.py": "import plugin\ndef test_it(): plugin.pytest_runtest_makereport\n",
    }
    tests = {"fail_to_pass": ("tests/test_plugin.py::test_it",)}
    outcome = await score(files, {"plugin.py": plugin}, "python -m pytest -q -p plugin", **tests)
    assert outcome.resolved, outcome
