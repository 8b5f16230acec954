"""Tests that the recorded outcomes agree with the outcomes that pytest prints, over styles of tests and plugins."""

import re
import sys
from pathlib import Path

import pytest

from dgym.sandbox.local import ensure_environment

STYLES = {
    "test_subtests.py": """
import unittest, pytest
class TestSubtests(unittest.TestCase):
    def test_some_skipped(self):
        for number in range(3):
            with self.subTest(number=number):
                if number == 1:
                    self.skipTest("not this one")
                self.assertLess(number, 3)
    def test_all_skipped(self):
        with self.subTest("only"):
            self.skipTest("none")
    def test_skipped_and_failed(self):
        with self.subTest(number=1):
            self.skipTest("not this one")
        with self.subTest(number=2):
            self.fail("this one")
    def test_skipped_then_failed_outside(self):
        with self.subTest(number=1):
            self.skipTest("not this one")
        self.fail("after it")
    def test_skipped_as_a_whole(self):
        with self.subTest(number=1):
            pass
        self.skipTest("all of it")
    def test_passed(self):
        with self.subTest(number=1):
            self.assertTrue(1)
    @unittest.expectedFailure
    def test_expected_failure(self):
        with self.subTest(number=1):
            self.fail("as expected")
""",
    "test_fixture_subtests.py": """
import pytest
def test_some_skipped(subtests):
    for number in range(3):
        with subtests.test(number=number):
            if number == 1:
                pytest.skip("not this one")
def test_expected(subtests):
    with subtests.test("expected"):
        pytest.xfail("as known")
def test_failed(subtests):
    with subtests.test("bad"):
        assert 1 == 2
""",
    "test_unittest.py": """
import unittest
class TestCase(unittest.TestCase):
    def setUp(self): self.addCleanup(lambda: None)
    def test_equal(self): self.assertEqual(1, 1)
    def test_unequal(self): self.assertEqual(1, 2)
    def test_error(self): raise KeyError(1)
    def test_skip(self): self.skipTest("no")
    @unittest.expectedFailure
    def test_unexpected_success(self): pass
    @unittest.expectedFailure
    def test_expected_failure(self): self.fail()
class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def test_awaited(self): self.assertTrue(1)
class TestTeardown(unittest.TestCase):
    def tearDown(self): raise KeyError(1)
    def test_passed(self): pass
""",
    "test_marks.py": """
import pytest
@pytest.mark.parametrize("word", ["a b", "c::d", "[x]", "", "\\u00e9"])
def test_words(word): assert word != "[x]"
@pytest.mark.xfail(strict=True)
def test_strict_pass(): pass
@pytest.mark.xfail(strict=True)
def test_strict_fail(): assert 0
@pytest.mark.xfail
def test_lax_pass(): pass
@pytest.mark.xfail(raises=ValueError)
def test_other_error(): raise KeyError(1)
@pytest.mark.xfail(run=False)
def test_not_run(): raise SystemExit
@pytest.mark.skipif(True, reason="no")
def test_skipped(): pass
@pytest.fixture
def broken(): assert 0
@pytest.fixture
def broken_later():
    yield
    assert 0
def test_setup(broken): pass
def test_teardown(broken_later): pass
def test_exit(): raise SystemExit(3)
""",
    "documented.py": '''
def double(number):
    """
    >>> double(2)
    4
    """
    return number * 2
def triple(number):
    """
    >>> triple(2)
    7
    """
    return number * 3
''',
}
PLUGINS = {
    "test_hypothesis.py": """
from hypothesis import given, settings, strategies
@settings(max_examples=3, database=None)
@given(strategies.integers())
def test_holds(number): assert number == number
@settings(max_examples=3, database=None)
@given(strategies.integers())
def test_does_not(number): assert number != number
""",
    "test_asyncio.py": """
import pytest
@pytest.mark.asyncio
async def test_awaited(): pass
@pytest.mark.asyncio
async def test_failing(): assert 0
""",
}
RERUNS = {
    "test_reruns.py": """
import pytest
runs = []
@pytest.mark.flaky(reruns=2)
def test_passes_later():
    runs.append(1)
    assert len(runs) > 1
@pytest.mark.flaky(reruns=1)
def test_never_passes(): assert 0
def test_steady(): pass
@pytest.fixture
def first_broken():
    runs.append(1)
    assert len(runs) > 5
@pytest.mark.flaky(reruns=5)
def test_setup_later(first_broken): pass
""",
}
OUTCOME = re.compile(r"^(\S*\.py::.*?) (PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)\b")
FAILED_SUBTEST = re.compile(r"^(?:\S+ )?SUBFAIL\S* (\S*\.py::\S+)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
NAMES = {
    "PASSED": "passed",
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
    "ERROR": "error",
}
RANK = ("passed", "xpassed", "skipped", "xfailed", "failed", "error")


def shown_by_pytest(output):
    """The worst outcome of each test in the output of ``pytest -v``."""
    outcomes = {}
    for line in COLOUR.sub("", output).splitlines():
        found = [(test, NAMES[word]) for test, word in OUTCOME.findall(line)]
        found += [(test, "failed") for test in FAILED_SUBTEST.findall(line)]
        for test, outcome in found:
            outcomes[test] = max(outcomes.get(test, outcome), outcome, key=RANK.index)
    return outcomes


@pytest.fixture
def compare(run_plain):
    """Run files, compare the recorded outcomes with the outcomes that pytest printed, and return them."""

    async def run_and_compare(files, entrypoint, **options):
        result = await run_plain(files, entrypoint, changed=["calc.py"], **options)
        assert result.completed, result.run.text
        shown = shown_by_pytest(result.run.text)
        assert {test.partition("::")[0] for test in shown} == set(files)
        assert result.report.outcomes == shown, result.run.text
        assert (result.report.tampering, result.report.disagreements()) == ([], [])
        return shown

    return run_and_compare


@pytest.mark.parametrize("prefix", ["", "true && "], ids=["program", "shell"])
async def test_test_styles_are_counted_as_by_pytest(compare, prefix):
    shown = await compare(STYLES, prefix + "python -m pytest -v -p no:cacheprovider --doctest-modules")
    assert shown["test_subtests.py::TestSubtests::test_some_skipped"] == "passed"
    assert shown["test_subtests.py::TestSubtests::test_all_skipped"] == "passed"


async def test_plugins_count_as_pytest_counts_them(compare):
    loaded = "-p _hypothesis_pytestplugin -p pytest_asyncio.plugin -p xdist.plugin"
    shown = await compare(PLUGINS, f"python -m pytest -v --color=yes -n 2 {loaded}", python=sys.executable)
    assert sorted(shown.values()) == ["failed", "failed", "passed", "passed"]


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["8.4.2", "9.0.2"])
async def test_plugins_from_elsewhere_count_as_pytest_counts_them(compare, version):
    requirements = [f"pytest=={version}", "pytest-rerunfailures==16.1", "pytest-subtests==0.15.0"]
    environment = await ensure_environment(requirements)
    python = str(Path(environment) / "bin" / "python")
    files = {**STYLES, **RERUNS}
    loaded = "-p pytest_rerunfailures" + (" -p pytest_subtests.plugin" if version.startswith("8") else "")
    shown = await compare(files, f"python -m pytest -v --doctest-modules {loaded}", python=python)
    assert shown["test_reruns.py::test_passes_later"] == "passed"
    assert shown["test_subtests.py::TestSubtests::test_some_skipped"] == "passed"


