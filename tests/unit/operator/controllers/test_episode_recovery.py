"""Tests of recovery: an agent pod looks for a stored outcome before an assigned attempt counts as lost."""

import msgspec
import pytest

from dgym.api import EndCause, EpisodeStatus
from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState
from dgym_operator.controllers import AgentPodView, DeletePod, LookUpPod
from dgym_operator.controllers.episode import agent_pod_request, assigned_status, decide
from tests.unit.operator.controllers.reconcile_builders import (
    AGENT,
    NOW,
    ago,
    between,
    ended_pod,
    in_,
    message,
    ready_pod,
    report,
    running,
    solved,
    status_after_attempt,
    the_condition,
    view,
    written,
)

DELETE = DeletePod(name="e-1", uid="pod-uid-1")
LOST = AgentPodView(lost_since=ago(60), lost="agent pod agents-0 is gone")
replace = msgspec.structs.replace


def recovering(pods=(), **seen):
    """Return the view of an attempt that was lost with its agent pod and that another agent pod recovers."""
    first = view(running(), *pods, agent_pod=LOST, absent=frozenset({"e-1"}), **seen)
    ending = replace(first, episode=replace(first.episode, status=written(decide(first, NOW))))
    request = agent_pod_request(ending, NOW)
    assert (request.cause, request.epoch) == ("Recover", 2)
    status = assigned_status(ending, request, "another", NOW)
    return replace(ending, episode=replace(ending.episode, status=status), agent_pod=AgentPodView())


def test_the_end_of_a_lost_attempt_is_recorded_before_anything_else():
    plan = decide(view(running(), ended_pod(at=60), agent_pod=LOST), NOW)
    status = written(plan)
    assert (status.reason, status.pod_name, status.assignment.epoch) == ("SandboxLost", "e-1", 1)
    assert (status.ending.cause, status.ending.reason, status.ending.since) == ("infrastructure", "SandboxLost", NOW)
    assert plan.actions[1:] == ()
    assert decide(view(status, ended_pod(at=60), agent_pod=LOST), NOW).actions == (DELETE,)
    disrupted = written(decide(view(running(disrupted_attempt=1), ended_pod(at=60), agent_pod=LOST), NOW))
    assert disrupted.ending.cause == EndCause.DISRUPTION


def test_a_stored_outcome_is_recovered():
    seen = recovering()
    status = seen.episode.status
    assert (status.assignment.mode, status.assignment.attempt, status.assignment.epoch) == ("recover", 1, 2)
    assert (status.epoch, status.pod_name) == (2, "e-1")
    assert not decide(seen, in_(100)).actions
    found = report(AssignmentState.FINISHED, epoch=2, reason=EndReason.RESOLVED, outcome=solved())
    finished = written(decide(replace(seen, agent_pod=found), in_(100)))
    assert the_condition(finished, "Resolved").status == "True"
    assert (finished.ending, finished.attempt) == (None, 1)


def test_another_attempt_follows_only_once_the_store_was_asked():
    nothing = report(AssignmentState.FAILED, epoch=2, reason=EndReason.SANDBOX_LOST)
    closed = written(decide(replace(recovering(), agent_pod=nothing), in_(1)))
    assert (closed.pod_name, closed.failures, closed.epoch, closed.assignment) == (None, 1, 2, None)
    again = agent_pod_request(view(closed, ready_pod(2)), in_(60))
    assert (again.epoch, again.cause) == (3, "SandboxReady")


@pytest.mark.parametrize(
    "answer",
    [
        AgentPodView(lost_since=in_(5), lost="agent pod agents-1 is gone"),
        report(AssignmentState.FAILED, epoch=2, reason=EndReason.INTERNAL_ERROR, since=-5),
    ],
    ids=["lost", "failed"],
)
def test_a_failed_recovery_is_retried_by_another_request(answer):
    seen = replace(recovering(), agent_pod=answer)
    assert not decide(seen, in_(6)).actions
    assert agent_pod_request(seen, in_(6)) is None
    assert agent_pod_request(seen, in_(15)).epoch == 3


def test_the_store_is_not_waited_for_without_end():
    seen = recovering()
    early = decide(seen, in_(899))
    assert (early.actions, early.requeue_after) == ((), 1)
    closed = written(decide(seen, in_(900)))
    assert (closed.reason, closed.failures) == ("SandboxLost", 1)
    assert closed.message.endswith("no agent pod could look for a stored result within 900 s")
    assert agent_pod_request(seen, in_(900)) is None


