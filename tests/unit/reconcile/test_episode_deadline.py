"""The deadline's clock: from the first reset on, without preparation, scoring and the absence of agents."""

from datetime import timedelta

import msgspec
import pytest

from dgym.wire.assignments import AssignmentState
from dgym.wire.http import Path, PauseRequest
from dgym_operator.controllers import AgentView, CallSidecar
from dgym_operator.controllers.episode import agent_request, assigned_status, decide
from dgym_operator.controllers.episode.assignment import backstop
from tests.unit.reconcile.reconcile_builders import (
    NOW,
    ago,
    concluded,
    ended_pod,
    in_,
    ready_pod,
    report,
    running,
    view,
    written,
)

MARGIN = 600 + 300 + 60


def active(seconds: int, **more) -> AgentView:
    return msgspec.structs.replace(report(AssignmentState.RUNNING, **more), active_seconds=seconds)


def test_preparation_is_not_charged():
    status = concluded(view(running(assigned=1800), ended_pod(at=60), agent=active(120)))
    assert (status.active_seconds, status.attempt_seconds) == (120, 0)


def test_the_absence_of_agents_is_not_charged():
    lost = AgentView(lost_since=ago(5000), active_seconds=100)
    seen = view(running(assigned=6000), ready_pod(), agent=lost)
    ready = agent_request(seen, NOW)
    status = assigned_status(seen, ready, "another", NOW)
    assert status.attempt_seconds == 100

    again = active(50, epoch=2)
    closed = concluded(view(status, ended_pod(at=60), agent=again), in_(60))
    assert (closed.active_seconds, closed.attempt_seconds) == (150, 0)


@pytest.mark.parametrize(
    ("agent", "begun", "used"),
    [
        (AgentView(), ago(6000), 0),
        (active(0, since=1000), ago(1000), 0),
        (active(600), NOW, 600),
        (AgentView(lost_since=ago(50), active_seconds=600), ago(50), 600),
    ],
    ids=["not heard", "preparing", "active", "lost"],
)
def test_the_backstop_counts_what_is_left_of_the_deadline(agent, begun, used):
    seen = view(running(assigned=6000), ready_pod(), agent=agent)
    assert backstop(seen, NOW) == begun + timedelta(seconds=3600 - used + MARGIN)


def test_an_external_driver_may_reset_when_it_likes():
    assert backstop(view(running(assigned=6000), ready_pod(), driven=False, agent=active(0)), NOW) is None


def test_an_agent_that_goes_on_far_beyond_the_deadline_is_ended():
    late = view(running(assigned=6000), ready_pod(), agent=active(3600 + MARGIN))
    assert written(decide(late, NOW)).ending.reason == "DeadlineExceeded"


def test_the_sidecars_deadline_is_paused_while_the_agent_is_lost():
    lost = AgentView(lost_since=ago(1), lost="agent pod a is gone")
    plan = decide(view(running(epoch=2), ready_pod(), agent=lost), NOW)
    assert decide(view(running(epoch=2), ready_pod(), agent=lost, driven=False), NOW).actions == ()
    assert plan.actions == (
        CallSidecar(path=Path.PAUSE, url="http://10.0.0.7:8080", attempt=1, body=PauseRequest(epoch=2)),
    )
