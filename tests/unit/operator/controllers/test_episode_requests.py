"""Tests of requests of users during an episode, and of its status and actions while agent pods change."""

import msgspec
import pytest

from dgym.api import Stages
from dgym.wire import AttemptOutcome, EndReason, calls
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.http import PauseRequest
from dgym_operator.controllers import AgentPodView, CallSidecar, CreatePod, DeleteEpisode, DeletePod, Plan
from dgym_operator.controllers._conditions import is_outdated
from dgym_operator.controllers.episode import agent_pod_request, assigned_status, decide, retry_at
from tests.unit.operator.controllers.reconcile_builders import (
    AGENT,
    NOW,
    UID,
    ago,
    ended_pod,
    in_,
    message,
    ready_pod,
    report,
    running,
    status_after_attempt,
    the_condition,
    view,
    writes,
    written,
)


def test_cancelling_asks_the_sidecar_and_takes_its_outcome():
    ending = written(decide(view(running(), ready_pod(), cancel=True), NOW))
    assert (ending.reason, ending.ending.cause, ending.ending.reason) == ("Terminating", "user", "Cancelled")
    plan = decide(view(ending, ready_pod(), cancel=True), NOW)
    assert plan.actions == (CallSidecar(call=calls.CANCEL, url="http://10.0.0.7:8080", attempt=1),)
    assert plan.requeue_after == 5
    text = message(EndReason.CANCELLED, score=1, max_score=3)
    status = written(decide(view(ending, ended_pod(text), cancel=True), NOW))
    assert (the_condition(status, "Finished").reason, the_condition(status, "Resolved").reason) == (
        "Cancelled",
        "Unsolved",
    )


@pytest.mark.parametrize("pods", [(), (ready_pod(),)], ids=["no pod", "ready"])
def test_cancelling_an_unassigned_episode_ends_it_immediately(pods):
    status = written(decide(view(None, *pods, cancel=True, suspend=True), NOW))
    assert (the_condition(status, "Finished").reason, the_condition(status, "Resolved").reason) == (
        "Cancelled",
        "NotScored",
    )


def test_a_cancelled_attempt_that_is_lost_is_not_tried_again():
    status = status_after_attempt(view(running(), ended_pod(at=60), cancel=True))
    assert the_condition(status, "Finished").reason == "Cancelled"


def test_suspending_deletes_the_sandbox_and_resuming_creates_a_new_one():
    served = AgentPodView(active_seconds=20)
    suspended = status_after_attempt(view(running(), ready_pod(), agent_pod=served, suspend=True))
    assert (suspended.attempt, suspended.pod_name, suspended.reason, suspended.failures) == (1, None, "Suspended", 0)
    assert suspended.active_seconds == 20
    assert the_condition(suspended, "Suspended").status == "True"

    waits = decide(view(suspended, ready_pod(), suspend=True), in_(1))
    assert waits.actions == (DeletePod(name="e-1", uid="pod-uid-1"),)
    assert decide(view(suspended, suspend=True), in_(99999)) == Plan()

    resumed = written(decide(view(suspended), in_(100000)))
    assert the_condition(resumed, "Suspended").status == "False"
    assert writes(decide(view(resumed, absent=frozenset({"e-1"})), in_(100001))) == (CreatePod(name="e-2", attempt=2),)


def test_an_episode_that_begins_suspended_has_no_pod():
    status = written(decide(view(None, suspend=True), NOW))
    assert (status.attempt, the_condition(status, "Suspended").status) == (0, "True")
    assert decide(view(status, suspend=True), NOW) == Plan()


def test_a_spec_that_changes_after_the_end_is_observed():
    done = written(decide(view(running(), ended_pod(message())), NOW))
    seen = view(done)
    metadata = msgspec.structs.replace(seen.episode.metadata, generation=2)
    seen = msgspec.structs.replace(seen, episode=msgspec.structs.replace(seen.episode, metadata=metadata))
    assert written(decide(seen, NOW)) == msgspec.structs.replace(done, observed_generation=2)