def test_an_agent_that_answers_may_show_an_outcome_in_its_next_report():
    serving = report(AssignmentState.RUNNING)
    first = view(running(), agent_pod=serving, absent=frozenset({"e-1"}))
    ending = replace(first, episode=replace(first.episode, status=written(decide(first, NOW))))
    assert agent_pod_request(ending, in_(9)) is None
    assert agent_pod_request(ending, in_(10)).cause == "Recover"
    # After a report that was requested after the end of the pod, the operator does not wait for another report.
    over = replace(ending, pods=(ended_pod(at=2),))
    for requested, cause in ((ago(2), None), (in_(1), "Recover")):
        request = agent_pod_request(replace(over, agent_pod=replace(serving, requested=requested)), in_(2))
        assert (request.cause if request is not None else None) == cause
    storing = replace(ending, agent_pod=report(AssignmentState.STORING))
    assert agent_pod_request(storing, in_(800)) is None
    assert not decide(storing, in_(800)).actions


def test_the_pods_last_message_is_read_before_an_agent_is_asked():
    failed = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="no answer", since=31)
    seen = view(running(), ready_pod(), agent_pod=failed)
    ending = written(decide(seen, NOW))
    assert ending.ending.message == "no answer"
    goes_on = view(ending, ready_pod(), agent_pod=failed)
    assert decide(goes_on, in_(10)).actions == (DELETE,)
    assert agent_pod_request(goes_on, NOW) is None
    found = written(decide(view(ending, ended_pod(message()), agent_pod=failed), NOW))
    assert the_condition(found, "Resolved").status == "True"


def test_a_failure_of_the_only_agent_pod_ends_the_attempt_without_recovery():
    failed = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="no answer")
    assert written(decide(view(running(), ended_pod(at=60), agent_pod=failed), NOW)).failures == 1
    # An earlier agent pod may have stored an outcome.
    second = report(AssignmentState.FAILED, epoch=2, reason=EndReason.SANDBOX_LOST, message="no answer")
    status = running(epoch=2, assignment={"losses": 1})
    assert written(decide(view(status, ended_pod(at=60), agent_pod=second), NOW)).ending is not None


def test_a_suspended_attempt_is_closed_after_its_outcome_was_looked_for():
    first = written(decide(view(running(), ready_pod(), suspend=True), NOW))
    assert (first.ending.cause, first.ending.reason, first.reason) == ("user", "Suspended", "Terminating")
    solved_late = written(decide(view(first, ended_pod(message()), suspend=True), NOW))
    assert the_condition(solved_late, "Resolved").status == "True"
    suspended = status_after_attempt(view(running(), ready_pod(), suspend=True))
    assert (suspended.failures, suspended.disruptions, suspended.reason) == (0, 0, "Suspended")


def test_epochs_go_on_over_attempts():
    assert agent_pod_request(view(EpisodeStatus(), ready_pod()), NOW).epoch == 1
    assert agent_pod_request(view(between(epoch=7), ready_pod(2)), NOW).epoch == 8
    status = assigned_status(view(None, ready_pod()), agent_pod_request(view(None, ready_pod()), NOW), AGENT, NOW)
    assert (status.epoch, status.assignment.epoch, status.assignment.mode) == (1, 1, "run")
    assert agent_pod_request(view(running(epoch=4), ready_pod(), agent_pod=LOST), NOW).epoch == 5


def test_a_pod_that_took_the_name_of_the_assigned_one_is_another():
    status = assigned_status(view(None, ready_pod()), agent_pod_request(view(None, ready_pod()), NOW), AGENT, NOW)
    assert (status.pod_ref.name, status.pod_ref.uid) == ("e-1", "pod-uid-1")
    pod = ready_pod()
    other = replace(pod, metadata=replace(pod.metadata, uid="pod-uid-2"))
    plan = decide(view(status, other), NOW)
    assert plan.actions == (DeletePod(name="e-1", uid="pod-uid-2"), LookUpPod(name="e-1", uid="pod-uid-1"))
    gone = written(decide(view(status, other, agent_pod=LOST, absent=frozenset({"e-1"})), NOW))
    assert gone.ending.message == "pod e-1 is gone and left no result"
