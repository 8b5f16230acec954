"""Tests of assignments: the episodes that need an agent pod, and the status that assigns it."""

import pytest

from dgym_operator.controllers import AgentPodView
from dgym_operator.controllers.episode import (
    AgentPodRequest,
    agent_pod_request,
    assigned_events,
    assigned_status,
    decide,
    remaining_seconds,
    retry_at,
)
from dgym_operator.dispatch import candidate_of
from tests.unit.operator.controllers.reconcile_builders import (
    AGENT,
    NOW,
    UP,
    ago,
    between,
    condition,
    ended,
    ended_pod,
    in_,
    pod,
    ready_pod,
    running,
    the_condition,
    up,
    view,
    written,
)


def test_a_ready_sandbox_gets_its_agent_in_one_write():
    seen = view(None, ready_pod(ready=2, age=9))
    ready = agent_pod_request(seen, NOW)
    assert (seen.attempt, ready.epoch) == (1, 1)
    assert remaining_seconds(seen.episode) == 3600

    status = assigned_status(seen, ready, AGENT, NOW)

    assert (status.reason, status.attempt, status.pod_name, status.task_uid) == ("Running", 1, "e-1", "task-uid")
    assert (status.assignment.agent_pod_uid, status.assignment.epoch, status.observed_generation) == (AGENT, 1, 1)
    shown = the_condition(status, "SandboxReady")
    assert (shown.status, shown.last_transition_time, status.start_time) == ("True", ago(2), NOW)
    stages = status.stages
    assert (stages.pod_created, stages.scheduled, stages.sandbox_ready, stages.assigned) == (
        ago(9),
        ago(4),
        ago(2),
        NOW,
    )
    after = view(status, ready_pod())
    assert agent_pod_request(after, NOW) is None
    assert not decide(after, NOW).actions


def test_an_externally_driven_episode_needs_an_agent_pod_but_no_slot():
    seen = view(None, ready_pod(), driven=False)
    assert agent_pod_request(seen, NOW) is not None
    assert not candidate_of(seen.episode).needs_slot


def test_a_later_attempt_has_the_time_that_is_left_and_keeps_the_start():
    seen = view(between(active_seconds=3000, start_time=ago(4000)), ready_pod(2))
    ready = agent_pod_request(seen, NOW)
    assert (seen.attempt, ready.epoch, remaining_seconds(seen.episode)) == (2, 1, 600)
    assert assigned_status(seen, ready, AGENT, NOW).start_time == ago(4000)


NOBODY = {
    "no pod": view(),
    "not ready": view(None, pod(1, *UP, conditions=[condition("Ready", "False")])),
    "ended": view(None, ended_pod()),
    "sandbox ended": view(
        None, pod(1, ended("sandbox", 1), up("verifier"), up("sidecar"), conditions=[condition("Ready")])
    ),
    "going": view(None, ready_pod(deleting=0)),
    "without address": view(None, ready_pod(pod_ip="")),
    "deleted": view(None, ready_pod(), deleting=True),
    "cancelled": view(None, ready_pod(), cancel=True),
    "suspended": view(None, ready_pod(), suspend=True),
    "finished": view(written(decide(view(running(), ended_pod(at=60), backoff_limit=0), NOW)), ready_pod()),
    "served": view(running(), ready_pod(), agent_pod=AgentPodView()),
    "served by who was not asked": view(running(), ready_pod()),
}


@pytest.mark.parametrize("case", NOBODY)
def test_episodes_that_do_not_need_an_agent_pod_have_no_request(case):
    assert agent_pod_request(NOBODY[case], in_(100)) is None


def test_another_agent_pod_is_assigned_with_a_higher_epoch():
    lost = AgentPodView(lost_since=ago(100))
    seen = view(running(epoch=3, assigned=500), ready_pod(), agent_pod=lost)
    ready = agent_pod_request(seen, NOW)
    assert (ready.epoch, ready.cause) == (4, "AgentPodLost")

    status = assigned_status(seen, ready, "another", NOW)

    assert (status.assignment.agent_pod_uid, status.assignment.epoch, status.attempt) == ("another", 4, 1)
    assert status.stages.assigned == ago(500)
    assert the_condition(status, "SandboxReady") == the_condition(running(assigned=500), "SandboxReady")
    assert status.assignment.losses == 1
    often = running(epoch=11, assignment={"losses": 10})
    assert agent_pod_request(view(often, ready_pod(), agent_pod=lost), NOW) is None


def test_the_first_lost_agent_is_replaced_at_once_and_later_ones_ever_more_slowly():
    lost = AgentPodView(lost_since=NOW)
    assert agent_pod_request(view(running(epoch=1), ready_pod(), agent_pod=lost), NOW) is not None
    for epoch, seconds in ((2, 10), (3, 20), (4, 40)):
        seen = view(running(epoch=epoch, assignment={"losses": epoch - 1}), ready_pod(), agent_pod=lost)
        assert agent_pod_request(seen, in_(seconds - 1)) is None
        assert retry_at(seen) == in_(seconds)
        assert agent_pod_request(seen, in_(seconds)).epoch == epoch + 1


def test_a_cancelled_episode_still_gets_an_agent_to_store_its_outcome():
    lost = AgentPodView(lost_since=ago(1))
    assert agent_pod_request(view(running(), ready_pod(), agent_pod=lost, cancel=True), NOW) is not None


def test_after_a_failed_model_another_try_follows_when_its_backoff_is_over():
    failed = running(epoch=2, assignment={"failures": 2, "failed_time": NOW}, reason="ModelError")
    seen = view(failed, ready_pod(), agent_pod=AgentPodView())
    assert retry_at(seen) == in_(20)
    assert agent_pod_request(seen, in_(19)) is None

    ready = agent_pod_request(seen, in_(20))
    assert (ready.epoch, ready.cause) == (3, "ModelError")
    status = assigned_status(seen, ready, AGENT, in_(20))
    assert (status.assignment.failures, status.assignment.failed_time, status.reason) == (2, None, "Running")


def events_of(seen, now=NOW):
    return [
        (event.type, event.reason, event.message) for event in assigned_events(seen, agent_pod_request(seen, now), "a")
    ]


def test_an_assignment_is_a_normal_event_with_its_cause():
    assert events_of(view(None, ready_pod())) == [("Normal", "Assigned", "agent pod a serves attempt 1 (epoch 1)")]
    failed = running(assignment={"failures": 1, "failed_time": NOW}, reason="ModelError", message="model m: 503")
    assert events_of(view(failed, ready_pod(), agent_pod=AgentPodView()), in_(20)) == [
        ("Normal", "Reassigned", "agent pod a serves attempt 1 (epoch 2): model m: 503")
    ]


def test_the_loss_of_an_agent_is_recorded_once_whether_or_not_it_was_shown_before():
    lost = AgentPodView(lost_since=ago(100), lost="agent pod b is gone")
    reassigned = ("Normal", "Reassigned", "agent pod a serves attempt 1 (epoch 2): agent pod b is gone")
    assert events_of(view(running(), ready_pod(), agent_pod=lost)) == [
        ("Warning", "AgentPodLost", "agent pod b is gone"),
        reassigned,
    ]
    assert events_of(view(running(reason="AgentPodLost"), ready_pod(), agent_pod=lost)) == [reassigned]


def test_a_recovery_is_a_reassignment():
    (event,) = assigned_events(view(running(), ready_pod()), AgentPodRequest(epoch=2, cause="Recover"), "a")
    assert (event.type, event.reason) == ("Normal", "Reassigned")
    assert "looks for a stored result of attempt 1" in event.message
