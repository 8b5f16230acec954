"""Tests of problems before an agent's first step: the reason and the message, in time."""

import json

import pytest

from tests.e2e.cluster.episodes import REPAIR, SUBMIT, debug_task, episode, inline_source, replay, shell, task_spec
from tests.e2e.cluster.support import DEADLINE, condition, until


def inline(name, *, agent=None, task=None, **spec):
    return episode(name, agent=agent, task=task or task_spec(inline_source()), **spec)


def test_a_missing_image(namespace):
    task = task_spec(inline_source(), image="localhost/dgym-e2e/there-is-none:1")
    # Other tests may use the processors of the node for a while.
    namespace.apply(inline("bad-image", task=task, startTimeoutSeconds=60))
    status = namespace.reason("bad-image", "ImagePullFailed", DEADLINE)
    status = namespace.finished("bad-image")
    assert status["reason"] == "ImagePullFailed"
    assert "there-is-none" in condition(status, "Finished")["message"]
    assert condition(status, "Resolved")["reason"] == "NotScored"
    until(lambda: not namespace.items("pods"), what="its pod to go")


def test_an_unschedulable_pod(namespace):
    overrides = {"nodeSelector": {"there-is": "no-such-node"}}
    namespace.apply(inline("nowhere", podOverrides=overrides, startTimeoutSeconds=20))
    namespace.reason("nowhere", "Unschedulable", DEADLINE)
    status = namespace.finished("nowhere")
    assert status["reason"] == "Unschedulable"
    assert "node" in condition(status, "Finished")["message"]


def test_unschedulable_pods_do_not_delay_other_episodes(namespace):
    """There are more such pods than slots and head start together."""
    overrides = {"nodeSelector": {"there-is": "no-such-node"}}
    names = [f"nowhere-{number}" for number in range(25)]
    namespace.apply(*(inline(name, podOverrides=overrides, priority=1000) for name in names))
    namespace.apply(inline("good"))
    assert namespace.finished("good")["reason"] == "Resolved"
    # A reason is shown only after it has lasted for a while. The good episode may have finished before that.
    reasons = until(lambda: _reasons(namespace, names), what="the reason of each wait to show", seconds=DEADLINE)
    assert reasons <= {"Unschedulable", "WaitingForSlot"}


def _reasons(namespace, names):
    """The reasons of all episodes. None while an episode has no reason."""
    reasons = {namespace.status(name).get("reason") for name in names}
    return None if None in reasons else reasons


def test_an_eviction_counts_as_a_disruption_and_not_as_a_failure(namespace):
    namespace.apply(inline("evicted", agent=replay(*[shell("sleep 20")] * 5), backoffLimit=0))
    namespace.reason("evicted", "Running", DEADLINE)
    pod = namespace.status("evicted")["podName"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{namespace.namespace}/pods/{pod}/eviction"
    namespace("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    status = until(lambda: _disrupted(namespace.status("evicted")), what="another attempt", seconds=DEADLINE)
    assert not status.get("failures")
    assert status["disruptedAttempt"] == 1


def _disrupted(status):
    return status if status.get("disruptions") else None


def test_a_quota_that_is_used_up(namespace):
    """The episode waits and then runs when the quota allows it."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    namespace.apply(quota)
    namespace.apply(inline("patient"))
    status = namespace.reason("patient", "QuotaExceeded", DEADLINE)
    assert "few" in str(status["conditions"])
    namespace("delete", "resourcequota", "few")
    assert namespace.finished("patient")["reason"] == "Resolved"


def test_a_task_that_is_created_after_its_episode(namespace):
    namespace.apply(episode("early", taskRef={"name": "late"}))
    status = namespace.reason("early", "WaitingForTask", DEADLINE)
    assert "late" in str(status["conditions"])
    namespace.apply(debug_task("late", task_spec(inline_source())))
    assert namespace.finished("early")["reason"] == "Resolved"


def test_a_task_that_never_comes(namespace):
    namespace.apply(episode("never", taskRef={"name": "nowhere"}, startTimeoutSeconds=8))
    status = namespace.finished("never")
    assert status["reason"] == "TaskNotFound"
    assert "nowhere" in condition(status, "Finished")["message"]


def test_a_setup_that_fails(namespace):
    namespace.apply(inline("broken", task=task_spec(inline_source(), setupCommands=["echo no such luck; exit 3"])))
    status = namespace.finished("broken")
    assert status["reason"] == "SetupFailed"
    assert "no such luck" in condition(status, "Finished")["message"]


def test_tests_that_hang(namespace):
    """The timeout of the entrypoint is a failure of the tests, not of the infrastructure."""
    task = task_spec(inline_source(), entrypoint="sleep 600", entrypointTimeoutSeconds=3)
    task.pop("scoring")
    namespace.apply(inline("hanging", task=task, agent=replay(REPAIR, SUBMIT)))
    status = namespace.finished("hanging")
    assert status["reason"] == "Unresolved", status


def test_a_deadline(namespace):
    namespace.apply(inline("slow", agent=replay(*[shell("sleep 20")] * 5), activeDeadlineSeconds=6))
    status = namespace.finished("slow")
    assert status["reason"] == "DeadlineExceeded"
    assert condition(status, "Resolved")["reason"] == "Unsolved"


def test_a_source_from_a_host_that_is_not_allowed(namespace):
    source = {"git": {"url": "https://192.0.2.1/repository.git", "revision": "main"}}
    namespace.apply(inline("elsewhere", task=task_spec(source)))
    status = namespace.finished("elsewhere")
    assert status["reason"] == "SourceFailed"
    assert "192.0.2.1" in condition(status, "Finished")["message"]


def test_a_missing_pod_template(namespace):
    namespace.apply(inline("odd", task=task_spec(inline_source(), podTemplate="restrictd")))
    status = namespace.finished("odd")
    assert status["reason"] == "InvalidSpec"
    assert "restricted" in condition(status, "Finished")["message"]


def test_a_pod_that_the_namespace_does_not_allow(namespace, baked_image):
    """Template ``baseline`` in a namespace with Pod Security restricted."""
    namespace.apply(episode("root", task=task_spec(image=baked_image, podTemplate="baseline")))
    status = namespace.finished("root")
    assert status["reason"] == "PodRejected"
    assert "restricted" in condition(status, "Finished")["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taskRef": {"name": "other"}}, "exactly one of"),
        ({"agent": {"name": "solution", "maxSteps": 0}}, "maxSteps"),
        ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
        ({"unknownField": 1}, "unknownField"),
    ],
)
def test_manifests_that_are_refused(namespace, change, message):
    manifest = inline("refused")
    manifest["spec"].update(change)
    assert message in namespace.apply(manifest, check=False)
    assert namespace.get("episode", "refused") is None


def test_a_task_cannot_be_changed(namespace):
    namespace.apply(debug_task("fixed", task_spec(inline_source())))
    output = namespace.apply(debug_task("fixed", task_spec(inline_source(), instructions="other")), check=False)
    assert "a DebugTask cannot be changed" in output
