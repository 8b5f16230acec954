"""Tests of sandboxes that are not ready: the cause in the status, its delay, and the effect on the episode."""

import pytest

from dgym.api import Condition, EpisodeStatus
from dgym.runner import copy_tree
from dgym_operator.controllers import CreatePod, Emit, PatchStatus, TaskState
from dgym_operator.controllers.episode import decide
from tests.unit.operator.controllers.reconcile_builders import (
    MISSING,
    NOW,
    UP,
    ago,
    between,
    condition,
    ended,
    in_,
    pod,
    ready_pod,
    running,
    status_after_attempt,
    the_condition,
    up,
    view,
    waiting,
    writes,
    written,
)

SCHEDULED = condition("PodScheduled", age=30)
NO_NODE = condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes are available", age=30)
WAITS = [
    ("Unschedulable", pod(age=30, conditions=[NO_NODE]), "0/3 nodes are available"),
    *(
        ("ImagePullFailed", pod(1, waiting("sandbox", reason, "no such image"), age=30, conditions=[SCHEDULED]), reason)
        for reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
    ),
    (
        "ImagePullFailed",
        pod(1, waiting("sandbox", "PodInitializing"), init=[waiting("install", "ErrImagePull", "denied")], age=30),
        "container install",
    ),
]


NOT_CREATED = [
    ("sandbox", "CreateContainerConfigError", "secret sandbox-env not found"),
    ("verifier", "CreateContainerError", "context deadline exceeded"),
    ("sandbox", "RunContainerError", "the runtime is not ready"),
]
WAITS += [
    ("SandboxStartFailed", pod(1, waiting(name, reason, expected), age=30, conditions=[SCHEDULED]), expected)
    for name, reason, expected in NOT_CREATED
]


@pytest.mark.parametrize(("reason", "stuck", "text"), WAITS)
def test_a_cause_that_lasts_is_shown_once_and_the_pod_is_kept(reason, stuck, text):
    plan = decide(view(None, stuck), NOW)

    status = written(plan)
    shown = the_condition(status, "SandboxReady")
    assert (status.reason, shown.status, shown.reason) == (reason, "False", reason)
    assert text in shown.message
    assert [type(action) for action in plan.actions] == [PatchStatus, Emit]
    assert plan.actions[0].progress
    again = decide(view(status, stuck), in_(30))
    assert again.actions == ()
    assert again.requeue_after is not None


@pytest.mark.parametrize(("reason", "stuck", "text"), WAITS)
def test_a_cause_that_lasts_beyond_the_start_timeout_ends_the_episode(reason, stuck, text):
    status = written(decide(view(None, stuck, start_timeout_seconds=60, backoff_limit=0), in_(120)))

    finished = the_condition(status, "Finished")
    assert (finished.status, finished.reason, status.reason) == ("True", reason, reason)
    assert text in finished.message
    assert "startTimeoutSeconds" in finished.message
    assert the_condition(status, "Resolved").reason == "NotScored"


def test_a_container_that_is_not_created_fails_after_the_start_timeout():
    stuck = pod(1, waiting("sandbox", *NOT_CREATED[0][1:]), age=30, conditions=[SCHEDULED])
    assert written(decide(view(None, stuck), NOW)).failures == 0
    status = written(decide(view(None, stuck, start_timeout_seconds=60), in_(120)))
    assert (status.reason, status.failures, the_condition(status, "Finished")) == ("SandboxStartFailed", 1, None)


def test_a_cause_that_may_pass_at_once_is_not_written():
    scheduling = condition("PodScheduled", "False", reason="Unschedulable", message="no node", age=2)

    plan = decide(view(None, pod(age=2, conditions=[scheduling])), NOW)

    assert plan.actions == ()
    assert plan.requeue_after == pytest.approx(3)


def test_a_pod_that_starts_is_waited_for_in_silence():
    starting = pod(1, *(waiting(name, "ContainerCreating") for name in ("sandbox", "verifier", "sidecar")), age=40)

    plan = decide(view(None, starting, start_timeout_seconds=100), NOW)

    assert plan.actions == ()
    assert plan.requeue_after == pytest.approx(60)


def test_a_slow_pod_is_reconciled_when_its_reserved_slot_is_released():
    starting = pod(1, waiting("sandbox", "ContainerCreating"), age=40, conditions=[condition("PodScheduled", age=30)])

    assert decide(view(None, starting), NOW).requeue_after == pytest.approx(90)
    assert decide(view(None, starting), in_(90)).requeue_after == pytest.approx(900 - 130)


def test_a_pod_that_is_never_ready_is_tried_again_and_then_given_up():
    never = pod(1, *UP, age=200, phase="Running")

    status = written(decide(view(None, never, start_timeout_seconds=100), NOW))
    assert (status.reason, status.attempt, status.failures, status.pod_name) == ("SandboxStartFailed", 1, 1, None)

    last = decide(view(between(failures=2, attempt=2, ended=300), pod(3, *UP, age=200), start_timeout_seconds=100), NOW)
    assert the_condition(written(last), "Finished").reason == "SandboxStartFailed"


