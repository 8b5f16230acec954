"""Tests of pods that are drained, evicted, preempted or lost with their node, and of pods that end by themselves."""

import pytest

from dgym.api import TREATMENTS, Treatment
from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState
from dgym_operator.controllers import CreatePod, Emit, PatchStatus, Plan
from dgym_operator.controllers.episode import decide
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    UP,
    condition,
    ended,
    ended_pod,
    in_,
    message,
    pod,
    ready_pod,
    report,
    running,
    status_after_attempt,
    the_condition,
    up,
    view,
    writes,
    written,
)

NEW_POD = [EndReason(reason) for reason, treatment in TREATMENTS.items() if treatment is Treatment.NEW_POD]
TARGET = condition("DisruptionTarget", reason="EvictionByEvictionAPI", message="drained")
DISRUPTED = {
    "drained": ended_pod(conditions=[TARGET]),
    "evicted by its queue": ended_pod(
        conditions=[condition("TerminationTarget", reason="WorkloadEvictedDueToPreempted", message="preempted")]
    ),
    "shut down": pod(phase="Failed", reason="Terminated", message="Pod was terminated in response to node shutdown."),
    "preempted": pod(phase="Failed", reason="Preempting", message="Preempted"),
    "low": pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
    "admission": pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource"),
    "silent": ready_pod(deleting=31),
}
OWN = {
    "gone": ended_pod(at=60),
    "deleted": ended_pod(at=60, deleting=20),
    "disk": pod(phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage exceeds the limit"),
    "killed": pod(1, up("sandbox"), ended("sidecar", 137, reason="OOMKilled", at=60), phase="Failed"),
}


@pytest.mark.parametrize("name", DISRUPTED)
def test_events_of_the_node_count_as_disruptions(name):
    status = status_after_attempt(view(running(), DISRUPTED[name], backoff_limit=0))
    assert (status.reason, status.failures, status.disruptions) == ("SandboxLost", 0, 1)


REFUSED = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="the sidecar refuses the token")


@pytest.mark.parametrize(
    ("status", "seen"),
    [(running(), {}), (None, {}), (running(), {"agent_pod": REFUSED})],
    ids=["served", "waiting", "refused"],
)
def test_a_pod_made_with_another_key_is_lost_without_fault(status, seen):
    replaced = ready_pod(key="old")
    lost = status_after_attempt(view(status, replaced, key_id="new", **seen))
    assert (lost.failures, lost.disruptions) == (0, 1)
    assert "key was replaced" in the_condition(lost, "SandboxReady").message


def test_an_outcome_takes_precedence_over_a_replaced_key():
    stored = report(AssignmentState.STORING)
    for seen in (
        *(
            view(running(), ready_pod(key="old"), agent_pod=report(state, reason=reason), key_id="new")
            for state, reason in (
                (AssignmentState.FINISHED, EndReason.RESOLVED),
                (AssignmentState.FAILED, EndReason.SETUP_FAILED),
            )
        ),
        view(running(), ready_pod(key="old"), agent_pod=stored, key_id="new"),
        view(running(), ready_pod(key="old"), agent_pod=None, key_id="new"),
        view(running(), ready_pod(key="old"), key_id=""),
        view(running(), ready_pod(key="new", proof="proof"), key_id="new"),
    ):
        assert not [each for each in decide(seen, NOW).actions if isinstance(each, PatchStatus) and not each.progress]
    status = written(decide(view(running(), ended_pod(message(), key="old"), key_id="new"), NOW))
    assert status.reason == "Resolved"


def test_a_disruption_is_written_down_while_it_shows_and_counts_once_the_pod_is_gone():
    drained = pod(1, *UP, conditions=[condition("Ready"), TARGET], phase="Running")
    plan = decide(view(running(), drained), NOW)
    status = written(plan)
    assert (status.disrupted_attempt, status.reason, status.pod_name) == (1, "Running", "e-1")
    assert [type(action) for action in plan.actions] == [PatchStatus, Emit]
    assert not plan.actions[0].progress
    assert not writes(decide(view(status, drained), NOW))
    terminating = pod(1, *UP, conditions=[TARGET], phase="Running", deleting=-5)
    assert written(decide(view(running(), terminating), NOW)).disrupted_attempt == 1
    assert decide(view(status, terminating), NOW) == Plan(requeue_after=35)

    lost = status_after_attempt(view(status, absent=frozenset({"e-1"}), backoff_limit=0))
    assert (lost.reason, lost.attempt, lost.failures, lost.disruptions) == ("SandboxLost", 1, 0, 1)
    assert "disrupted" in the_condition(lost, "SandboxReady").message
    # The next attempt has another pod.
    next_one = running(attempt=2, disrupted_attempt=1)
    lost = status_after_attempt(view(next_one, absent=frozenset({"e-2"})))
    assert (lost.failures, lost.disruptions) == (1, 0)


@pytest.mark.parametrize("reason", NEW_POD)
def test_a_failure_reported_for_a_disrupted_pod_counts_as_the_disruption(reason):
    failed = report(AssignmentState.FAILED, reason=reason, message="the sidecar does not answer", since=60)
    status = running(disrupted_attempt=1)
    for pods in ((), (ended_pod(at=60),), (ready_pod(age=100),)):
        given = view(status, *pods, agent_pod=failed, absent=frozenset({"e-1"}))
        lost = status_after_attempt(given)
        assert (lost.failures, lost.disruptions) == (0, 1)


def test_a_disruption_counts_when_the_pod_was_gone_before_it_was_decided_on():
    given = view(running(), absent=frozenset({"e-1"}), disrupted_attempt=1, backoff_limit=0)
    lost = status_after_attempt(given)
    assert (lost.failures, lost.disruptions) == (0, 1)


def test_a_pod_that_was_disrupted_and_gone_before_it_served_uses_up_its_attempt():
    lost = written(decide(view(None, disrupted_attempt=1, backoff_limit=0), NOW))
    assert (lost.attempt, lost.failures, lost.disruptions) == (1, 0, 1)
    due = view(lost, absent=frozenset({"e-1"}), disrupted_attempt=1, backoff_limit=0)
    assert writes(decide(due, in_(10))) == (CreatePod(name="e-2", attempt=2),)


def test_an_outcome_that_a_disrupted_pod_left_is_the_outcome():
    text = message(EndReason.RESOLVED, score=3, max_score=3)
    status = written(decide(view(running(disrupted_attempt=1), ended_pod(text, conditions=[TARGET])), NOW))
    assert (status.reason, status.disruptions) == ("Resolved", 0)


def test_disruptions_have_their_own_limit():
    often = running(attempt=11, disruptions=10)
    lost = pod(11, phase="Failed", reason="Terminated")
    assert the_condition(status_after_attempt(view(often, lost)), "Finished").reason == "SandboxLost"


@pytest.mark.parametrize("name", OWN)
def test_failures_of_only_the_pod_count_against_the_backoff_limit(name):
    status = status_after_attempt(view(running(), OWN[name]))
    assert (status.reason, status.failures, status.disruptions) == ("SandboxLost", 1, 0)


def test_a_node_that_is_lost_before_its_pod_shows_it_is_a_disruption():
    silent = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="no answer", since=60)
    ending = written(decide(view(running(), ready_pod(), agent_pod=silent), NOW))
    assert ending.ending.cause == "infrastructure"
    status = status_after_attempt(view(ending, ready_pod(deleting=31), agent_pod=silent))
    assert (status.failures, status.disruptions) == (0, 1)
