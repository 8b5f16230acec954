"""Tests of the report reader: the records that count, the signs of tampering, and arbitrary bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.sandbox import EntrypointResult, RunResult, mentions_pytest, parse_report

TOKEN = "t0ken"


def lines(*records, token=TOKEN):
    return b"".join(f"{token} {json.dumps(record)}\n".encode() for record in records)


def completed_run(*tests):
    return lines(
        {"kind": "form", "form": "pytest"},
        {"kind": "start"},
        {"kind": "collected", "ids": [identifier for identifier, _ in tests]},
        *({"kind": "test", "id": identifier, "outcome": outcome} for identifier, outcome in tests),
        {"kind": "end"},
        {"kind": "status", "status": 0},
    )


def test_an_empty_report_is_none():
    assert parse_report(b"", TOKEN) is None
    assert parse_report(b"\n\n", TOKEN) is None


def test_a_complete_run():
    report = parse_report(completed_run(("a.py::x", "passed"), ("a.py::y", "failed")), TOKEN)
    assert report.collected == ["a.py::x", "a.py::y"]
    assert report.outcomes == {"a.py::x": "passed", "a.py::y": "failed"}
    assert (report.form, report.finished, report.exit_status, report.tampering) == ("pytest", True, 0, [])


def test_lines_without_the_token_never_count():
    forged = lines({"kind": "test", "id": "a.py::x", "outcome": "passed"}, token="guess")
    report = parse_report(completed_run(("a.py::x", "failed")) + forged, TOKEN)
    assert report.outcomes == {"a.py::x": "failed"}
    assert report.tampering == ["something other than the test run wrote to its report"]


@pytest.mark.parametrize("order", [("passed", "failed"), ("failed", "passed")])
def test_the_worse_of_two_outcomes_wins(order):
    report = parse_report(completed_run(*(("a.py::x", outcome) for outcome in order)), TOKEN)
    assert report.outcomes == {"a.py::x": "failed"}


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "test", "id": "a", "outcome": "splendid"},
        {"kind": "test", "id": "a"},
        {"kind": "form", "form": "other"},
        {"kind": "__class__"},
        {"kind": "status", "status": "zero"},
        {"kind": "collected", "ids": 3},
        {},
        [],
    ],
)
def test_malformed_records_are_noted_and_change_nothing(record):
    report = parse_report(completed_run(("a.py::x", "passed")) + lines(record), TOKEN)
    assert report.tampering == ["the report has a record that cannot be read"]
    assert report.outcomes == {"a.py::x": "passed"}


def test_a_session_without_an_end_is_not_finished():
    report = parse_report(completed_run() + lines({"kind": "start"}), TOKEN)
    assert not report.finished


def test_a_pytest_run_without_a_status_is_not_finished_but_a_shell_is():
    for form, finished in (("pytest", False), ("python", False), ("shell", True)):
        report = parse_report(lines({"kind": "form", "form": form}), TOKEN)
        assert report.finished is finished


def test_an_abnormal_end_is_not_finished_and_has_the_reason():
    report = parse_report(
        lines({"kind": "form", "form": "python"}, {"kind": "status", "status": 0, "abnormal": "left early"}), TOKEN
    )
    assert not report.finished
    assert report.tampering == ["left early"]


def test_only_so_many_signs_of_tampering_are_kept():
    records = [{"kind": "tampering", "why": f"{number}" * 1000} for number in range(100)]
    report = parse_report(lines(*records), TOKEN)
    assert len(report.tampering) == 20
    assert max(map(len, report.tampering)) <= 500


@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda data: b"t0ken " + data))))
def test_no_bytes_break_the_reader(parts):
    report = parse_report(b"\n".join(parts), TOKEN)
    assert report is None or report.outcomes == {} or all(isinstance(key, str) for key in report.outcomes)


@pytest.mark.parametrize(
    ("status", "ended_by", "completed"),
    [(0, "exit", True), (1, "exit", False), (-9, "exit", False), (0, "timeout", False), (0, "memory", False)],
)
def test_a_run_completes_only_with_the_status_it_announced(status, ended_by, completed):
    run = RunResult(exit_status=status, ended_by=ended_by, output=b"")
    result = EntrypointResult(run=run, report=parse_report(completed_run(("a.py::x", "passed")), TOKEN))
    assert result.completed is completed


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [
        ("python -m pytest -q", True),
        ("pytest tests", True),
        (".venv/bin/pytest", True),
        ("cd x && PYTHONPATH=. py.test", True),
        ("python run_pytest.py", False),
        ("python check.py", False),
        ("make pytest-all", False),
        ("python -m unittest", False),
    ],
)
def test_entrypoints_that_name_pytest(entrypoint, expected):
    assert mentions_pytest(entrypoint) is expected


@pytest.mark.parametrize(
    ("outcomes", "status", "fragment"),
    [
        ({"a": "passed", "b": "skipped", "c": "xfailed"}, 0, []),
        ({"a": "failed"}, 1, []),
        ({}, 5, []),
        ({"a": "passed"}, 1, ["pytest itself exited with status 1 although no test failed"]),
        ({"a": "failed"}, 0, ["pytest itself exited with status 0 although a failed"]),
        ({"a": "passed", "b": None}, 0, ["pytest itself exited with status 0 although b reported no outcome"]),
    ],
)
@pytest.mark.parametrize("form", ["pytest", "shell"])
def test_a_count_that_contradicts_the_exit_status_is_named(outcomes, status, fragment, form):
    tests = ({"kind": "test", "id": test, "outcome": outcome} for test, outcome in outcomes.items() if outcome)
    collected = {"kind": "collected", "ids": list(outcomes)}
    ends = [{"kind": "end", "status": status}, *([{"kind": "status", "status": status}] if form == "pytest" else [])]
    report = parse_report(lines({"kind": "form", "form": form}, {"kind": "start"}, collected, *tests, *ends), TOKEN)
    assert report.disagreements() == fragment


def test_a_test_that_counts_as_something_else_is_named():
    overruled = {"kind": "overruled", "id": "a.py::x", "outcome": "passed"}
    report = parse_report(completed_run(("a.py::x", "skipped")) + lines(overruled), TOKEN)
    assert report.disagreements() == ["pytest itself reports a.py::x as passed, it counts as skipped"]
