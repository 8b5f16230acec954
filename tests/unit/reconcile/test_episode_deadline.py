"""The deadline's clock is the sidecar's: from the first reset on, without preparation, scoring and lost agents."""

from datetime import timedelta

import msgspec
import pytest

from dgym.wire.assignments import AssignmentState
from dgym.wire.http import AttemptState, Path, PauseRequest
from dgym_operator.controllers import AgentView, CallSidecar, PatchStatus, SidecarView
from dgym_operator.controllers.episode import agent_request, assigned_status, decide
from dgym_operator.controllers.episode.clocks import backstop
from tests.unit.reconcile.reconcile_builders import (
    NOW,
    ago,
    concluded,
    ended_pod,
    in_,
    message,
    ready_pod,
    report,
    running,
    the_condition,
    view,
    words,
    writes,
    written,
)

SCORING = 600 + 300 + 60
replace = msgspec.structs.replace


def active(seconds: int, **more) -> AgentView:
    return replace(report(AssignmentState.RUNNING, **more), active_seconds=seconds)


def told(at, **state) -> SidecarView:
    return SidecarView().after_state(AttemptState(**state), at)


def paths(plan) -> list[Path]:
    return [action.path for action in plan.actions if isinstance(action, CallSidecar)]


# What an attempt has used


def test_the_sidecars_last_message_has_its_clock():
    lost = ended_pod(words(elapsed_seconds=120.9), at=60)
    status = concluded(view(running(assigned=1800, attempt_seconds=50), lost, agent=active(700)))
    assert (status.active_seconds, status.attempt_seconds) == (120, 0)


def test_the_clock_that_was_asked_for_at_the_end_counts_where_the_pod_leaves_none():
    ending = written(decide(view(running(), ready_pod(), suspend=True, agent=active(700)), NOW))
    for at, seconds in ((1, 130), (-1, 700)):
        heard = told(in_(at), elapsed_seconds=130.0)
        gone = view(ending, agent=active(700), sidecar=heard, suspend=True, absent=frozenset({"e-1"}))
        assert concluded(gone).active_seconds == seconds


def test_a_pod_that_is_gone_with_its_node_has_the_clock_of_its_agents():
    status = concluded(view(running(attempt_seconds=100), agent=active(120), absent=frozenset({"e-1"})))
    assert (status.active_seconds, status.attempt_seconds) == (220, 0)


def test_the_clock_is_asked_for_when_the_agent_is_lost():
    lost = AgentView(lost_since=ago(1000), active_seconds=100)
    seen = view(running(assigned=6000), ready_pod(), agent=lost)
    assert paths(decide(seen, NOW)) == [Path.PAUSE, Path.STATE]
    asked = replace(seen, sidecar=told(ago(999), elapsed_seconds=90.5))
    assert paths(decide(asked, NOW)) == [Path.PAUSE]
    for view_, seconds in ((seen, 100), (asked, 90)):
        status = assigned_status(view_, agent_request(view_, NOW), "another", NOW)
        assert status.attempt_seconds == seconds
        again = concluded(view(status, agent=active(50, epoch=2), absent=frozenset({"e-1"})), in_(60))
        assert (again.active_seconds, again.attempt_seconds) == (seconds + 50, 0)


def test_the_sidecars_deadline_is_paused_while_the_agent_is_lost():
    lost = AgentView(lost_since=ago(1), lost="agent pod a is gone")
    plan = decide(view(running(epoch=2), ready_pod(), agent=lost), NOW)
    assert decide(view(running(epoch=2), ready_pod(), agent=lost, driven=False), NOW).actions == ()
    url = "http://10.0.0.7:8080"
    assert plan.actions == (
        CallSidecar(path=Path.PAUSE, url=url, attempt=1, body=PauseRequest(epoch=2)),
        CallSidecar(path=Path.STATE, url=url, attempt=1),
    )


def test_what_the_attempts_have_used_is_not_used_again():
    lost = ended_pod(words(attempt=2, elapsed_seconds=10.0), attempt=2, at=60)
    status = concluded(view(running(attempt=2, failures=1, active_seconds=3590), lost))
    assert the_condition(status, "Finished").reason == "DeadlineExceeded"


# An attempt that outlives it


@pytest.mark.parametrize(
    ("agent", "begun"),
    [(AgentView(), ago(6000)), (active(0, since=1000), ago(1000))],
    ids=["not heard", "since its state"],
)
def test_the_sidecar_is_asked_once_its_deadline_may_have_passed(agent, begun):
    late = backstop(view(running(assigned=6000), ready_pod(), agent=agent))
    assert late.ask == begun + timedelta(seconds=3600)
    assert late.end == late.ask + timedelta(seconds=SCORING)


def test_the_clock_of_an_attempt_that_runs_is_not_asked_for():
    plan = decide(view(running(assigned=3599), ready_pod(), agent=active(100, since=3599)), NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(1))