def test_pods_of_a_finished_episode_are_deleted_and_the_episode_after_its_ttl():
    done = written(decide(view(running(), ended_pod(message())), NOW))

    def seen(*pods, seconds: float = 0, **more) -> Plan:
        return decide(view(done, *pods, ttl_seconds_after_finished=60, **more), in_(seconds))

    assert seen(ended_pod(message())) == Plan(actions=(DeletePod(name="e-1", uid="pod-uid-1"),), requeue_after=60)
    assert seen(ended_pod(deleting=0)) == Plan(requeue_after=60)
    assert seen(seconds=60) == Plan(actions=(DeleteEpisode(name="e", uid=UID),))
    assert seen(seconds=60, owned_by_set=True) == Plan()
    assert seen(seconds=60, owned_by_set=True, counted=True).actions == (DeleteEpisode(name="e", uid=UID),)
    assert decide(view(done), in_(10**6)) == Plan()
    assert decide(view(done, ready_pod(), suspend=True, cancel=True), NOW).actions == (
        DeletePod(name="e-1", uid="pod-uid-1"),
    )


def test_an_episode_that_is_being_deleted_is_not_changed():
    assert decide(view(running(), ready_pod(), deleting=True), NOW) == Plan()


def test_progress_is_shown_when_it_lasts():
    agent = report(AssignmentState.STORE_UNAVAILABLE, since=4, message="No space left on device: /results")
    plan = decide(view(running(), ready_pod(), agent_pod=agent), NOW)
    assert (plan.actions, plan.requeue_after) == ((), pytest.approx(1))
    status = written(decide(view(running(), ready_pod(), agent_pod=agent), in_(1)))
    assert (status.reason, status.message) == ("ResultStoreUnavailable", "No space left on device: /results")
    assert not decide(view(status, ready_pod(), agent_pod=agent), in_(50)).actions


def test_the_message_about_a_waiting_model_is_written_and_removed():
    def seen(status, message):
        agent = report(AssignmentState.RUNNING, since=60, message=message)
        return decide(view(status, ready_pod(), agent_pod=agent), NOW)

    waits = "waiting for the model: rate limited, try {}, again in 21 s"
    first = seen(running(), waits.format(3))
    status = written(first)
    assert (status.reason, status.message) == ("Running", waits.format(3))
    assert len(first.actions) == 1
    assert not seen(status, waits.format(3)).actions
    status = written(seen(status, waits.format(4)))
    assert status.message == waits.format(4)
    assert written(seen(status, "")).message == ""


def test_a_lost_agent_pod_is_shown_until_another_serves_the_episode():
    lost = AgentPodView(lost_since=ago(6), lost="agent pod agents-0 is gone")
    status = written(decide(view(running(), ready_pod(), agent_pod=lost), NOW))
    assert (status.reason, status.message) == ("AgentPodLost", "agent pod agents-0 is gone")
    back = written(decide(view(status, ready_pod(), agent_pod=report(AssignmentState.RUNNING, since=9)), in_(1)))
    assert (back.reason, back.message) == ("Running", "")


def test_steps_are_recorded_while_an_attempt_runs_and_not_at_every_step():
    def seen(status, steps):
        return view(status, ready_pod(), agent_pod=report(AssignmentState.RUNNING, since=60, steps=steps))

    young = decide(seen(running(assigned=29), 3), NOW)
    assert (young.actions, young.requeue_after) == ((), pytest.approx(1))
    plan = decide(seen(running(assigned=31), 3), NOW)
    status = written(plan)
    assert (status.steps, status.stages.last_step, plan.actions[0].progress) == (3, NOW, True)
    assert decide(seen(status, 9), in_(29)).actions == ()
    assert written(decide(seen(status, 9), in_(30))).steps == 9
    assert decide(seen(status, 3), in_(30)) == Plan(requeue_after=30)

    over = written(decide(view(status, ended_pod(message(steps=12))), NOW))
    assert over.steps == 12
    assert status_after_attempt(view(status, ended_pod(at=60))).steps == 0


