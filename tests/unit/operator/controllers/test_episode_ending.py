"""Tests of the ends of attempts and of the episode: every reason has one treatment."""

import pytest

from dgym.api import TREATMENTS, Stages, Treatment
from dgym.wire import EndReason, calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.http import RunningRequest
from dgym_operator.controllers import (
    AgentPodView,
    CallSidecar,
    CreatePod,
    DeletePod,
    Emit,
    LookUpPod,
    PatchStatus,
    Plan,
    Policy,
)
from dgym_operator.controllers.episode import decide, pod_deadline_seconds
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    UP,
    ago,
    between,
    condition,
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
    the_condition,
    up,
    view,
    waiting,
    writes,
    written,
)

OUTCOMES = [EndReason(reason) for reason, treatment in TREATMENTS.items() if treatment is Treatment.COUNTED]
FINAL = [EndReason(reason) for reason, treatment in TREATMENTS.items() if treatment is Treatment.TERMINAL]
NEW_POD = [EndReason(reason) for reason, treatment in TREATMENTS.items() if treatment is Treatment.NEW_POD]


def test_every_reason_that_ends_an_episode_has_a_treatment():
    assert {reason.value for reason in EndReason} == set(TREATMENTS)


@pytest.mark.parametrize("reason", OUTCOMES)
def test_the_sidecars_last_message_is_the_outcome(reason):
    solves = reason is EndReason.RESOLVED
    text = message(reason, score=3 if solves else 1, max_score=3, steps=7, result_uri="s3://b/r", message="done")

    plan = decide(view(running(), ended_pod(text)), NOW)

    status = written(plan)
    finished, resolved = the_condition(status, "Finished"), the_condition(status, "Resolved")
    assert (finished.status, finished.reason, finished.message) == ("True", reason.value, "done")
    assert (resolved.status, resolved.reason) == (("True", "Solved") if solves else ("False", "Unsolved"))
    assert (status.outcome.steps, status.outcome.max_score, status.outcome.result_uri) == (7, 3, "s3://b/r")
    assert (status.reason, status.attempt, status.pod_name, status.completion_time) == (reason.value, 1, "e-1", NOW)
    assert status.stages.verified is not None
    assert plan.actions[1] == Emit(type="Normal", reason=reason.value, message=plan.actions[1].message)


@pytest.mark.parametrize("reason", [reason for reason in OUTCOMES if reason is not EndReason.RESOLVED])
def test_an_outcome_without_a_score_is_not_scored(reason):
    status = written(decide(view(running(), ended_pod(message(reason))), NOW))
    assert the_condition(status, "Resolved").reason == "NotScored"


@pytest.mark.parametrize("reason", FINAL)
def test_a_final_fault_ends_the_episode_at_once_and_unscored(reason):
    plan = decide(view(running(), ended_pod(message(reason, message="git: no such host"))), NOW)

    status = written(plan)
    assert (the_condition(status, "Finished").reason, the_condition(status, "Resolved").reason) == (reason, "NotScored")
    assert (status.outcome.resolved, status.outcome.message) == (False, "git: no such host")
    assert plan.actions[1].type == "Warning"


@pytest.mark.parametrize("reason", NEW_POD)
def test_a_lost_sandbox_is_tried_again_in_a_new_pod(reason):
    status = written(decide(view(running(), ended_pod(message(reason, elapsed_seconds=20.4))), NOW))

    assert (status.attempt, status.failures, status.disruptions) == (1, 1, 0)
    assert (status.pod_name, status.assignment, status.stages) == (None, None, Stages())
    assert (status.active_seconds, status.start_time) == (20, ago(20))
    assert the_condition(status, "Finished") is None


FORGED = [
    "",
    "{}",
    message()[:-5],
    message().replace('"score":3', '"score":2'),
    message(uid="another"),
    message(attempt=2),
]


@pytest.mark.parametrize("text", FORGED)
def test_a_message_that_is_not_whole_or_of_another_attempt_is_not_an_outcome(text):
    status = status_after_attempt(view(running(), ended_pod(text, at=60)))
    assert (status.reason, status.failures) == ("SandboxLost", 1)


