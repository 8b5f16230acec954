"""Tests of attempts that the operator ends.

The operator records the end, asks the sidecar, deletes the pod and reads its termination message.
"""

from typing import Any

import msgspec
import pytest

from dgym.wire import EndReason, calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.calls import Call
from dgym.wire.http import AttemptState, TerminatedResponse
from dgym_operator.controllers import AgentPodView, CallSidecar, DeletePod, Plan, SidecarView
from dgym_operator.controllers.episode import agent_pod_request, decide
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    ago,
    ended,
    ended_pod,
    in_,
    message,
    pod,
    ready_pod,
    report,
    running,
    solved,
    status_after_attempt,
    termination_text,
    the_condition,
    up,
    view,
    writes,
    written,
)

replace = msgspec.structs.replace
SERVED_TOO_LONG = 3600 + 600 + 300 + 60
LOST = AgentPodView(lost_since=ago(1), lost="agent pod agents-0 is gone")
DELETE = DeletePod(name="e-1", uid="pod-uid-1")
EXPIRED = SidecarView(
    state=AttemptState(elapsed_seconds=3600, remaining_seconds=0), requested=NOW, expired_since=ago(600 + 300 + 60)
)
DECIDED = {
    "backstop": (running(assigned=SERVED_TOO_LONG), {"sidecar": EXPIRED}, "DeadlineExceeded"),
    "without an agent at the backstop": (
        running(assigned=SERVED_TOO_LONG),
        {"agent_pod": AgentPodView(lost_since=ago(SERVED_TOO_LONG), lost="agent pod agents-0 is gone")},
        "AgentPodLost",
    ),
    "agents lost": (running(epoch=11, assignment={"losses": 10}), {"agent_pod": LOST}, "AgentPodLost"),
    "model failed": (
        running(epoch=4, assignment={"failures": 3}),
        {"agent_pod": report(AssignmentState.FAILED, epoch=4, reason=EndReason.MODEL_ERROR, message="429")},
        "ModelError",
    ),
    "cancelled": (running(), {"cancel": True, "agent_pod": LOST}, "Cancelled"),
}


def called(call: Call[Any, Any]) -> CallSidecar:
    return CallSidecar(call=call, url="http://10.0.0.7:8080", attempt=1)


def sidecar_calls(plan: Plan) -> list[Call[Any, Any]]:
    return [action.call for action in plan.actions if isinstance(action, CallSidecar)]


def with_sidecar(seen, at=NOW, **state):
    """Return the view after the sidecar has answered with its clocks."""
    return replace(seen, sidecar=seen.sidecar.after_state(AttemptState(**state), at))


@pytest.mark.parametrize("name", DECIDED)
def test_the_operator_reads_the_pods_last_message_before_it_ends_an_episode(name):
    status, seen, reason = DECIDED[name]
    plan = decide(view(status, ready_pod(), **seen), NOW)

    decided = written(plan)
    assert (decided.reason, decided.ending.reason, decided.pod_name) == ("Terminating", reason, "e-1")
    assert decided.ending.cause == {"DeadlineExceeded": "agent", "Cancelled": "user"}.get(reason, "infrastructure")
    assert the_condition(decided, "Finished") is None
    assert len(writes(plan)) == 1

    # The deletion may have failed, or the pod may end late. Changes by the user have no effect until then.
    late = in_(SERVED_TOO_LONG)
    assert decide(view(decided, ready_pod(), **seen), late).actions == (DELETE,)
    assert decide(view(decided, ready_pod(deleting=-5), **{**seen, "suspend": True}), NOW) == Plan(requeue_after=35)
    assert agent_pod_request(view(decided, ready_pod(), **seen), in_(1)) is None

    solved_late = written(decide(view(decided, ended_pod(message(), deleting=-5), **seen), in_(2)))
    assert (the_condition(solved_late, "Resolved").status, solved_late.ending) == ("True", None)

    for pods in ((ended_pod(deleting=-5, at=60),), (ready_pod(deleting=31),), ()):
        absent = frozenset() if pods else frozenset({"e-1"})
        silent = status_after_attempt(view(decided, *pods, absent=absent, **seen))
        finished = the_condition(silent, "Finished")
        assert (finished.reason, finished.message) == (reason, decided.ending.message)
        assert silent.outcome.resolved is False


def test_the_sidecar_is_asked_for_its_clocks_before_its_pod_is_deleted():
    suspended = written(decide(view(running(), ready_pod(), suspend=True), NOW))
    seen = view(suspended, ready_pod(), suspend=True)
    plan = decide(seen, in_(1))
    assert (plan.actions, plan.requeue_after) == ((called(calls.STATE),), 5)
    # An earlier answer does not count.
    assert decide(with_sidecar(seen, ago(1)), in_(1)) == plan
    assert decide(with_sidecar(seen, in_(1)), in_(1)).actions == (DELETE,)
    assert decide(seen, in_(10)).actions == (DELETE,)


@pytest.mark.parametrize("asked", [{"suspend": True}, {"agent_pod": LOST}], ids=["suspended", "agents lost"])
def test_the_operator_waits_while_the_sidecar_reports_scoring(asked):
    """The agent pod may not have reported yet that it closes the episode, or it may be lost since then."""
    before = running(epoch=11, assignment={"losses": 10})
    status = written(decide(view(before, ready_pod(), **asked), NOW))
    closing = pod(1, ended("sandbox", 0), up("verifier"), up("sidecar"), phase="Running")
    seen = with_sidecar(view(status, closing, **asked), in_(1), ending=True)
    seen = replace(seen, sidecar=seen.sidecar.after_terminated(TerminatedResponse(expected=True)))
    plan = decide(seen, in_(900))
    assert DELETE not in plan.actions
    assert {calls.TERMINATED, calls.STATE} <= set(sidecar_calls(plan))
    assert decide(with_sidecar(seen, in_(900), ending=True, ended=True), in_(900)).actions == (DELETE,)
    assert decide(seen, in_(600 + 300 + 60)).actions == (DELETE,)


