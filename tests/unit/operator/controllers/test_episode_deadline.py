"""Tests of the deadline. The sidecar measures the time, without preparation, scoring and the loss of agent pods."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dgym.wire import calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.calls import Call
from dgym.wire.http import AttemptState, PauseRequest
from dgym_operator.controllers import AgentPodView, CallSidecar, PatchStatus, SidecarView
from dgym_operator.controllers.episode import agent_pod_request, assigned_status, decide
from dgym_operator.controllers.episode._clocks import backstop
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    ago,
    ended_pod,
    in_,
    message,
    ready_pod,
    report,
    running,
    status_after_attempt,
    termination_text,
    the_condition,
    view,
    writes,
    written,
)

SCORING = 600 + 300 + 60
replace = msgspec.structs.replace


def active(seconds: int, **more) -> AgentPodView:
    return replace(report(AssignmentState.RUNNING, **more), active_seconds=seconds)


def sidecar_view(at, **state) -> SidecarView:
    return SidecarView().after_state(AttemptState(**state), at)


def sidecar_calls(plan) -> list[Call[Any, Any]]:
    return [action.call for action in plan.actions if isinstance(action, CallSidecar)]


# The time that an attempt has used


def test_the_sidecars_last_message_has_its_clock():
    lost = ended_pod(termination_text(elapsed_seconds=120.9), at=60)
    status = status_after_attempt(view(running(assigned=1800, attempt_seconds=50), lost, agent_pod=active(700)))
    assert (status.active_seconds, status.attempt_seconds) == (120, 0)


def test_the_clock_that_was_asked_for_at_the_end_counts_where_the_pod_leaves_none():
    ending = written(decide(view(running(), ready_pod(), suspend=True, agent_pod=active(700)), NOW))
    for at, seconds in ((1, 130), (-1, 700)):
        answered = sidecar_view(in_(at), elapsed_seconds=130.0)
        gone = view(ending, agent_pod=active(700), sidecar=answered, suspend=True, absent=frozenset({"e-1"}))
        assert status_after_attempt(gone).active_seconds == seconds


def test_a_pod_that_is_gone_with_its_node_has_the_clock_of_its_agents():
    status = status_after_attempt(view(running(attempt_seconds=100), agent_pod=active(120), absent=frozenset({"e-1"})))
    assert (status.active_seconds, status.attempt_seconds) == (220, 0)


def test_the_clock_is_asked_for_when_the_agent_is_lost():
    lost = AgentPodView(lost_since=ago(1000), active_seconds=100)
    seen = view(running(assigned=6000), ready_pod(), agent_pod=lost)
    assert sidecar_calls(decide(seen, NOW)) == [calls.PAUSE, calls.STATE]
    asked = replace(seen, sidecar=sidecar_view(ago(999), elapsed_seconds=90.5))
    assert sidecar_calls(decide(asked, NOW)) == [calls.PAUSE]
    for view_, seconds in ((seen, 100), (asked, 90)):
        status = assigned_status(view_, agent_pod_request(view_, NOW), "another", NOW)
        assert status.attempt_seconds == seconds
        again = status_after_attempt(view(status, agent_pod=active(50, epoch=2), absent=frozenset({"e-1"})), in_(60))
        assert (again.active_seconds, again.attempt_seconds) == (seconds + 50, 0)


def test_the_sidecars_deadline_is_paused_while_the_agent_is_lost():
    lost = AgentPodView(lost_since=ago(1), lost="agent pod a is gone")
    plan = decide(view(running(epoch=2), ready_pod(), agent_pod=lost), NOW)
    assert decide(view(running(epoch=2), ready_pod(), agent_pod=lost, driven=False), NOW).actions == ()
    url = "http://10.0.0.7:8080"
    assert plan.actions == (
        CallSidecar(call=calls.PAUSE, url=url, attempt=1, body=PauseRequest(epoch=2)),
        CallSidecar(call=calls.STATE, url=url, attempt=1),
    )


def test_the_deadline_counts_over_all_attempts():
    lost = ended_pod(termination_text(attempt=2, elapsed_seconds=10.0), attempt=2, at=60)
    status = status_after_attempt(view(running(attempt=2, failures=1, active_seconds=3590), lost))
    assert the_condition(status, "Finished").reason == "DeadlineExceeded"


# Attempts that continue beyond their deadline


@pytest.mark.parametrize(
    ("agent", "begun"),
    [(AgentPodView(), ago(6000)), (active(0, since=1000), ago(1000))],
    ids=["not heard", "since its state"],
)
def test_the_sidecar_is_asked_once_its_deadline_may_have_passed(agent, begun):
    late = backstop(view(running(assigned=6000), ready_pod(), agent_pod=agent))
    assert late.request_at == begun + timedelta(seconds=3600)
    assert late.end == late.request_at + timedelta(seconds=SCORING)


def test_the_clock_of_an_attempt_that_runs_is_not_asked_for():
    plan = decide(view(running(assigned=3599), ready_pod(), agent_pod=active(100, since=3599)), NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(1))


def test_the_next_check_follows_the_remaining_time_of_the_sidecar():
    seen = view(running(assigned=3600), ready_pod())
    plan = decide(seen, NOW)
    assert (sidecar_calls(plan), plan.requeue_after) == ([calls.STATE], 5)
    left = replace(seen, sidecar=sidecar_view(NOW, elapsed_seconds=3000, remaining_seconds=600, running=True))
    plan = decide(left, NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(600))
    assert sidecar_calls(decide(left, in_(600))) == [calls.STATE]


def test_the_operator_ends_an_episode_only_after_the_sidecar_reports_its_deadline():
    seen = view(running(assigned=3600), ready_pod())
    passed = replace(seen, sidecar=sidecar_view(NOW, elapsed_seconds=3600, remaining_seconds=0, running=True))
    plan = decide(passed, NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(SCORING))
    assert sidecar_calls(decide(passed, in_(SCORING))) == [calls.STATE]
    still = replace(passed, sidecar=passed.sidecar.after_state(passed.sidecar.state, in_(SCORING)))
    ending = written(decide(still, in_(SCORING))).ending
    assert (ending.cause, ending.reason) == ("agent", "DeadlineExceeded")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"elapsed_seconds": 3600, "ending": True, "remaining_seconds": 0},
            "the scoring began long ago, but the sidecar has not finished it",
        ),
        ({"remaining_seconds": 3600}, "the episode was assigned long ago, but no agent pod has started it"),
        (None, "the sidecar does not answer"),
    ],
    ids=["scoring", "not begun", "silent"],
)
def test_what_is_not_the_agents_is_the_infrastructures(state, message):
    seen = view(running(assigned=3600), ready_pod(), agent_pod=active(0, since=3600))
    if state is not None:
        seen = replace(seen, sidecar=sidecar_view(NOW, **state))
    assert sidecar_calls(decide(seen, in_(SCORING - 1))) in ([], [calls.STATE])
    late = in_(SCORING + 1)
    if state is not None:
        assert sidecar_calls(decide(seen, late)) == [calls.STATE]
        seen = replace(seen, sidecar=seen.sidecar.after_state(seen.sidecar.state, late))
    ending = written(decide(seen, late)).ending
    assert (ending.cause, ending.reason) == ("infrastructure", "SandboxLost")
    assert ending.message.startswith(message)


def test_an_agent_that_never_calls_a_sidecar_that_was_paused_is_not_waited_for_without_end():
    seen = view(running(assigned=3600), ready_pod())
    for at in range(0, 3600 + SCORING, 60):
        assert sidecar_calls(decide(seen, in_(at))) == [calls.STATE]
        paused = seen.sidecar.after_state(AttemptState(elapsed_seconds=3580, remaining_seconds=20), in_(at))
        seen = replace(seen, sidecar=paused)
    # A call of its agent would have started the clock.
    assert sidecar_calls(decide(seen, in_(3600 + SCORING))) == [calls.STATE]
    still = replace(seen, sidecar=seen.sidecar.after_state(seen.sidecar.state, in_(3600 + SCORING)))
    ending = written(decide(still, in_(3600 + SCORING))).ending
    assert (ending.cause, ending.reason) == ("infrastructure", "SandboxLost")
    went_on = AttemptState(elapsed_seconds=3590, remaining_seconds=10, running=True)
    again = replace(seen, sidecar=seen.sidecar.after_state(went_on, in_(3600 + SCORING)))
    assert decide(again, in_(3600 + SCORING)).actions == ()


def test_a_sidecar_that_stops_answering_counts_as_a_lost_sandbox():
    seen = view(running(assigned=3600), ready_pod(), agent_pod=active(100, since=3600))
    left = replace(seen, sidecar=sidecar_view(NOW, elapsed_seconds=3000, remaining_seconds=600, running=True))
    assert sidecar_calls(decide(left, in_(600 + SCORING - 1))) == [calls.STATE]
    assert written(decide(left, in_(600 + SCORING))).ending.reason == "SandboxLost"


def test_the_backstop_does_not_apply_after_the_outcome():
    answered = sidecar_view(ago(9000), elapsed_seconds=3600, remaining_seconds=0, ending=True, ended=True)
    seen = view(running(assigned=90_000), ready_pod(), agent_pod=active(100), sidecar=answered)
    assert backstop(seen) is None
    assert decide(seen, NOW).actions == ()
    assert written(decide(view(running(), ended_pod(message()), sidecar=answered), NOW)).reason == "Resolved"


def test_without_an_agent_the_time_counts_from_its_loss():
    lost = AgentPodView(lost_since=ago(50), active_seconds=600)
    late = backstop(view(running(assigned=6000), ready_pod(), agent_pod=lost))
    assert late.request_at == late.end == ago(50) + timedelta(seconds=3600 - 600 + SCORING)


def test_an_external_driver_may_reset_when_it_likes():
    seen = view(running(assigned=6000), ready_pod(), driven=False, agent_pod=active(0, since=6000))
    assert backstop(seen).end is None
    assert sidecar_calls(decide(seen, in_(10**6))) == [calls.STATE]
    assert not [each for each in writes(decide(seen, in_(10**6))) if isinstance(each, PatchStatus)]
