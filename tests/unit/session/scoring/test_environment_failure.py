"""Tests of the cause when no test of the untouched repository ran: the environment or the repository."""

import pytest

from dgym.sandbox import EntrypointResult, Mode, RunResult
from dgym.sandbox import TestReport as Report
from dgym.session.scoring._score import environment_failure, eval_may_not_have_run
from dgym.wire import Observation, Score

PATHS = ("calc.py", "package/__init__.py", "test_calc.py", "conftest.py")
MISSING = "E   ModuleNotFoundError: No module named 'absent'"

CRASH = 'Traceback (most recent call last):\n  File "/usr/lib/python3/site-packages/_pytest/main.py", line 9, in wrap'


def why(text, *, status=2, mode=Mode.NAMED_TESTS, form="pytest", outcomes=None, declared="", ended_by="exit", **more):
    report = Report(form=form, outcomes=outcomes or {}, finished=True, exit_status=status)
    run = RunResult(exit_status=status, ended_by=ended_by, output=text.encode())
    return environment_failure(
        mode,
        "pytest -q",
        EntrypointResult(run=run, report=report),
        workspace="/workspace",
        paths=PATHS,
        is_fixed=lambda path: path in ("test_calc.py", "conftest.py"),
        declared=declared,
        **more,
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"conftest.py:1: in <module>\n    import absent\n{MISSING}", "No module named 'absent'"),
        (f"\x1b[31m/workspace/test_calc.py:1: in <module>\n{MISSING}\x1b[0m", "No module named 'absent'"),
        (f"/usr/lib/python3/site-packages/other.py:3: in <module>\n{MISSING}", "No module named 'absent'"),
        ("ImportError: Error importing plugin \"absent\": No module named 'absent'", "importing plugin"),
        ("ERROR: usage: pytest\nerror: unrecognized arguments: --cov", "--cov"),
        ("ERROR: Missing required plugins: pytest-absent", "pytest-absent"),
        (f"{CRASH}\nTypeError: required field missing from alias", "TypeError: required field missing from alias"),
        ("no tests ran in 0.01s", "no test was collected"),
    ],
)
def test_missing_dependencies_are_failures_of_the_environment(text, cause):
    failure = why(text)
    assert failure.startswith("the environment cannot run the tests: 'pytest -q' exited with status 2")
    assert cause in failure.splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        f'{CRASH}\n  File "/workspace/conftest.py", line 1, in <module>\nTypeError: a bug',
        f"{CRASH}\ncalc.py:1\nE   SyntaxError: expected ':'",
        f"{CRASH}\nValueError: /workspace/settings.json is empty",
        "calc.py:1\nE   SyntaxError: expected ':'",
        "conftest.py:1: in <module>\nE   ImportError: cannot import name 'absent' from 'calc' (/workspace/calc.py)",
        "test_calc.py:1: in <module>\nE   ModuleNotFoundError: No module named 'package.absent'",
        f"test_calc.py:1: in <module>\n    import calc\ncalc.py:1: in <module>\n    import absent\n{MISSING}",
        f"conftest.py:1: in <module>\n{MISSING}\n\ncalc.py:1\nE   NameError: name 'x' is not defined",
    ],
)
def test_errors_of_the_repositorys_own_code_are_not_failures_of_the_environment(text):
    assert why(text) is None


def test_a_dependency_that_the_repository_declares_is_the_environments():
    text = f"calc.py:1: in <module>\n{MISSING}"
    assert why(text, declared="dependencies = ['Absent>=2']") is not None


@pytest.mark.parametrize(
    ("module", "declared"),
    [("yaml", "PyYAML"), ("dateutil", "python-dateutil"), ("PIL", "Pillow>=9"), ("jwt", "PyJWT")],
)
def test_a_declared_distribution_may_be_called_otherwise_than_its_module(module, declared):
    text = f"calc.py:1: in <module>\nE   ModuleNotFoundError: No module named '{module}'"
    assert why(text, declared=declared) is not None
    assert why(text, declared="unrelated") is None


def test_tests_that_scoring_adds_may_be_missing():
    assert why("no tests ran in 0.01s", status=5, tests_follow=True) is None
    assert why("ERROR: file or directory not found: tests/test_new.py", status=4, tests_follow=True) is None
    assert why(f"conftest.py:1: in <module>\n{MISSING}", tests_follow=True) is not None
    assert why("ERROR: Missing required plugins: pytest-absent", tests_follow=True) is not None


def test_coroutines_without_a_plugin_are_environment_failures_unless_others_failed():
    section = "____ test_{} ____\nasync def functions are not natively supported.\n"
    outcomes = {"test_calc.py::test_a": "failed", "test_calc.py::test_b": "failed"}
    text = section.format("a") + section.format("b")
    failure = why(text, status=1, outcomes=outcomes, declared="pytest-asyncio")
    assert failure.endswith("install pytest-asyncio")
    assert why(section.format("a") + "____ test_b ____\nassert 1 == 2", status=1, outcomes=outcomes) is None
    assert why(text, status=1, outcomes={**outcomes, "test_calc.py::test_c": "passed"}) is None
    skipped = "PytestUnhandledCoroutineWarning: async def functions are not natively supported and have been skipped."
    assert why(skipped, status=0, outcomes={"test_calc.py::test_a": "skipped"}) is not None


def test_runs_with_outcomes_or_a_timeout_are_not_failures_of_the_environment():
    assert why(MISSING, outcomes={"test_calc.py::test_add": "failed"}) is None
    assert why(MISSING, ended_by="timeout") is None


def test_an_exit_status_is_doubtful_where_a_shell_found_no_program():
    text = "/bin/bash: line 1: ./absent: No such file or directory"
    assert "./absent" in why(text, mode=Mode.EXIT_STATUS, form="shell", status=127).splitlines()[-1]
    assert why(text, mode=Mode.EXIT_STATUS, form="python", status=127) is None
    assert why(text, mode=Mode.EXIT_STATUS, form="shell", status=1) is None


def test_an_eval_in_which_nothing_ran_is_a_reason_for_doubt():
    def observe(status, passed, maximum=2):
        return Observation(text="", exit_status=status, score=Score(score=passed, max_score=maximum))

    assert all(eval_may_not_have_run(observe(status, 0)) for status in (2, 4, 5, 127))
    assert not any(eval_may_not_have_run(observe(*seen)) for seen in ((0, 2), (1, 0), (2, 1)))
    assert not eval_may_not_have_run(Observation(text="", exit_status=127))