@pytest.mark.parametrize("liar", ["sandbox", "verifier", "install", "copy"])
@pytest.mark.parametrize("begun", [True, False])
def test_no_container_but_the_sidecar_has_an_outcome(liar, begun):
    written_status = ended(liar, 1, message=message())
    others = [up(name) for name in ("sandbox", "verifier") if name != liar]
    init = [written_status] if liar in ("install", "copy") else []
    containers = (
        [*others, ended("sidecar", 1, at=60)] if init else [written_status, *others, ended("sidecar", 1, at=60)]
    )

    plan = decide(view(running() if begun else None, pod(1, *containers, init=init, phase="Failed")), NOW)

    status = written(plan)
    assert (status.outcome, the_condition(status, "Finished")) == (None, None)
    assert status.reason in ("SandboxLost", "SandboxStartFailed")


def test_a_pod_older_than_all_clocks_ends_by_the_deadline():
    late = pod(phase="Failed", reason="DeadlineExceeded", message="Pod was active too long")
    assert the_condition(status_after_attempt(view(running(), late)), "Finished").reason == "DeadlineExceeded"


def test_a_pod_that_is_being_deleted_may_still_speak():
    plan = decide(view(running(), ready_pod(deleting=-5)), NOW)
    assert plan == Plan(requeue_after=35)


def test_a_pod_that_is_not_in_the_view_is_looked_up_before_it_counts_as_lost():
    plan = decide(view(running()), NOW)
    assert plan.actions == (LookUpPod(name="e-1"),)
    assert plan.requeue_after is not None

    assert written(decide(view(running(), absent=frozenset({"e-1"})), NOW)).reason == "SandboxLost"


@pytest.mark.parametrize("sight", ["ended", "absent"])
def test_the_report_of_the_agent_pod_replaces_a_missing_termination_message(sight):
    agent = report(AssignmentState.FINISHED, reason=EndReason.RESOLVED, outcome=solved())
    seen = view(running(), *([ended_pod()] if sight == "ended" else []), agent_pod=agent, absent=frozenset({"e-1"}))

    status = written(decide(seen, NOW))

    assert the_condition(status, "Resolved").status == "True"
    assert (status.outcome.steps, status.outcome.result_uri) == (4, "file:///r")


def test_a_report_of_an_older_assignment_does_not_count():
    agent = report(AssignmentState.FINISHED, epoch=1, reason=EndReason.RESOLVED, outcome=solved())
    assert written(decide(view(running(epoch=2), ended_pod(at=60), agent_pod=agent), NOW)).reason == "SandboxLost"


@pytest.mark.parametrize("state", [AssignmentState.CLOSING, AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE])
def test_deadlines_do_not_apply_while_an_outcome_is_stored(state):
    agent = report(state, since=90000)
    gone = decide(view(running(), ended_pod(at=600), agent_pod=agent), NOW)
    assert (gone.actions, gone.requeue_after) == ((), 5)
    late = decide(view(running(assigned=90000), ready_pod(), agent_pod=agent, suspend=True), NOW)
    assert the_condition(written(late), "Finished") is None
    assert written(late).reason in ("Scoring", "Storing", "ResultStoreUnavailable")


def test_a_report_that_may_be_under_way_is_waited_for():
    agent = report(AssignmentState.RUNNING)
    assert decide(view(running(), ended_pod(at=1), agent_pod=agent), NOW) == Plan(requeue_after=9)
    assert written(decide(view(running(), ended_pod(at=11), agent_pod=agent), NOW)).reason == "SandboxLost"


def test_a_finished_report_is_accepted_after_a_delay_if_the_pod_still_runs():
    agent = report(AssignmentState.FINISHED, since=10, reason=EndReason.UNRESOLVED, outcome=solved())
    assert decide(view(running(), ready_pod(), agent_pod=agent), NOW) == Plan(requeue_after=20)
    later = decide(view(running(), ready_pod(), agent_pod=agent), in_(20))
    assert the_condition(written(later), "Finished").reason == "Unresolved"


