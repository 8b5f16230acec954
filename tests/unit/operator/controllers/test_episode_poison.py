"""Tests of poisoned steps: only the sidecar proves them, a replay omits them, and their number is limited.

The sandbox died during a poisoned step.
"""

import msgspec
import pytest

from dgym.api import PoisonedStep
from dgym.api._episode import ReplaySource
from dgym.wire import EndReason, calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.http import TerminatedResponse
from dgym_operator.controllers import CreatePod, SidecarView
from dgym_operator.controllers._plan import CallSidecar
from dgym_operator.controllers.episode import agent_pod_request, assigned_status, decide
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    ago,
    condition,
    ended,
    ended_pod,
    in_,
    pod,
    ready_pod,
    report,
    running,
    status_after_attempt,
    termination_text,
    the_condition,
    up,
    view,
    writes,
    written,
)

replace = msgspec.structs.replace
SERVING = report(AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="no answer", steps=6, since=60)
OOM = ended("sandbox", 137, reason="OOMKilled", at=30)
DIED = ended("sandbox", 137, reason="Error", at=30)
TARGET = condition("DisruptionTarget", reason="EvictionByEvictionAPI", message="drained")
DISK = {"phase": "Failed", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the limit"}
FULL = "Evicted: Pod ephemeral local storage usage exceeds the limit"
FLIGHT, KILLED = termination_text(step_in_flight=7), termination_text(poisoned_step=7)
SHUT_DOWN = termination_text(step_in_flight=7, shutdown_requested=True)


def sidecar(exit_code: int, message: str, **more):
    return ended("sidecar", exit_code, reason=more.pop("reason", "Error"), message=message, at=more.pop("at", 30))


def answered(step: int | None = 7) -> SidecarView:
    return SidecarView(terminated=TerminatedResponse(expected=False, poisoned_step=step, known=True))


# The view of the sidecar, the pod, and the expected reason, by case.
BY_THE_AGENT = {
    "out of memory": (answered(), pod(1, OOM, up("sidecar")), "OOMKilled"),
    "killed": (answered(), pod(1, DIED, up("sidecar")), "exit code 137"),
    "ended in order": (
        answered(),
        pod(1, ended("sandbox", 0, reason="Completed", at=30), up("sidecar")),
        "exit code 0",
    ),
    "an answer that was lost": (
        SidecarView(),
        pod(1, OOM, sidecar(0, termination_text(poisoned_step=7, shutdown_requested=True), at=10), phase="Failed"),
        "OOMKilled",
    ),
    "the sidecar out of memory": (
        SidecarView(),
        pod(1, ended("sandbox", 0, at=30), sidecar(137, FLIGHT, reason="OOMKilled"), phase="Failed"),
        "OOMKilled: the sidecar",
    ),
    "the sidecar killed": (
        SidecarView(),
        pod(1, ended("sandbox", 0, at=29), sidecar(137, FLIGHT), phase="Failed"),
        "exit code 137: the sidecar",
    ),
    "the disk full": (SidecarView(), pod(1, ended("sandbox", 0, at=31), sidecar(0, SHUT_DOWN), **DISK), FULL),
    "the disk full, and the sandbox dead": (SidecarView(), pod(1, DIED, sidecar(0, KILLED), **DISK), FULL),
}
UNKNOWN = {
    "drained": (answered(), pod(1, OOM, up("sidecar"), conditions=[TARGET], phase="Failed")),
    "the node is low": (
        answered(),
        pod(1, OOM, phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
    ),
    "between steps": (answered(None), pod(1, OOM, up("sidecar"))),
    "without the sidecar's word": (SidecarView(), pod(1, OOM, sidecar(137, ""), phase="Failed")),
    "the sidecar killed between steps": (
        SidecarView(),
        pod(1, ended("sandbox", 0, at=29), sidecar(137, termination_text()), phase="Failed"),
    ),
    "the sidecar stopped": (SidecarView(), pod(1, up("sandbox"), sidecar(0, SHUT_DOWN), phase="Failed")),
    "the sidecar told to end and killed": (SidecarView(), pod(1, DIED, sidecar(137, SHUT_DOWN, at=20), phase="Failed")),
    "the message of another attempt": (
        SidecarView(),
        pod(1, ended("sandbox", 0, at=29), sidecar(137, termination_text(attempt=2, step_in_flight=7)), phase="Failed"),
    ),
    "all killed at once": (SidecarView(), pod(1, DIED, sidecar(137, KILLED, at=29), phase="Failed")),
    "all killed at once under a step": (SidecarView(), pod(1, DIED, sidecar(137, FLIGHT, at=31), phase="Failed")),
    "not observed by the kubelet": (
        SidecarView(),
        pod(
            1,
            ended("sandbox", 137, reason="ContainerStatusUnknown"),
            sidecar(137, FLIGHT, reason="ContainerStatusUnknown"),
            phase="Failed",
        ),
    ),
    "not observed by the runtime": (
        SidecarView(),
        pod(1, ended("sandbox", 255, reason="Unknown"), sidecar(255, FLIGHT, reason="Unknown"), phase="Failed"),
    ),
    "a reboot of the node": (
        SidecarView(),
        pod(1, ended("sandbox", 255), sidecar(255, KILLED), phase="Failed"),
    ),
    "the node shuts down": (SidecarView(), pod(1, DIED, sidecar(137, FLIGHT), phase="Failed", reason="Terminated")),
}


@pytest.mark.parametrize("name", BY_THE_AGENT)
def test_a_step_that_kills_its_sandbox_is_poisoned(name):
    sidecar_view, lost, reason = BY_THE_AGENT[name]
    status = status_after_attempt(
        view(running(), lost, agent_pod=SERVING, sidecar=sidecar_view, backoff_limit=0, max_disruptions=0)
    )
    assert status.poisoned_steps == (PoisonedStep(attempt=1, step=7, reason=reason),)
    assert (status.failures, status.disruptions, status.pod_name) == (0, 0, None)
    assert status.replay == ReplaySource(attempt=1, steps=6)
    assert writes(decide(view(status, absent=frozenset({"e-1"})), in_(1))) == (CreatePod(name="e-2", attempt=2),)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_death_with_another_possible_cause_does_not_poison_a_step(name):
    sidecar_view, lost = UNKNOWN[name]
    status = status_after_attempt(view(running(), lost, agent_pod=SERVING, sidecar=sidecar_view))
    assert (status.poisoned_steps, status.failures + status.disruptions) == ((), 1)
    assert status.replay.attempt == 1


@pytest.mark.parametrize(
    ("died", "poisoned"), [(12, 1), (11, 1), (10, 0), (9, 0)], ids=["before", "a second before", "within", "after"]
)
def test_a_death_within_a_second_of_the_pods_deletion_does_not_poison_a_step(died, poisoned):
    """The operator deletes the pod after its decision, or another client deletes the pod earlier."""
    text = termination_text(poisoned_step=7, shutdown_requested=True)
    lost = pod(1, ended("sandbox", 137, at=died), sidecar(0, text, at=4), deleting=5, grace=5)
    by_the_operator = written(decide(view(running(), ready_pod(), agent_pod=SERVING, suspend=True), ago(10)))
    for status in (by_the_operator, running()):
        closed = status_after_attempt(view(status, lost, agent_pod=SERVING))
        assert len(closed.poisoned_steps) == poisoned


def test_a_deletion_at_a_time_that_is_not_known_may_be_the_cause():
    lost = pod(1, ended("sandbox", 137, at=600), sidecar(0, KILLED, at=4), deleting=5)
    assert status_after_attempt(view(running(), lost, agent_pod=SERVING)).poisoned_steps == ()


def test_the_sidecar_is_asked_even_if_its_agent_reports_the_loss_before_the_watch_does():
    plan = decide(view(running(), pod(1, OOM, up("sidecar")), agent_pod=replace(SERVING, since=ago(1))), NOW)
    assert [action.call for action in plan.actions if isinstance(action, CallSidecar)] == [calls.TERMINATED]


@pytest.mark.parametrize(("step", "cause"), [(7, "agent"), (None, "infrastructure")], ids=["a step", "between steps"])
@pytest.mark.parametrize("state", [AssignmentState.RUNNING, AssignmentState.FAILED])
def test_an_attempt_ends_when_its_sidecar_reports_the_end_of_the_sandbox(step, cause, state):
    """The operator does not wait for the agent, because its next call may be minutes away."""
    agent = report(state, reason=EndReason.SANDBOX_LOST if state is AssignmentState.FAILED else None, since=1)
    dead = pod(1, OOM, up("sidecar"))
    status = written(decide(view(running(), dead, agent_pod=agent, sidecar=answered(step)), NOW))
    assert (status.reason, status.ending.cause, status.ending.reason) == ("SandboxLost", cause, "SandboxLost")
    assert status.ending.message == "the sandbox ended with exit code 137, OOMKilled"
    assert [each.step for each in status.poisoned_steps] == [7] * (step is not None)


def test_a_sandbox_that_was_ordered_to_end_ends_nothing():
    sidecar_view = SidecarView(terminated=TerminatedResponse(expected=True))
    plan = decide(view(running(), pod(1, OOM, up("sidecar")), sidecar=sidecar_view), NOW)
    assert [type(action) for action in plan.actions] == [CallSidecar]


def test_a_reset_under_which_the_sandbox_dies_is_infrastructure():
    status = status_after_attempt(view(running(), pod(1, OOM, up("sidecar")), agent_pod=SERVING, sidecar=answered(0)))
    assert (status.poisoned_steps, status.failures) == ((), 1)


def test_the_evidence_is_recorded_before_the_pod_is_deleted():
    status = written(decide(view(running(), pod(1, OOM, up("sidecar")), agent_pod=SERVING, sidecar=answered()), NOW))
    gone = status_after_attempt(view(status, agent_pod=SERVING, absent=frozenset({"e-1"})))
    assert (len(gone.poisoned_steps), gone.failures) == (1, 0)


def test_the_evidence_of_the_pods_last_message_is_recorded_before_the_store_is_asked():
    """The pod and the leader that has seen it may be lost before an agent pod has read the store."""
    lost = pod(
        1, OOM, sidecar(0, termination_text(poisoned_step=7, elapsed_seconds=90.7), at=10), phase="Failed", deleting=5
    )
    ending = written(decide(view(running(), ready_pod(), suspend=True), ago(20)))
    seen = view(ending, replace(lost, metadata=replace(lost.metadata, deletion_grace_period_seconds=5)), suspend=True)
    status = assigned_status(seen, agent_pod_request(seen, in_(20)), "another", in_(20))
    assert ([each.step for each in status.poisoned_steps], status.attempt_seconds) == ([7], 90)


def test_a_step_that_an_earlier_attempt_has_left_out_is_not_named_again():
    known = (PoisonedStep(attempt=1, step=7, reason="OOMKilled"),)
    lost = pod(2, OOM, sidecar(0, termination_text(attempt=2, poisoned_step=7), at=10), phase="Failed")
    status = status_after_attempt(view(running(attempt=2, poisoned_steps=known), lost))
    assert (status.poisoned_steps, status.failures) == (known, 1)


def test_after_two_poisoned_steps_the_last_attempt_is_bounded():
    known = tuple(PoisonedStep(attempt=attempt, step=attempt + 3) for attempt in (1, 2))
    seen = view(running(attempt=3, poisoned_steps=known), pod(3, OOM, up("sidecar")), sidecar=answered())
    status = status_after_attempt(seen)
    assert (the_condition(status, "Finished").reason, status.outcome.max_score) == ("SandboxKilled", 0)
    assert len(status.poisoned_steps) == 3
    other = view(running(attempt=3, poisoned_steps=known), ended_pod(attempt=3, at=60))
    assert status_after_attempt(other).failures == 1


def test_the_next_attempt_replays_the_one_with_the_most_steps():
    for before, steps, expected in ((None, 0, (3, 0)), ((1, 9), 4, (1, 9)), ((1, 4), 4, (3, 4))):
        replay = ReplaySource(attempt=before[0], steps=before[1]) if before else None
        status = running(attempt=3, replay=replay, steps=steps)
        closed = status_after_attempt(view(status, ended_pod(attempt=3, at=60)))
        assert (closed.replay.attempt, closed.replay.steps) == expected
    suspended = status_after_attempt(view(running(steps=5), ready_pod(), suspend=True))
    assert (suspended.replay.attempt, suspended.replay.steps) == (1, 5)