def test_a_gated_pod_has_the_full_start_timeout_after_the_gate():
    gate = condition("PodScheduled", "False", reason="SchedulingGated", age=9000)
    gated = pod(age=9000, conditions=[gate])

    plan = decide(view(None, gated, start_timeout_seconds=60), NOW)
    status = written(plan)
    assert (status.reason, the_condition(status, "Finished")) == ("SchedulingGated", None)
    assert decide(view(status, gated, start_timeout_seconds=60), in_(9000)).actions == ()

    released = pod(age=9000, conditions=[NO_NODE])
    freed = written(decide(view(status, released, start_timeout_seconds=60), in_(100)))
    assert (freed.reason, the_condition(freed, "SandboxReady").last_transition_time) == ("Starting", in_(100))
    assert written(decide(view(freed, released, start_timeout_seconds=60), in_(150))).reason == "Unschedulable"
    late = written(decide(view(freed, released, start_timeout_seconds=60), in_(161)))
    assert the_condition(late, "Finished").reason == "Unschedulable"


START_FAILURES = [
    ("SandboxStartFailed", pod(1, init=[ended("install", 1, message="disk full")], phase="Failed"), "disk full"),
    ("SandboxStartFailed", pod(1, init=[ended("install", 137, reason="OOMKilled")], phase="Failed"), "137, OOMKilled"),
    ("SandboxStartFailed", pod(1, init=[ended("mine", 3, message="no licence")], phase="Failed"), '"no licence"'),
    ("SandboxStartFailed", pod(1, ended("sandbox", 127), up("verifier"), up("sidecar")), "exit code 127"),
    ("SandboxStartFailed", pod(1, up("sandbox"), ended("verifier", 1), up("sidecar"), phase="Running"), "verifier"),
]


@pytest.mark.parametrize(("reason", "broken", "text"), START_FAILURES)
def test_a_sandbox_that_cannot_start_is_tried_in_new_pods_up_to_the_limit(reason, broken, text):
    plan = decide(view(None, broken), NOW)

    status = written(plan)
    assert (status.reason, status.attempt, status.failures, status.pod_name) == (reason, 1, 1, None)
    assert text in the_condition(status, "SandboxReady").message
    assert the_condition(status, "SandboxReady").last_transition_time == NOW
    final = written(decide(view(None, broken, backoff_limit=0), NOW))
    assert the_condition(final, "Finished").reason == reason
    assert "backoffLimit 0" in the_condition(final, "Finished").message


@pytest.mark.parametrize("code", [copy_tree.NOT_READABLE, copy_tree.NO_INPUT, copy_tree.FAILED])
@pytest.mark.parametrize("begun", ["failed", "starting"])
def test_a_repository_that_cannot_be_copied_is_a_failed_setup_and_final(code, begun):
    copy = ended("copy", code, reason="Error", message="cannot read /app/secret: set podTemplate to 'baseline'")
    phase = "Failed" if begun == "failed" else "Pending"

    status = written(decide(view(None, pod(1, init=[ended("install"), copy], phase=phase)), NOW))

    finished = the_condition(status, "Finished")
    assert (finished.reason, status.reason, status.attempt) == ("SetupFailed", "SetupFailed", 1)
    expected = (
        "the repository could not be copied out of the image: cannot read /app/secret: set podTemplate to 'baseline'"
    )
    assert finished.message == expected
    silent = pod(1, init=[ended("install"), ended("copy", code, reason="Error")], phase=phase)
    message = the_condition(written(decide(view(None, silent), NOW)), "Finished").message
    assert message == f"the repository could not be copied out of the image (exit code {code})"


NO_PYTHON = 'exec: "python3": executable file not found in $PATH: unknown'


@pytest.mark.parametrize(
    ("code", "reason", "message", "shown"),
    [
        (128, "StartError", NO_PYTHON, ["exit code 128, StartError", "executable file not found", "spec.interpreter"]),
        (127, "Error", "", ["exit code 127", "spec.interpreter"]),
        (1, "Error", "SyntaxError: invalid syntax", ["exit code 1", "SyntaxError", "spec.interpreter"]),
        (2, "Error", "", ["exit code 2"]),
        (137, "OOMKilled", "", ["exit code 137, OOMKilled", "limits.memory"]),
    ],
)
def test_a_copy_that_did_not_run_is_a_sandbox_that_cannot_start(code, reason, message, shown):
    copy = ended("copy", code, reason=reason, message=message)

    status = written(decide(view(None, pod(1, init=[ended("install"), copy], phase="Failed")), NOW))

    assert (status.reason, status.failures, the_condition(status, "Finished")) == ("SandboxStartFailed", 1, None)
    for part in ("container copy", *shown):
        assert part in the_condition(status, "SandboxReady").message


LOUD = "\x1b[31mscore 3 of 3\x1b[0m\r\n\u202e\x00" + '"; Resolved; ' + "x" * 4000