@pytest.mark.parametrize(
    ("reason", "since", "expected"),
    [(EndReason.SANDBOX_LOST, 31, "SandboxLost"), (EndReason.SETUP_FAILED, 31, "SetupFailed")],
)
def test_an_agent_that_gave_up_for_good_ends_the_attempt(reason, since, expected):
    agent = report(AssignmentState.FAILED, since=since, reason=reason, message="no answer")
    assert written(decide(view(running(), ready_pod(), agent_pod=agent), NOW)).reason == expected


def test_backoff_doubles_with_every_failure_and_is_bounded():
    for failures, seconds in ((1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (90, 360)):
        before = between(attempt=failures, failures=failures, ended=0)
        early = decide(view(before, backoff_limit=100), in_(seconds - 1))
        assert (early.actions, early.requeue_after) == ((), pytest.approx(1))
        plan = decide(view(before, absent=frozenset({f"e-{failures}"}), backoff_limit=100), in_(seconds))
        assert writes(plan) == (CreatePod(name=f"e-{failures + 1}", attempt=failures + 1),)


def test_the_message_of_the_last_attempt_has_the_backoff_limit():
    status = status_after_attempt(view(running(attempt=3, failures=2), ended_pod(attempt=3, at=60)))
    finished = the_condition(status, "Finished")
    assert finished.reason == "SandboxLost"
    assert "the last attempt was 3 (backoffLimit 2)" in finished.message


def test_an_episode_driven_from_outside_has_one_attempt():
    status = status_after_attempt(view(running(), ended_pod(at=60), driven=False, backoff_limit=5))
    assert the_condition(status, "Finished").reason == "SandboxLost"


def test_the_pod_of_the_attempt_before_is_looked_up_where_the_view_does_not_show_it():
    failed = status_after_attempt(view(running(), ended_pod(at=60)))
    plan = decide(view(failed), in_(100))
    assert plan.actions == (LookUpPod(name="e-1"),)
    assert plan.requeue_after is not None


def test_a_failed_attempt_leaves_a_pod_that_is_deleted_once_that_is_written():
    failed = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="no answer")
    first = decide(view(running(), ended_pod(at=60), agent_pod=failed), NOW)
    assert [type(action) for action in first.actions] == [PatchStatus, Emit]
    second = decide(view(written(first), ended_pod(at=60)), in_(1))
    assert second.actions == (DeletePod(name="e-1", uid="pod-uid-1"),)
    third = decide(view(written(first), ended_pod(at=60, deleting=0)), in_(10))
    assert writes(third) == (CreatePod(name="e-2", attempt=2),)


def test_a_view_that_is_older_than_its_pods_decides_nothing():
    plan = decide(view(None, ready_pod(1), ready_pod(2)), NOW)
    assert plan.actions == ()
    assert plan.requeue_after is not None


def test_the_time_agents_have_served_is_not_served_again():
    before = between(active_seconds=3599)
    assert writes(decide(view(before), NOW))
    served = AgentPodView(active_seconds=10)
    lost = view(running(attempt=2, failures=1, active_seconds=3590), ended_pod(attempt=2, at=60), agent_pod=served)
    assert the_condition(status_after_attempt(lost), "Finished").reason == "DeadlineExceeded"


SERVED_TOO_LONG = 3600 + 600 + 300 + 60


@pytest.mark.parametrize("asked", [{}, {"suspend": True}], ids=["late", "suspended"])
def test_a_new_leader_waits_for_a_report_before_it_ends_an_attempt(asked):
    """A new leader has no report yet. The agent pod may be storing the outcome."""
    late = running(assigned=SERVED_TOO_LONG)
    plan = decide(view(late, ready_pod(), agent_pod=None, **asked), NOW)
    assert (plan.actions, plan.requeue_after) == ((), 5)
    storing = written(decide(view(late, ready_pod(), agent_pod=report(AssignmentState.STORING, since=9), **asked), NOW))
    assert (storing.reason, storing.attempt, storing.pod_name) == ("Storing", 1, "e-1")


@pytest.mark.parametrize(("asked", "reason"), [({}, "AgentPodLost"), ({"suspend": True}, "Suspended")])
def test_a_new_leader_waits_for_an_agent_only_until_it_is_lost(asked, reason):
    late = running(assigned=SERVED_TOO_LONG)
    lost = AgentPodView(lost_since=ago(SERVED_TOO_LONG))
    status = written(decide(view(late, ready_pod(), agent_pod=lost, **asked), NOW))
    assert status.ending.reason == reason


