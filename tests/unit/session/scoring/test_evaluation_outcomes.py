"""Tests of the rules that turn the test outcomes of an evaluation into its result."""

import pytest

from dgym.api import Evaluation
from dgym.sandbox import EntrypointResult, RunResult
from dgym.sandbox import TestReport as Report
from dgym.session.scoring import assess
from dgym.session.scoring._score import grade
from tests.fakes.plans import make_plan

READ = "outcomes were read from the text of the evaluation script (parser pytest)"


def run(outcomes, *, unread="", ended_by="exit"):
    report = Report(form="script", outcomes=outcomes, finished=True, exit_status=0, parser="pytest", unread=unread)
    return EntrypointResult(run=RunResult(exit_status=0, ended_by=ended_by, output=b""), report=report)


def graded(outcomes, /, *, unread="", ended_by="exit", **fields):
    return grade(Evaluation(script=":", **fields), run(outcomes, unread=unread, ended_by=ended_by), 60.0)


@pytest.mark.parametrize(
    ("outcome", "repaired", "kept"),
    [
        ("passed", True, True),
        ("xfailed", True, True),
        ("skipped", False, True),
        ("failed", False, False),
        ("error", False, False),
        (None, False, False),
    ],
)
def test_outcomes_that_count_for_fail_to_pass_and_pass_to_pass(outcome, repaired, kept):
    outcomes = {} if outcome is None else {"t": outcome}
    assert graded(outcomes, fail_to_pass=("t",)).resolved is repaired
    assert graded(outcomes, pass_to_pass=("t",)).resolved is kept
    assert graded(outcomes, pass_to_pass=("t",), rule="failOnly").resolved is (outcome != "failed")


def test_a_name_that_was_cut_off_is_found_where_all_that_begin_with_it_agree():
    both = {"t[log(a, b)]": "passed", "t[log(a, c)]": "xfailed"}
    assert graded(both, fail_to_pass=("t[log(a",)).resolved
    assert graded({**both, "t[log(a, d)]": "failed"}, fail_to_pass=("t[log(a",)).tests == {"t[log(a": "missing"}
    assert graded(both, fail_to_pass=("t",)).tests == {"t": "missing"}
    assert graded({"t[a]": "passed", "t[a]b": "passed"}, fail_to_pass=("t[a",), rule="failOnly").resolved


def test_the_exact_rule_requires_equal_tests_and_outcomes():
    wanted = {"a": "PASSED", "b": "FAILED"}
    assert graded({"a": "passed", "b": "failed"}, rule="exact", outcomes=wanted).resolved
    assert not graded({"a": "passed", "b": "passed"}, rule="exact", outcomes=wanted).resolved
    more = graded({"a": "passed", "b": "failed", "c": "passed"}, rule="exact", outcomes=wanted)
    assert (more.resolved, more.score) == (False, 0)
    assert more.message == f"the text has tests that are not expected: c; {READ}"


def test_a_run_that_is_not_graded_is_unresolved_with_a_message():
    found = graded({}, unread="the script did not get to the tests, or not to their end", fail_to_pass=("t",))
    assert (found.resolved, found.tests) == (False, {"t": "missing"})
    assert found.message.startswith("not graded: the script did not get to the tests")
    late = graded({"t": "passed"}, ended_by="timeout", fail_to_pass=("t",))
    assert (late.resolved, late.tests) == (False, {"t": "missing"})
    unproven = graded({}, unread="no sign that a test ran", pass_to_pass=("t",), rule="failOnly")
    assert not unproven.resolved


def test_check_takes_evaluations_too():
    plan = make_plan("x", evaluation=Evaluation(script=":", fail_to_pass=("t",), pass_to_pass=("u",)))
    before, after = run({"t": "failed", "u": "passed"}), run({"t": "passed", "u": "passed"})
    assert assess("task", plan, [before, before], [after, after]).problems == ()
    assert assess("task", plan, [after, after], [after, after]).passes
    flaky = assess("task", plan, [before, before], [after, before])
    assert flaky.problems[0].startswith("flaky: equal runs of the solution differ in t")
    assert "the solution does not resolve it" in assess("task", plan, [before], [before]).problems[0]