@pytest.mark.parametrize(("asked", "seconds"), [({"suspend": True}, 10), ({"cancel": True}, 960)])
def test_the_address_of_an_assigned_pod_is_waited_for_within_the_time_for_an_answer(asked, seconds):
    """The list of pods of a new leader may be older than the episode."""
    status = written(decide(view(running(), ready_pod(), **asked), NOW))
    unreachable = view(status, ready_pod(pod_ip=""), **asked)
    plan = decide(unreachable, in_(1))
    assert (plan.actions, plan.requeue_after) == ((), seconds - 1)
    assert decide(unreachable, in_(seconds)).actions == (DELETE,)


def test_a_pod_that_cannot_answer_is_not_asked():
    status = written(decide(view(running(), ready_pod(), suspend=True), NOW))
    starting = view(replace(status, assignment=None), ready_pod(pod_ip=""), suspend=True)
    assert decide(starting, in_(1)).actions == (DELETE,)
    over = ended_pod(at=60)
    assert decide(view(status, over, suspend=True), in_(1)).actions == (DELETE,)


def test_the_sidecar_of_a_sandbox_that_has_ended_is_asked_under_which_step_it_has():
    status = written(decide(view(running(), ready_pod(), suspend=True), NOW))
    dead = pod(1, ended("sandbox", 137), up("sidecar"))
    seen = with_sidecar(view(status, dead, suspend=True))
    assert decide(seen, in_(1)).actions == (called(calls.TERMINATED),)
    knows = TerminatedResponse(expected=False, poisoned_step=3, known=True)
    known = replace(seen, sidecar=seen.sidecar.after_terminated(knows))
    assert decide(known, in_(1)).actions == (DELETE,)


def test_a_cancelled_attempt_is_scored_before_its_pod_is_deleted():
    status = written(decide(view(running(), ready_pod(), agent_pod=LOST, cancel=True), NOW))
    seen = view(status, ready_pod(), agent_pod=LOST, cancel=True)
    assert sidecar_calls(decide(seen, in_(900))) == [calls.PAUSE, calls.STATE, calls.CANCEL]
    scoring = view(status, pod(1, ended("sandbox", 137), up("verifier"), up("sidecar")), cancel=True)
    assert sidecar_calls(decide(scoring, in_(900))) == [calls.TERMINATED, calls.CANCEL]
    # The pod is deleted when the time limit of scoring has passed.
    assert decide(scoring, in_(600 + 300 + 60)).actions == (DELETE,)


def test_a_cancelled_attempt_whose_sandbox_has_died_has_nothing_to_score():
    status = written(decide(view(running(), ready_pod(), cancel=True), NOW))
    died = SidecarView(terminated=TerminatedResponse(expected=False, known=True))
    dead = view(status, pod(1, ended("sandbox", 137), up("sidecar")), sidecar=died, cancel=True)
    assert decide(dead, in_(1)).actions == (DELETE,)


def test_the_agent_of_a_cancelled_attempt_stores_its_outcome():
    serving = report(AssignmentState.RUNNING)
    status = written(decide(view(running(), ready_pod(), agent_pod=serving, cancel=True), NOW))
    ended_at = SidecarView(cancelled_since=in_(3))
    seen = view(status, ready_pod(), agent_pod=serving, sidecar=ended_at, cancel=True)
    # The agent notices the cancellation at its next call.
    assert DELETE not in decide(seen, in_(4)).actions
    assert decide(seen, in_(123)).actions == (DELETE,)
    # The agent pod may not have reported the assignment yet.
    for agent in (AgentPodView(), None):
        assert DELETE not in decide(replace(seen, agent_pod=agent), in_(4)).actions
    for state in (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE):
        storing = replace(seen, agent_pod=report(state))
        assert DELETE not in decide(storing, in_(90_000)).actions
    away = report(AssignmentState.STORE_UNAVAILABLE, since=10, message="No space left on device")
    assert written(decide(replace(seen, agent_pod=away), in_(4))).reason == "ResultStoreUnavailable"
    done = report(AssignmentState.FINISHED, reason=EndReason.CANCELLED, outcome=solved())
    for agent in (LOST, done):
        assert decide(replace(seen, agent_pod=agent), in_(4)).actions == (DELETE,)


def test_an_outcome_that_is_being_made_is_waited_for_when_the_user_cancels():
    for agent in (report(AssignmentState.CLOSING), report(AssignmentState.STORING), None):
        plan = decide(view(running(), ready_pod(), agent_pod=agent, cancel=True), NOW)
        assert not [action for action in writes(plan) if action.__class__.__name__ == "PatchStatus"]


def test_a_cancelled_attempt_without_an_outcome_is_not_scored():
    status = written(decide(view(running(), ready_pod(), cancel=True), NOW))
    silent = status_after_attempt(view(status, ended_pod(termination_text(), at=60), cancel=True))
    assert (the_condition(silent, "Finished").reason, the_condition(silent, "Resolved").reason) == (
        "Cancelled",
        "NotScored",
    )
    assert (silent.failures, silent.attempt) == (0, 1)
