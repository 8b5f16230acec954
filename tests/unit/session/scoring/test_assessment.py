"""Tests of the assessment of a task from runs of its tests."""

import msgspec

from dgym.sandbox import EntrypointResult, RunResult
from dgym.sandbox import TestReport as Report
from dgym.session.scoring._assessment import assess
from tests.fakes.plans import make_plan

PYTEST = "python -m pytest -q"
BEFORE = {"t::bug": "failed", "t::fine": "passed", "t::skip": "skipped"}
AFTER = {**BEFORE, "t::bug": "passed"}


def run(outcomes=None, *, status=1, form="pytest"):
    outcomes = outcomes or {}
    report = Report(form=form, collected=list(outcomes), outcomes=outcomes, finished=True, exit_status=status)
    return EntrypointResult(run=RunResult(exit_status=status, ended_by="exit", output=b""), report=report)


def check(before, after=(), entrypoint=PYTEST, **plan):
    return assess("task", make_plan(entrypoint, **plan), before, after)


def test_a_valid_task_has_its_tests_listed_by_outcome():
    plan = {"fail_to_pass": ("t::bug",), "pass_to_pass": ("t::fine",)}
    found = check([run(BEFORE)] * 2, [run(AFTER)] * 2, **plan)
    assert (found.problems, found.fail_to_pass, found.pass_to_pass) == ((), ("t::bug",), ("t::fine",))
    unsolved = check([run(BEFORE)] * 2)
    assert (unsolved.problems, unsolved.fail_to_pass, unsolved.pass_to_pass) == ((), ("t::bug",), ("t::fine",))


def test_a_task_that_passes_already_is_a_problem_in_every_mode():
    for found in (
        check([run({"t::fine": "passed"}, status=0)] * 2),
        check([run(BEFORE)], fail_to_pass=("t::fine",)),
        check([run(status=0, form="python")], entrypoint="python check.py"),
    ):
        assert found.passes
        assert found.problems[0].startswith("an empty patch resolves this task")


def test_names_that_are_wrong_are_problems():
    plan = {"fail_to_pass": ("t::fine", "t::bug", "t::bgu"), "pass_to_pass": ("t::skip",)}
    assert check([run(BEFORE)], **plan).problems == (
        "unknown test ids: t::bgu",
        "in failToPass, and passes on the untouched repository: t::fine",
        "in passToPass, and does not pass on the untouched repository: t::skip",
    )


def test_tests_that_differ_between_equal_runs_are_flaky_and_not_listed():
    found = check([run(BEFORE), run({**BEFORE, "t::fine": "failed"})])
    assert found.problems == ("flaky: equal runs of the untouched repository differ in t::fine",)
    assert (found.fail_to_pass, found.pass_to_pass) == (("t::bug",), ())
    statuses = [run(status=status, form="python") for status in (0, 1)]
    (problem,) = check(statuses, entrypoint="python check.py").problems
    assert problem.startswith("flaky: equal runs of the untouched repository end differently")


def test_a_suite_that_does_not_end_is_a_problem_unless_tests_are_named():
    slow = run(BEFORE)
    slow = msgspec.structs.replace(slow, run=msgspec.structs.replace(slow.run, ended_by="timeout"))
    (problem,) = check([slow]).problems
    assert "raise entrypointTimeoutSeconds" in problem
    assert check([slow], fail_to_pass=("t::bug",)).problems == ()


def test_a_solution_that_does_not_resolve_the_task_is_a_problem():
    found = check([run(BEFORE)], [run(BEFORE)], fail_to_pass=("t::bug",))
    assert found.problems == ("the solution does not resolve it: 0 of 1 tests passed",)
    assert found.fail_to_pass == ()
