"""Tests of the score of a report."""

import pytest

from dgym.sandbox import EntrypointResult, Mode, RunResult, choose_mode
from dgym.sandbox import TestReport as Report
from dgym.session.scoring._score import ExpectedTests, expected_tests, list_paths, named_tests, nothing_ran, score_run


def result(outcomes=None, *, status=0, ended_by="exit", report=True, **fields):
    outcomes = outcomes or {}
    reported = Report(
        form=fields.pop("form", "pytest"),
        collected=fields.pop("collected", list(outcomes)),
        outcomes=outcomes,
        finished=fields.pop("finished", True),
        exit_status=fields.pop("announced", status),
        **fields,
    )
    run = RunResult(exit_status=status, ended_by=ended_by, output=b"")
    return EntrypointResult(run=run, report=reported if report else None)


@pytest.mark.parametrize(
    ("entrypoint", "named", "parser", "mode"),
    [
        ("python -m pytest", (), "auto", Mode.WHOLE_SUITE),
        ("python -m pytest", ("a",), "auto", Mode.NAMED_TESTS),
        ("python check.py", (), "auto", Mode.EXIT_STATUS),
        ("make test", ("a",), "auto", Mode.NAMED_TESTS),
        ("make test", (), "pytest", Mode.WHOLE_SUITE),
        ("python -m pytest", (), "exitStatus", Mode.EXIT_STATUS),
        ("python -m pytest", ("a",), "exitStatus", Mode.EXIT_STATUS),
    ],
)
def test_the_mode_depends_only_on_the_task(entrypoint, named, parser, mode):
    assert choose_mode(entrypoint, named, parser) is mode


def test_named_tests_count_one_each():
    scored = score_run(
        Mode.NAMED_TESTS,
        result({"a": "passed", "b": "failed", "other": "failed"}, status=1),
        named_tests(["a", "b", "c", "a"]),
        300,
    )
    assert (scored.score, scored.max_score, scored.resolved) == (1, 3, False)
    assert scored.tests == {"a": "passed", "b": "failed", "c": "missing"}
    assert scored.message == "1 of 3 tests passed; not collected: c"


def test_all_named_tests_resolve_although_others_fail():
    scored = score_run(Mode.NAMED_TESTS, result({"a": "passed", "other": "failed"}, status=1), named_tests(["a"]), 300)
    assert scored.resolved


@pytest.mark.parametrize("outcome", ["skipped", "xfailed", "error", "failed"])
def test_only_passed_tests_count_as_passed(outcome):
    assert not score_run(Mode.NAMED_TESTS, result({"a": outcome}), named_tests(["a"]), 300).resolved


def test_an_unexpected_pass_is_a_pass():
    assert score_run(Mode.NAMED_TESTS, result({"a": "xpassed"}), named_tests(["a"]), 300).resolved


@pytest.mark.parametrize(
    ("run", "reported"),
    [
        (result({"a": "passed"}, ended_by="timeout", status=-9), "did not end within 300 s"),
        (result({"a": "passed"}, ended_by="memory", status=-9), "too much memory"),
        (result({"a": "passed"}, finished=False), "before the run was over"),
        (result({"a": "passed"}, status=0, announced=1), "although the run ended with 1"),
        (result({"a": "passed"}, status=-11, announced=0), "signal 11"),
        (result({"a": "passed"}, tampering=["forged"]), "tampered: forged"),
        (result(report=False, ended_by="timeout"), "did not end"),
    ],
)
def test_an_invalid_run_scores_0(run, reported):
    for mode in Mode:
        scored = score_run(mode, run, named_tests(["a"]), 300)
        assert scored.score == 0
        assert scored.max_score == 1
        assert reported in scored.message
        assert "passed" not in scored.tests.values()


def test_exit_status_scoring_has_a_maximum_of_1():
    for status, good in ((0, True), (1, False), (5, False)):
        scored = score_run(Mode.EXIT_STATUS, result(form="python", status=status), ExpectedTests(), 300)
        assert (scored.resolved, scored.max_score, scored.tests) == (good, 1, {})


def test_the_suite_is_what_was_collected_and_not_skipped():
    expected = expected_tests(result({"a": "passed", "b": "failed", "s": "skipped", "x": "xfailed"}, status=1))
    assert expected.outcomes == {"a": "passed", "b": "failed", "x": "xfailed"}
    scored = score_run(
        Mode.WHOLE_SUITE, result({"a": "passed", "b": "passed", "x": "xfailed", "new": "failed"}), expected, 300
    )
    assert scored.resolved
    assert scored.max_score == 3


def test_deleting_or_skipping_tests_of_the_suite_gains_nothing():
    expected = expected_tests(result({"a": "passed", "b": "failed"}, status=1))
    for outcomes in ({"a": "passed"}, {"a": "passed", "b": "skipped"}, {"a": "passed", "b": "xfailed"}, {}):
        assert not score_run(Mode.WHOLE_SUITE, result(outcomes), expected, 300).resolved


def test_a_suite_without_tests_is_never_resolved():
    scored = score_run(Mode.WHOLE_SUITE, result({}), expected_tests(result({}, status=5)), 300)
    assert not scored.resolved
    assert scored.message == "no test counts (whole suite)"


def test_skipped_tests_of_a_suite_that_times_out_are_excluded():
    run = result({"a": "passed"}, collected=["a", "hangs", "later", "skipped"], finished=False, ended_by="timeout")
    marks = result({"skipped": "skipped"}, collected=["a", "hangs", "later", "skipped"])
    assert expected_tests(run, marks).outcomes == {"a": "passed", "hangs": "", "later": ""}


def test_files_that_cannot_be_collected_are_named():
    expected = expected_tests(result({"a": "passed"}, collection_errors=["broken.py"]))
    scored = score_run(
        Mode.WHOLE_SUITE, result({"a": "passed"}, collection_errors=["broken.py", "new.py"]), expected, 300
    )
    assert scored.notes == (
        "could not be collected on the untouched repository, so not counted: broken.py",
        "could not be collected: new.py",
    )


def test_when_nothing_ran_every_test_is_missing():
    scored = nothing_ran(Mode.NAMED_TESTS, named_tests(["a", "b"]), "the build failed")
    assert scored.tests == {"a": "missing", "b": "missing"}
    assert (scored.score, scored.max_score, scored.message) == (0, 2, "the build failed")
    assert nothing_ran(Mode.EXIT_STATUS, ExpectedTests(), "no").max_score == 1


def test_long_lists_of_paths_are_cut():
    assert list_paths([str(number) for number in range(12)]).endswith("9 and 2 more")