@pytest.mark.parametrize("pods", [(), (ended_pod(at=60),), (ready_pod(deleting=31),)], ids=["gone", "over", "silent"])
def test_an_attempt_without_a_termination_message_waits_for_a_report(pods):
    absent = frozenset() if pods else frozenset({"e-1"})
    plan = decide(view(running(), *pods, agent_pod=None, absent=absent), NOW)
    assert (plan.actions, plan.requeue_after) == ((), 5)

    stored = report(AssignmentState.FINISHED, reason=EndReason.RESOLVED, outcome=solved())
    written_status = written(decide(view(running(), *pods, agent_pod=stored, absent=absent), NOW))
    assert the_condition(written_status, "Resolved").status == "True"

    lost = AgentPodView(lost_since=ago(0))
    assert status_after_attempt(view(running(), *pods, agent_pod=lost, absent=absent)).reason == "SandboxLost"


def test_a_new_leader_takes_the_sidecars_message_without_its_agent():
    status = written(decide(view(running(), ended_pod(message()), agent_pod=None), NOW))
    assert the_condition(status, "Finished").reason == "Resolved"


def test_the_pods_own_deadline_is_above_all_others():
    seen = view(None, start_timeout_seconds=900, active_deadline_seconds=3600)
    seconds = pod_deadline_seconds(seen.episode, seen.task, Policy())
    assert seconds > 900 + 3600 + 600 + 300 + 60


UNREADY = condition("ContainersReady", "False", age=3)


def test_a_sandbox_that_runs_beside_an_unready_sidecar_is_reported_to_it():
    plan = decide(view(running(), pod(1, *UP, conditions=(UNREADY,), phase="Running")), NOW)
    report = CallSidecar(
        call=calls.RUNNING, url="http://10.0.0.7:8080", attempt=1, body=RunningRequest(observed=ago(3))
    )
    assert (plan.actions, plan.requeue_after) == ((report,), 5)


@pytest.mark.parametrize(
    "seen",
    [
        ready_pod(),
        # The node controller writes this condition if the kubelet does not answer.
        pod(1, *UP, conditions=(condition("Ready", "False"),), phase="Running"),
        pod(1, waiting("sandbox", "ContainerCreating"), up("sidecar"), conditions=(UNREADY,), phase="Running"),
        pod(1, ended("sandbox"), up("sidecar"), conditions=(UNREADY,), phase="Running"),
    ],
)
def test_a_sandbox_not_observed_running_is_not_reported_as_running(seen):
    plan = decide(view(running(), seen), NOW)
    assert not [action for action in plan.actions if getattr(action, "call", None) is calls.RUNNING]


def test_the_call_terminated_is_planned_until_it_is_answered():
    dead = pod(1, ended("sandbox", 137), up("verifier"), up("sidecar"), phase="Running")
    for _ in range(2):
        plan = decide(view(running(), dead), NOW)
        assert plan.actions == (CallSidecar(call=calls.TERMINATED, url="http://10.0.0.7:8080", attempt=1),)
        assert plan.requeue_after == 5


def test_the_cost_of_an_episode_never_decreases():
    first = report(AssignmentState.RUNNING, price="0.75", steps=3)
    seen = view(running(cost="0.5", assigned=120), ready_pod(), agent_pod=first)
    assert written(decide(seen, NOW)).cost == "0.75"
    outcome = ended_pod(message(price="0.80"))
    assert written(decide(view(running(cost="0.75"), outcome), NOW)).cost == "0.8"
    again = status_after_attempt(view(running(cost="0.75"), ended_pod()))
    assert (again.cost, again.pod_name) == ("0.75", None)
    for nonsense in ("NaN", "-1", "1e99", "x"):
        wrong = report(AssignmentState.RUNNING, price=nonsense, steps=3)
        seen = view(running(cost="0.75", assigned=120), ready_pod(), agent_pod=wrong)
        assert written(decide(seen, NOW)).cost == "0.75"
