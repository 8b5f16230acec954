"""Tests of the reported state of a set: a reason and its cause for every state, and an Event for every change."""

import msgspec
import pytest

from dgym.api import Condition, EpisodeSetStatus, LabelSelector
from dgym_operator.controllers import Children, Emit, EpisodeSetInput, PatchSetStatus, Waits
from dgym_operator.controllers.episodeset import decide_set
from tests.unit.operator.controllers.reconcile_builders import NOW, child, episode_set, finished, in_

FROZEN = (("a", "uid-a"), ("b", "uid-b"))
RUNNING = EpisodeSetStatus(reason="Running", total=2, active=2, start_time=NOW)
FAILED = child(0, status=finished("SandboxLost"))
BOTH = (child(0), child(1))
PAUSED = Condition(type="Suspended", status="True", reason="Suspended", last_transition_time=NOW)
SUSPENDED = msgspec.structs.replace(RUNNING, reason="Suspended", conditions=(PAUSED,))
REFUSED = "admission webhook quota.example.com denied the request"

SHOWN = {
    "suspended": (episode_set("a", "b", suspend=True, status=RUNNING), BOTH, {}, "Suspended", "Normal", ""),
    "cancelled": (episode_set("a", "b", cancel=True, status=RUNNING), BOTH, {}, "Cancelled", "Normal", "2 episodes"),
    "failed": (
        episode_set("a", "b", max_failed=1, status=RUNNING),
        (FAILED, child(1)),
        {},
        "MaxFailedReached",
        "Warning",
        "1 episodes are still under way",
    ),
    "refused": (
        episode_set("a", "b", parallelism=1, status=RUNNING),
        (child(0),),
        {"refused": REFUSED},
        "EpisodeRefused",
        "Warning",
        REFUSED,
    ),
    "completed": (
        episode_set("a", "b", status=RUNNING),
        (FAILED, child(1, status=finished())),
        {},
        "Completed",
        "Normal",
        "1 of 1 scored episodes are resolved, 1 episodes failed",
    ),
    "no tasks": (
        episode_set(task_selector=LabelSelector()),
        (),
        {"frozen": None},
        "WaitingForTask",
        "Warning",
        "does not select a DebugTask",
    ),
}


def see(episode_set_, *children, **more) -> EpisodeSetInput:
    return EpisodeSetInput(episode_set=episode_set_, children=Children(children), **{"frozen": FROZEN, **more})


def shown(seen: EpisodeSetInput, now=NOW) -> tuple[EpisodeSetStatus, list[Emit]]:
    plan = decide_set(seen, now)
    (status,) = [action.status for action in plan.actions if isinstance(action, PatchSetStatus)]
    return status, [action for action in plan.actions if isinstance(action, Emit)]


@pytest.mark.parametrize("name", SHOWN)
def test_every_state_of_a_set_has_a_reason_its_cause_and_one_event(name):
    seen, children, more, reason, kind, text = SHOWN[name]

    status, events = shown(see(seen, *children, **more), in_(60))

    assert status.reason == reason
    assert text in status.message
    assert events == [Emit(type=kind, reason=reason, message=status.message)]
    after = msgspec.structs.replace(seen, status=status)
    again = decide_set(see(after, *children, **more), in_(61))
    assert not [action for action in again.actions if isinstance(action, Emit)]


def test_a_running_set_shows_running_without_an_event():
    status, events = shown(see(episode_set("a", "b")))
    assert (status.reason, status.active, events) == ("Running", 0, [])


def test_suspended_and_active_children_are_counted_separately():
    seen = episode_set("a", "b", suspend=True, status=RUNNING)
    status, _ = shown(see(seen, child(0, suspend=True), child(1), waits=Waits(active=1)))
    assert (status.active, status.suspended, status.pending) == (1, 1, 0)


def test_a_resumed_set_has_an_event():
    resuming = msgspec.structs.replace(PAUSED, reason="Resuming", last_transition_time=NOW)
    before = msgspec.structs.replace(SUSPENDED, reason="Resuming", conditions=(resuming,))
    status, events = shown(see(episode_set("a", "b", status=before), *BOTH), in_(6))
    assert status.reason == "Running"
    assert [(event.type, event.reason) for event in events] == [("Normal", "Resumed")]
