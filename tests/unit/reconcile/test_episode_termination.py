"""Attempts that the operator ends: decided first, then the pod's last message is read, and only then is it the end."""

import pytest

from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState
from dgym.wire.http import Path
from dgym_operator.controllers import AgentView, CallSidecar, DeletePod, Plan
from dgym_operator.controllers.episode import agent_request, decide
from tests.unit.reconcile.reconcile_builders import (
    NOW,
    ago,
    concluded,
    ended,
    ended_pod,
    in_,
    message,
    pod,
    ready_pod,
    report,
    running,
    the_condition,
    up,
    view,
    writes,
    written,
)

SERVED_TOO_LONG = 3600 + 600 + 300 + 60
DECIDED = {
    "backstop": (running(assigned=SERVED_TOO_LONG), {}, "DeadlineExceeded"),
    "without an agent at the backstop": (
        running(assigned=SERVED_TOO_LONG),
        {"agent": AgentView(lost_since=ago(SERVED_TOO_LONG), lost="agent pod agents-0 is gone")},
        "AgentLost",
    ),
    "cancelled at the backstop": (running(assigned=SERVED_TOO_LONG), {"cancel": True}, "Cancelled"),
    "agents lost": (running(epoch=11, assignment={"losses": 10}), {"agent": AgentView(lost_since=ago(1))}, "AgentLost"),
    "cancelled without an agent": (
        running(),
        {"agent": AgentView(lost_since=ago(1)), "cancel": True, "cancelled": True},
        "Cancelled",
    ),
    "model failed": (
        running(epoch=4, assignment={"failures": 3}),
        {"agent": report(AssignmentState.FAILED, epoch=4, reason=EndReason.MODEL_ERROR, message="429")},
        "ModelError",
    ),
}


@pytest.mark.parametrize("name", DECIDED)
def test_the_operator_reads_the_pods_last_message_before_it_ends_an_episode(name):
    status, seen, reason = DECIDED[name]
    plan = decide(view(status, ready_pod(), **seen), NOW)

    decided = written(plan)
    assert (decided.reason, decided.ending.reason, decided.pod_name) == ("Terminating", reason, "e-1")
    assert the_condition(decided, "Finished") is None
    assert writes(plan)[1:] == (DeletePod(name="e-1", uid="pod-uid-1"),)

    # The delete may have failed; the pod may take its time; what the user changes meanwhile changes nothing.
    assert decide(view(decided, ready_pod(), **seen), in_(1)).actions == writes(plan)[1:]
    assert decide(view(decided, ready_pod(deleting=-5), **{**seen, "suspend": True}), NOW) == Plan(requeue_after=35)
    assert agent_request(view(decided, ready_pod(), **seen), in_(1)) is None

    solved_late = written(decide(view(decided, ended_pod(message(), deleting=-5), **seen), in_(2)))
    assert (the_condition(solved_late, "Resolved").status, solved_late.ending) == ("True", None)

    for pods in ((ended_pod(deleting=-5, at=60),), (ready_pod(deleting=31),), ()):
        absent = frozenset() if pods else frozenset({"e-1"})
        silent = concluded(view(decided, *pods, absent=absent, **seen))
        finished = the_condition(silent, "Finished")
        assert (finished.reason, finished.message) == (reason, decided.ending.message)
        assert silent.outcome.resolved is False


def test_a_cancelled_attempt_whose_agent_is_lost_is_scored_before_its_pod_goes():
    lost = AgentView(lost_since=ago(100))
    plan = decide(view(running(), ready_pod(), agent=lost, cancel=True), NOW)
    assert CallSidecar(path=Path.CANCEL, url="http://10.0.0.7:8080", attempt=1) in plan.actions
    assert not [action for action in plan.actions if isinstance(action, DeletePod)]
    closing = pod(1, ended("sandbox", 137), up("verifier"), up("sidecar"), phase="Running")
    plan = decide(view(running(), closing, agent=lost, cancel=True), NOW)
    assert [action.path for action in writes(plan)[:2]] == [Path.VERIFY, Path.CANCEL]