def test_too_many_lost_agents_end_the_episode():
    lost = AgentPodView(lost_since=ago(1))
    pause, _ = writes(decide(view(running(epoch=10, assignment={"losses": 9}), ready_pod(), agent_pod=lost), NOW))
    assert pause.call is calls.PAUSE
    end = written(decide(view(running(epoch=11, assignment={"losses": 10}), ready_pod(), agent_pod=lost), NOW)).ending
    assert (end.reason, end.message[:2]) == ("AgentPodLost", "11")


def test_a_model_that_is_out_for_two_hours_ends_no_episode():
    status, now, tries = running(), NOW, 0
    while now < in_(7200):
        assignment = status.assignment
        failed = AgentPodView(
            status=AssignmentStatus(
                episode_uid=UID,
                attempt=1,
                epoch=assignment.epoch,
                state=AssignmentState.FAILED,
                outcome=AttemptOutcome(resolved=False, reason=EndReason.MODEL_ERROR, message="503"),
                outage=True,
            ),
            since=now,
        )
        status = written(decide(view(status, ready_pod(), agent_pod=failed), now))
        assert (status.reason, status.message, status.ending) == ("ModelError", "503", None)
        now, tries = retry_at(view(status, ready_pod(), agent_pod=failed)), tries + 1
        seen = view(status, ready_pod(), agent_pod=failed)
        status = assigned_status(seen, agent_pod_request(seen, now), AGENT, now)
    assert (status.assignment.failures, status.assignment.outages) == (0, tries)
    assert 20 < tries < 30


def test_an_outage_that_does_not_end_ends_the_episode_after_about_a_day():
    failed = report(AssignmentState.FAILED, reason=EndReason.MODEL_ERROR, message="503", outage=True)
    last = running(assignment={"outages": 240})
    end = written(decide(view(last, ready_pod(), agent_pod=failed), NOW)).ending
    assert (end.reason, end.message) == ("ModelError", "503; it was tried 241 times")
    # New steps show that the model was not out all the time.
    went_on = report(AssignmentState.FAILED, steps=3, reason=EndReason.MODEL_ERROR, message="503", outage=True)
    status = written(decide(view(last, ready_pod(), agent_pod=went_on), NOW))
    assert (status.ending, status.assignment.outages, status.steps) == (None, 1, 3)


def test_a_failed_model_is_noted_once_and_given_up_after_three_more_tries():
    agent = report(AssignmentState.FAILED, reason=EndReason.MODEL_ERROR, message="429 from the model")
    plan = decide(view(running(), ready_pod(), agent_pod=agent), NOW)
    status = written(plan)
    assert (status.reason, status.assignment.failures, status.assignment.failed_time) == ("ModelError", 1, NOW)
    assert status.assignment.agent_pod_uid == AGENT
    # Without a slot the episode waits, and its deadline is paused.
    pause = CallSidecar(call=calls.PAUSE, url="http://10.0.0.7:8080", attempt=1, body=PauseRequest(epoch=1))
    assert decide(view(status, ready_pod(), agent_pod=agent), in_(1)).actions == (pause,)

    third = running(epoch=4, assignment={"failures": 3})
    agent = report(AssignmentState.FAILED, epoch=4, reason=EndReason.MODEL_ERROR, message="429 from the model")
    end = written(decide(view(third, ready_pod(), agent_pod=agent), NOW)).ending
    assert (end.reason, end.message) == ("ModelError", "429 from the model; it was tried 4 times")


@pytest.mark.parametrize(("reported", "recorded"), [(None, NOW), (ago(100), ago(100))])
def test_the_number_of_steps_is_written_with_the_time_of_the_first(reported, recorded):
    agent_pod = msgspec.structs.replace(report(AssignmentState.RUNNING, steps=3), stages=Stages(first_step=reported))
    status = written(decide(view(running(assigned=120), ready_pod(), agent_pod=agent_pod), NOW))
    assert (status.steps, status.stages.first_step, status.stages.last_step) == (3, recorded, NOW)


@pytest.mark.parametrize(("observed", "outdated"), [(None, False), (0, False), (1, True), (2, False), (3, False)])
def test_a_status_of_an_older_generation_is_outdated(observed, outdated):
    assert is_outdated(observed, 2) is outdated
