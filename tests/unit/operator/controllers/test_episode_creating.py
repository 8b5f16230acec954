"""Tests of the creation of pods: refusals of the API server, and the wait for a slot."""

import msgspec
import pytest

from dgym.api import Condition
from dgym_operator.controllers import CreateFailure, CreatePod, PatchStatus
from dgym_operator.controllers.episode import decide
from tests.unit.operator.controllers.reconcile_builders import (
    NOW,
    between,
    in_,
    ready_pod,
    the_condition,
    view,
    writes,
    written,
)


@pytest.mark.parametrize("reason", ["PodRejected", "InvalidSpec"])
def test_a_pod_that_is_refused_for_good_ends_the_episode(reason):
    failure = CreateFailure(reason=reason, message="violates PodSecurity", since=NOW)

    finished = the_condition(written(decide(view(None, create_failure=failure), NOW)), "Finished")

    assert (finished.reason, finished.message) == (reason, "violates PodSecurity")


def failed(reason: str, message: str, *, is_temporary: bool = True, at: float = 0, **more) -> CreateFailure:
    return CreateFailure(reason=reason, message=message, since=in_(at), is_temporary=is_temporary, **more)


def test_a_quota_is_waited_for_and_tried_again_in_growing_intervals():
    failure = failed("QuotaExceeded", "exceeded quota: cpu")
    first = decide(view(None, create_failure=failure), in_(2))
    assert (first.actions, first.requeue_after) == ((), pytest.approx(3))
    shown = decide(view(None, create_failure=failure), in_(6))
    assert written(shown).reason == "QuotaExceeded"
    assert shown.requeue_after == pytest.approx(4)
    at = 0
    for seconds in (10, 20, 40, 60, 60):
        again = view(written(shown), create_failure=failure)
        assert not decide(again, in_(at + seconds - 1)).actions
        assert writes(decide(again, in_(at + seconds))) == (CreatePod(name="e-1", attempt=1),)
        at += seconds
        failure = failure.followed_by(failed("QuotaExceeded", "exceeded quota: cpu", at=at))


@pytest.mark.parametrize(
    ("spec", "seconds"), [({}, 3600), ({"start_timeout_seconds": 7200}, 7200), ({"active_deadline_seconds": 60}, 900)]
)
def test_a_quota_is_waited_for_as_long_as_the_episodes_own_deadlines_let_it(spec, seconds):
    failure = failed("QuotaExceeded", "exceeded quota: cpu", tries=60, tried=in_(seconds - 30))
    assert not the_condition(written(decide(view(None, create_failure=failure, **spec), in_(seconds - 1))), "Finished")
    end = the_condition(written(decide(view(None, create_failure=failure, **spec), in_(seconds))), "Finished")
    assert end.reason == "QuotaExceeded"
    assert end.message.startswith(f"exceeded quota: cpu; the pod could not be created within {seconds} s")


@pytest.mark.parametrize("reason", ["InternalError", "PodRejected"])
def test_a_cause_that_passes_is_waited_for_however_often_it_was_tried(reason):
    failure = failed(reason, "too many requests", tries=50, tried=in_(100))
    plan = decide(view(None, create_failure=failure), in_(110))
    assert written(plan).reason == "PodNotCreated"
    assert the_condition(written(plan), "SandboxReady").message == "too many requests"
    assert writes(decide(view(written(plan), create_failure=failure), in_(160))) == (CreatePod(name="e-1", attempt=1),)
    last = failure.followed_by(failed(reason, "too many requests", at=860))
    end = the_condition(written(decide(view(written(plan), create_failure=last), in_(900))), "Finished")
    assert end.reason == reason
    assert end.message == "too many requests; the pod could not be created within 900 s (startTimeoutSeconds)"


def test_time_without_a_slot_does_not_count_for_failed_creation():
    """After one failure the episode lost its place to other episodes. It does not end because they take long."""
    failure = failed("InternalError", "etcd timed out")
    status = written(decide(view(None, create_failure=failure), in_(6)))
    assert writes(decide(view(status, create_failure=failure), in_(5000))) == (CreatePod(name="e-1", attempt=1),)
    again = failure.followed_by(failed("InternalError", "etcd timed out", at=5000))
    end = the_condition(written(decide(view(status, create_failure=again), in_(5001))), "Finished")
    assert end.reason == "InternalError"


