"""Tests of the health of a task, derived from runs with the empty patch and with the gold patch."""

import pytest

from dgym.benchmarks.datasets import HealthRun, TaskHealth, add_health, assess_health, read_health

GOOD = HealthRun(reason="Resolved", resolved=True, score=2, tests={"a": "passed", "b": "passed"})
BAD = HealthRun(reason="Unresolved", score=1, tests={"a": "failed", "b": "passed"}, message="a failed")
OTHER = HealthRun(reason="Unresolved", score=1, tests={"a": "passed", "b": "failed"}, message="b failed")


def ended(reason):
    return HealthRun(reason=reason, message="why")


@pytest.mark.parametrize(
    ("empty", "gold", "state", "message"),
    [
        ([BAD, BAD], [GOOD, GOOD], "Healthy", ""),
        ([BAD, BAD], [], "Healthy", ""),
        ([BAD, BAD], [GOOD, BAD], "Flaky", "equal runs of the solution differ in a"),
        ([BAD, OTHER], [GOOD, GOOD], "Flaky", "equal runs of the untouched repository differ in a, b"),
        ([BAD, BAD], [BAD, OTHER], "Broken", "the solution does not resolve it: a failed; equal runs of the solution"),
        ([GOOD, GOOD], [GOOD, GOOD], "Broken", "the untouched repository passes"),
        ([GOOD, BAD], [GOOD, GOOD], "Flaky", "equal runs of the untouched repository differ in a"),
        ([ended("ImagePullFailed"), BAD], [GOOD, GOOD], "Broken", "ImagePullFailed: why"),
        ([BAD, BAD], [ended("AgentPodLost"), ended("SetupFailed")], "Broken", "SetupFailed: why"),
        ([BAD, BAD], [GOOD, ended("SandboxLost")], "NotChecked", "SandboxLost: why"),
        ([BAD, BAD], [ended("Cancelled"), BAD], "NotChecked", "Cancelled: why"),
        ([BAD, BAD], [GOOD, ended("Unschedulable")], "NotChecked", "Unschedulable: why"),
        ([], [], "NotChecked", "no episode was run"),
    ],
)
def test_health(empty, gold, state, message):
    found = assess_health("x", empty, gold)
    assert (found.state, found.message[: len(message)]) == (state, message)


def test_runs_without_tests_are_compared_by_their_outcomes():
    runs = [HealthRun(reason="Resolved", resolved=True, message="fine"), HealthRun(reason="Unresolved", message="not")]
    found = assess_health("x", [BAD, BAD], runs)
    assert (found.state, found.message) == ("Flaky", "equal runs of the solution end differently: fine; not")


def test_tasks_that_were_not_checked_are_not_stored(tmp_path):
    file = tmp_path / "health.json"
    add_health(file, [TaskHealth(instance="a", state="Broken"), TaskHealth(instance="b", state="Healthy")])
    add_health(file, [TaskHealth(instance="a", state="NotChecked"), TaskHealth(instance="c", state="Flaky")])
    assert {name: one.state for name, one in read_health(file).items()} == {"b": "Healthy", "c": "Flaky"}