@pytest.mark.parametrize(
    "broken",
    [
        pod(1, ended("sandbox", 1, message=LOUD), up("verifier"), up("sidecar")),
        pod(1, up("sandbox"), ended("verifier", 1, message=LOUD), up("sidecar")),
        pod(1, init=[ended("copy", 1, message=LOUD)], phase="Failed"),
        pod(1, init=[ended("copy", copy_tree.NO_INPUT, message=LOUD)], phase="Failed"),
        pod(1, init=[ended("mine", 1, message=LOUD)], phase="Failed"),
    ],
    ids=["sandbox", "verifier", "copy", "copied", "other"],
)
def test_messages_of_untrusted_containers_are_quoted_shortened_and_printable(broken):
    plan = decide(view(None, broken, backoff_limit=0), NOW)

    message = the_condition(written(plan), "Finished").message
    assert "score 3 of 3" in message
    for text in (
        message,
        written(plan).outcome.message,
        *(each.message for each in plan.actions if type(each) is Emit),
    ):
        assert text.isprintable()
        assert len(text) <= 800
    if "could not be copied" not in message:
        assert "\"[31mscore 3 of 3 [0m '; Resolved; xxx" in message


def test_without_its_task_an_episode_waits_and_gives_up_in_time():
    plan = decide(view(None, task=MISSING, age=10), NOW)
    status = written(plan)
    assert status.reason == "WaitingForTask"
    assert "DebugTask bug is not in namespace ns" in the_condition(status, "SandboxReady").message
    assert decide(view(None, task=MISSING, age=1), NOW).actions == ()

    gone = written(decide(view(status, task=MISSING, age=10), in_(900)))
    assert the_condition(gone, "Finished").reason == "TaskNotFound"

    there = decide(view(status, age=10), in_(300))
    assert writes(there) == (CreatePod(name="e-1", attempt=1),)


@pytest.mark.parametrize("where", ["status", "label"])
def test_a_task_that_was_made_again_is_another_task(where):
    other = TaskState(state="found", uid="another")
    labels = {"dgym.dev/task-uid": "task-uid"} if where == "label" else {}
    status = between(task_uid="task-uid") if where == "status" else None

    finished = the_condition(written(decide(view(status, task=other, labels=labels), NOW)), "Finished")

    assert finished.reason == "InvalidSpec"
    assert "created again" in finished.message


def test_an_attempt_that_runs_outlives_its_task():
    assert not writes(decide(view(running(), ready_pod(), task=MISSING), NOW))


def test_a_ready_sandbox_without_an_agent_pod_shows_waiting_for_slot():
    status = written(decide(view(None, ready_pod(ready=10)), NOW))

    assert (status.reason, status.pod_name) == ("WaitingForSlot", None)
    assert the_condition(status, "SandboxReady").status == "True"
    assert decide(view(None, ready_pod(ready=1)), NOW).actions == ()
    assert decide(view(status, ready_pod(ready=90000, age=90000)), NOW).actions == ()


def test_the_first_real_cause_is_shown_not_what_follows_from_it():
    containers = (waiting("sandbox", "PodInitializing"), waiting("sidecar", "ErrImagePull", "later"))
    stuck = pod(1, *containers, conditions=[NO_NODE], age=30)
    assert written(decide(view(None, stuck), NOW)).reason == "Unschedulable"


def test_messages_fit_what_a_status_takes():
    long = condition("PodScheduled", "False", reason="Unschedulable", message="taint " * 9000, age=30)

    shown = the_condition(written(decide(view(None, pod(age=30, conditions=[long])), NOW)), "SandboxReady")

    assert len(shown.message) <= 1024
    assert shown.message.endswith("…")


def test_a_new_cause_replaces_the_one_shown_and_keeps_the_time():
    before = Condition(type="SandboxReady", status="False", reason="Unschedulable", last_transition_time=ago(25))
    status = EpisodeStatus(conditions=(before,), reason="Unschedulable", observed_generation=1)

    new = written(decide(view(status, WAITS[1][1]), NOW))

    assert new.reason == "ImagePullFailed"
    assert the_condition(new, "SandboxReady").last_transition_time == ago(25)


def test_a_pod_that_was_deleted_before_an_agent_had_it_is_made_again_after_a_pause_and_counted():
    deleted = ready_pod(deleting=-5)
    status = written(decide(view(None, deleted), NOW))
    assert (status.reason, status.attempt, status.disruptions, status.failures) == ("SandboxLost", 1, 1, 0)
    assert "deleted before its assignment" in the_condition(status, "SandboxReady").message
    assert writes(decide(view(status, deleted), in_(9))) == ()
    assert writes(decide(view(status, deleted), in_(10))) == (CreatePod(name="e-2", attempt=2),)

    last = decide(view(between(attempt=1, failures=0, disruptions=1), pod(2, deleting=-5), max_disruptions=1), NOW)
    assert "maxDisruptions" in the_condition(written(last), "Finished").message


def test_an_episode_without_agent_gets_another_pod_only_before_its_driver_could_have_tokens():
    assert written(decide(view(None, ready_pod(deleting=-5), driven=False), NOW)).disruptions == 1
    drained = pod(1, phase="Failed", reason="Terminated", message="node shutdown")
    finished = the_condition(status_after_attempt(view(running(), drained, driven=False)), "Finished")
    assert finished.reason == "SandboxLost"
    assert "driver's tokens" in finished.message