def test_time_of_a_suspension_does_not_count_for_failed_creation():
    resumed = Condition(type="Suspended", status="False", reason="Resumed", last_transition_time=in_(5000))
    failure = failed("InternalError", "etcd timed out", tries=2, tried=in_(5000))
    status = msgspec.structs.replace(between(failures=0, reason="Pending"), conditions=(resumed,))
    assert not the_condition(written(decide(view(status, create_failure=failure), in_(5006))), "Finished")


def test_creation_is_not_retried_before_retry_after():
    failure = failed("InternalError", "too many requests", retry_after=120.0)
    status = written(decide(view(None, create_failure=failure), in_(10)))
    assert not decide(view(status, create_failure=failure), in_(119)).actions
    assert writes(decide(view(status, create_failure=failure), in_(120))) == (CreatePod(name="e-1", attempt=1),)


def test_the_first_real_cause_of_many_failures_is_the_one_that_is_shown():
    hiccup, other = failed("InternalError", "no answer"), failed("InternalError", "etcd timed out", at=10)
    quota, final = (
        failed("QuotaExceeded", "no room", at=20),
        failed("PodRejected", "too open", is_temporary=False, at=30),
    )
    assert hiccup.followed_by(other) == failed("InternalError", "no answer", tries=2, tried=in_(10))
    assert hiccup.followed_by(quota) == failed("QuotaExceeded", "no room", tries=2, tried=in_(20))
    assert quota.followed_by(hiccup).message == "no room"
    # Messages that differ only in numbers have the same cause. Another text is a new cause, which is shown.
    used = [failed("QuotaExceeded", f"used: pods={number}", at=20) for number in (9, 10)]
    assert used[0].followed_by(used[1]).message == "used: pods=9"
    assert quota.followed_by(used[0]).message == "used: pods=9"
    lagging = [failed("PodRejected", cause) for cause in ("a LimitRange's default", "an earlier pod")]
    assert lagging[0].followed_by(lagging[1]).message == "an earlier pod"
    assert quota.followed_by(final).reason == "PodRejected"
    # A quota that was exhausted earlier does not turn a temporary failure into the end of the episode.
    often = quota
    for _ in range(9):
        often = often.followed_by(hiccup)
    assert not the_condition(written(decide(view(None, create_failure=often), in_(30))), "Finished")


def test_without_a_grant_no_pod_is_created_and_no_deadline_runs():
    plan = decide(view(None, may_create=False, age=60), NOW)
    status = written(plan)
    assert (status.reason, status.pod_name, status.attempt) == ("WaitingForSlot", None, 0)

    assert decide(view(status, may_create=False, age=90000), in_(80000)).actions == ()
    assert decide(view(None, may_create=False, age=1), NOW).actions == ()


def test_a_child_of_a_set_shows_a_long_wait_alone():
    short = decide(view(None, may_create=False, owned_by_set=True, age=10), NOW)
    assert (short.actions, short.requeue_after) == ((), 20)
    assert written(decide(view(None, may_create=False, owned_by_set=True, age=31), NOW)).reason == "WaitingForSlot"


def test_a_changed_cause_of_waiting_updates_the_status():
    def held(status, text, *pods):
        return decide(view(status, *pods, may_create=False, held_by=text), NOW)

    status = written(held(None, "all are busy"))
    assert the_condition(status, "SandboxReady").message == "a sandbox waits for a slot: all are busy"
    assert held(status, "all are busy").actions == ()
    plan = held(status, "no agent pod answers: timed out")
    assert [type(action) for action in plan.actions] == [PatchStatus]
    assert plan.actions[0].progress
    status = written(plan)
    assert the_condition(status, "SandboxReady").message.endswith("no agent pod answers: timed out")
    ready = the_condition(written(held(status, "all are busy", ready_pod(ready=10))), "SandboxReady")
    assert (ready.status, ready.message) == ("True", "the sandbox is ready and waits for an agent pod: all are busy")
