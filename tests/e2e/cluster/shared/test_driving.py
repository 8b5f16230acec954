"""Tests of episodes without an agent: the example program and ``dgym attach`` drive them from outside the cluster."""

import sys

from tests.e2e.cluster.episodes import driven_episode, inline_source, task_spec
from tests.e2e.cluster.support import ROOT, run, until

DRIVING = ROOT / "examples" / "driving"
NAMES = [f"driven-{number}" for number in range(4)]


def secrets(kubectl):
    return [each for each in kubectl.items("secrets") if "-driver-" in each["metadata"]["name"]]


def test_four_episodes_are_driven_at_once(namespace):
    namespace("apply", "-f", str(DRIVING / "episodes.yaml"))
    out = run(sys.executable, str(DRIVING / "drive.py"), namespace.namespace)
    assert out.splitlines() == [f"{namespace.namespace}/{name}: resolved after 4 steps" for name in NAMES]
    for name in NAMES:
        status = namespace.finished(name)
        assert (status["reason"], status["attempt"], status["outcome"]["steps"]) == ("Resolved", 1, 4)
    until(lambda: not namespace.items("pods"), what="the pods to be deleted")
    until(lambda: not secrets(namespace), what="the Secrets of the drivers to be deleted with their pods")


def test_a_person_leaves_an_episode_and_ends_it_later(namespace):
    namespace.apply(driven_episode("attached", task=task_spec(inline_source())))
    attach = ("dgym", "attach", "attached", "-n", namespace.namespace)
    assert "return a - b" in run(*attach, text="view calc.py\n")
    (secret,) = secrets(namespace)
    pod = namespace.get("pod", namespace.status("attached")["podName"])
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    out = run(*attach, text="rewrite calc.py 2:2 <c>    return a + b</c>\nsubmit\n")
    assert "Resolved: 1 of 1 after 3 steps." in out
    assert namespace.finished("attached")["outcome"]["steps"] == 3


def test_an_episode_without_calls_of_its_driver_ends_as_driver_idle(namespace):
    namespace.apply(driven_episode("idle", task=task_spec(inline_source()), driverIdleTimeoutSeconds=5))
    status = namespace.finished("idle")
    assert (status["reason"], status["attempt"]) == ("DriverIdle", 1), namespace.explain("idle")