SKIPPING = {
    "calc.py": "def add(a, b): return a - b\n",
    "test_calc.py": """
import unittest
import calc
class TestAdd(unittest.TestCase):
    def test_add(self):
        for a in range(3):
            with self.subTest(a=a):
                if a == 2:
                    self.skipTest("too large")
                self.assertEqual(calc.add(a, 1), a + 1)
def test_fixture(subtests):
    with subtests.test("one"):
        assert calc.add(1, 1) == 2
""",
}


async def test_a_repair_is_resolved_although_a_subtest_is_skipped(score):
    outcome = await score(SKIPPING, {"calc.py": "def add(a, b): return a + b\n"})
    assert outcome.resolved
    assert outcome.message == "2 of 2 tests passed"


async def test_a_subtest_skipped_by_changed_code_does_not_pass_and_is_reported(score):
    evasion = "import unittest, pytest\ndef add(a, b): raise (unittest.SkipTest, pytest.skip.Exception)[a == b]('no')\n"
    outcome = await score(SKIPPING, {"calc.py": evasion})
    assert outcome.score == 0
    assert "pytest itself reports test_calc.py::TestAdd::test_add as passed, it counts as skipped" in outcome.message


DOUBLING = {
    "calc.py": "def double(a): return a\n",
    "test_double.py": """
import unittest
import calc
class TestDouble(unittest.TestCase):
    def test_double(self):
        with self.subTest(a=1):
            self.assertEqual(calc.double(1), 2)
def test_fixture(subtests):
    with subtests.test("one"):
        assert calc.double(1) == 2
""",
}


async def test_a_subtest_skipped_by_changed_code_with_unittest_skiptest_does_not_pass(score):
    outcome = await score(DOUBLING, {"calc.py": "import unittest\ndef double(a): raise unittest.SkipTest('no')\n"})
    assert set(outcome.tests.values()) == {"skipped"}
    assert "as passed, it counts as skipped" in outcome.message


async def test_the_message_reports_an_exit_status_that_contradicts_the_count(score):
    files = {
        "conftest.py": "def pytest_sessionfinish(session): session.exitstatus = 1\n",
        "calc.py": "x = 1\n",
        "test_calc.py": "import calc\ndef test_x(): assert calc.x == 2\n",
    }
    outcome = await score(files, {"calc.py": "x = 2\n"})
    assert outcome.resolved
    assert outcome.message == "1 of 1 tests passed; pytest itself exited with status 1 although no test failed"