def test_the_sidecar_says_how_much_is_left():
    seen = view(running(assigned=3600), ready_pod())
    plan = decide(seen, NOW)
    assert (paths(plan), plan.requeue_after) == ([Path.STATE], 5)
    left = replace(seen, sidecar=told(NOW, elapsed_seconds=3000, remaining_seconds=600, running=True))
    plan = decide(left, NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(600))
    assert paths(decide(left, in_(600))) == [Path.STATE]


def test_an_agent_is_beyond_its_deadline_by_its_sidecars_word():
    seen = view(running(assigned=3600), ready_pod())
    passed = replace(seen, sidecar=told(NOW, elapsed_seconds=3600, remaining_seconds=0, running=True))
    plan = decide(passed, NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(SCORING))
    assert paths(decide(passed, in_(SCORING))) == [Path.STATE]
    still = replace(passed, sidecar=passed.sidecar.after_state(passed.sidecar.state, in_(SCORING)))
    ending = written(decide(still, in_(SCORING))).ending
    assert (ending.cause, ending.reason) == ("agent", "DeadlineExceeded")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"elapsed_seconds": 3600, "ending": True, "remaining_seconds": 0}, "the sidecar has not scored the episode"),
        ({"remaining_seconds": 3600}, "no agent has begun the episode"),
        (None, "the sidecar does not answer"),
    ],
    ids=["scoring", "not begun", "silent"],
)
def test_what_is_not_the_agents_is_the_infrastructures(state, message):
    seen = view(running(assigned=3600), ready_pod(), agent=active(0, since=3600))
    if state is not None:
        seen = replace(seen, sidecar=told(NOW, **state))
    assert paths(decide(seen, in_(SCORING - 1))) in ([], [Path.STATE])
    late = in_(SCORING + 1)
    if state is not None:
        assert paths(decide(seen, late)) == [Path.STATE]
        seen = replace(seen, sidecar=seen.sidecar.after_state(seen.sidecar.state, late))
    ending = written(decide(seen, late)).ending
    assert (ending.cause, ending.reason) == ("infrastructure", "SandboxLost")
    assert ending.message.startswith(message)


def test_an_agent_that_never_calls_a_sidecar_that_was_paused_is_not_waited_for_without_end():
    seen = view(running(assigned=3600), ready_pod())
    for at in range(0, 3600 + SCORING, 60):
        assert paths(decide(seen, in_(at))) == [Path.STATE]
        paused = seen.sidecar.after_state(AttemptState(elapsed_seconds=3580, remaining_seconds=20), in_(at))
        seen = replace(seen, sidecar=paused)
    # A call of its agent would have started the clock.
    assert paths(decide(seen, in_(3600 + SCORING))) == [Path.STATE]
    still = replace(seen, sidecar=seen.sidecar.after_state(seen.sidecar.state, in_(3600 + SCORING)))
    ending = written(decide(still, in_(3600 + SCORING))).ending
    assert (ending.cause, ending.reason) == ("infrastructure", "SandboxLost")
    went_on = AttemptState(elapsed_seconds=3590, remaining_seconds=10, running=True)
    again = replace(seen, sidecar=seen.sidecar.after_state(went_on, in_(3600 + SCORING)))
    assert decide(again, in_(3600 + SCORING)).actions == ()


def test_a_sidecar_that_falls_silent_is_not_waited_for_without_end():
    seen = view(running(assigned=3600), ready_pod(), agent=active(100, since=3600))
    left = replace(seen, sidecar=told(NOW, elapsed_seconds=3000, remaining_seconds=600, running=True))
    assert paths(decide(left, in_(600 + SCORING - 1))) == [Path.STATE]
    assert written(decide(left, in_(600 + SCORING))).ending.reason == "SandboxLost"


def test_an_episode_with_a_verdict_has_no_clock_any_more():
    heard = told(ago(9000), elapsed_seconds=3600, remaining_seconds=0, ending=True, ended=True)
    seen = view(running(assigned=90_000), ready_pod(), agent=active(100), sidecar=heard)
    assert backstop(seen) is None
    assert decide(seen, NOW).actions == ()
    assert written(decide(view(running(), ended_pod(message()), sidecar=heard), NOW)).reason == "Resolved"


def test_without_an_agent_the_time_counts_from_its_loss():
    lost = AgentView(lost_since=ago(50), active_seconds=600)
    late = backstop(view(running(assigned=6000), ready_pod(), agent=lost))
    assert late.ask == late.end == ago(50) + timedelta(seconds=3600 - 600 + SCORING)


def test_an_external_driver_may_reset_when_it_likes():
    seen = view(running(assigned=6000), ready_pod(), driven=False, agent=active(0, since=6000))
    assert backstop(seen).end is None
    assert paths(decide(seen, in_(10**6))) == [Path.STATE]
    assert not [each for each in writes(decide(seen, in_(10**6))) if isinstance(each, PatchStatus)]
