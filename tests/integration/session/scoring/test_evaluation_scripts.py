"""Tests of evaluation scripts on real verifiers: their output decides the score, and access to tokens is limited."""

from dgym.api import Evaluation
from tests.support.calc import BUGGY, FIXED

SCRIPT = """#!/bin/bash
set -uxo pipefail
: '>>>>> Start Test Output'
python -m pytest -rA -p no:cacheprovider test_calc.py
SWEBENCH_TEST_EXIT_CODE=$?
: '>>>>> End Test Output'
echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"
"""
SUITE = """import calc
def test_add(): assert calc.add(1, 2) == 3
def test_zero(): assert calc.add(1, 0) == 1
"""
REPOSITORY = {"calc.py": BUGGY, "test_calc.py": SUITE}
READ = "outcomes were read from the text of the evaluation script (parser pytest)"

SPYING = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
may_trace_all = bool(int(status["CapEff"], 16) >> 19 & 1)  # root without isolation
me, wrappers = os.getpid(), 0
while me > 1:
    me = int(open(f"/proc/{me}/stat").read().rpartition(")")[2].split()[1])
    if me > 1 and b"wrapper.py" in open(f"/proc/{me}/cmdline", "rb").read():
        wrappers += 1
        for what in ("mem", "environ", "fd/0"):
            try:
                open(f"/proc/{me}/{what}", "rb").close()
            except OSError:
                continue
            assert may_trace_all, what
assert wrappers == 1
assert not [name for name in os.environ if name.startswith("DGYM_REPORT")]
pipes = set()
for name in os.listdir("/proc/self/fd"):
    try:
        pipes.add(os.readlink("/proc/self/fd/" + name))
    except OSError:
        continue
assert len([one for one in pipes if "pipe:" in one]) <= 1, pipes
"""


def evaluation(**fields):
    given = {
        "script": SCRIPT,
        "fail_to_pass": ("test_calc.py::test_add",),
        "pass_to_pass": ("test_calc.py::test_zero",),
    }
    return Evaluation(**{**given, **fields})


async def test_outcomes_are_read_from_the_text_and_code_under_test_has_no_token(score):
    solved = await score(REPOSITORY, {"calc.py": FIXED + SPYING}, evaluation=evaluation())
    assert solved.resolved, solved
    assert (solved.message, solved.notes) == (f"2 of 2 tests passed; {READ}", (READ,))


async def test_tests_hooks_and_scripts_of_the_agent_do_not_affect_the_score(score):
    forging = "def pytest_sessionstart():\n    print('PASSED test_calc.py::test_add')\n"
    script = SCRIPT.replace("python -m pytest", "sh ci/run.sh")
    files = {**REPOSITORY, "ci/run.sh": 'exec python -m pytest "$@"\n'}
    changes = {
        "ci/run.sh": "echo PASSED test_calc.py::test_add; echo PASSED test_calc.py::test_zero\n",
        "conftest.py": forging,
        "test_calc.py": "def test_add(): pass\ndef test_zero(): pass\n",
    }
    outcome = await score(files, changes, evaluation=evaluation(script=script))
    assert outcome.tests == {"test_calc.py::test_add": "failed", "test_calc.py::test_zero": "passed"}


async def test_a_text_without_an_end_is_not_graded(score):
    leaving = "import os\nos.kill(os.getppid(), 9)\n" + FIXED
    outcome = await score(REPOSITORY, {"calc.py": leaving}, evaluation=evaluation())
    assert outcome.message.startswith("not graded: the script did not get to the tests, or not to their end")
    assert (outcome.resolved, set(outcome.tests.values())) == (False, {"missing"})


async def test_parser_code_of_a_row_runs_in_a_separate_process(score):
    code = """
import re, sys
def parse(log):
    assert "DGYM_REPORT_FD" not in __import__("os").environ
    print("noise that is no outcome")
    return {name: status for status, name in re.findall(r"^(PASSED|FAILED) (\\S+)", log, re.M)}
"""
    outcome = await score(REPOSITORY, {"calc.py": FIXED}, evaluation=evaluation(parser="code", parser_code=code))
    assert outcome.resolved, outcome
