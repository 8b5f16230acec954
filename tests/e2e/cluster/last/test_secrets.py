"""Test that objects, logs, Events and results contain neither Secrets nor tokens derived from them.

It runs after the other tests of the shared release, reads their recorded objects, and needs the running release.
"""

import json
import time

import pytest

from dgym.wire.assignments import HOUR_SECONDS
from tests.e2e.cluster.episodes import SUBMIT, driven_episode, episode, inline_source, replay, shell, task_spec
from tests.e2e.cluster.stored import read_stored
from tests.e2e.cluster.support import run, until
from tests.e2e.cluster.witness import OBJECTS, SECRETS, seen
from tests.security.leaks import Secrets, leaks

COMPONENTS = ("operator", "agent")
CONTAINERS = ("sidecar", "sandbox", "verifier")


def secrets_so_far():
    """Every recorded Secret, the tokens of every attempt, and the tokens of every agent pod in the last hours."""
    found = Secrets()
    for secret in seen(SECRETS):
        found.add(secret)
    hour = int(time.time()) // HOUR_SECONDS
    for pod in seen("pods"):
        if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "agent":
            found.add_agent(pod["metadata"]["uid"], range(hour - 2, hour + 2))
        owner = next(iter(pod["metadata"].get("ownerReferences", ())), {})
        if owner.get("kind") == "Episode":
            found.add_attempt(owner["uid"], int(pod["metadata"]["labels"]["dgym.dev/attempt"]))
    return found


@pytest.fixture
def observed(namespace, system):
    """Run a finished Episode and an Episode that waits for its driver. Returns the logs of their pods."""
    agent = {"name": "debug_agent", "model": "scripted", "maxSteps": 3}
    task = task_spec(inline_source())
    slow = replay(shell("env; ls -R /proc/1 /run /tmp 2>/dev/null | head -200; sleep 15"), SUBMIT)
    episodes = episode("asking", agent=agent, task=task), episode("slow", agent=slow, task=task)
    namespace.apply(*episodes, driven_episode("driven", task=task))
    namespace.reason("slow", "Running")
    logs = logs_of_an_attempt(namespace, "slow")
    until(lambda: "-driver-" in namespace("get", "secrets", "-o", "name"), what="the Secret of a driver")
    logs |= logs_of_an_attempt(namespace, "driven")
    namespace.finished("asking")
    namespace.finished("slow")
    namespace("delete", "episode", "driven", "--wait=false")
    until(lambda: [each for each in seen(SECRETS) if "-driver-" in each["metadata"]["name"]], what="the record of it")
    return logs


def logs_of_an_attempt(kubectl, name):
    """The logs of the pod's containers, by a description of the log."""
    pod = kubectl.status(name)["podName"]
    return {f"log of {name} {container}": log(kubectl, pod, container) for container in CONTAINERS}


def log(kubectl, pod, container, *flags):
    return kubectl("logs", pod, "-c", container, *flags, check=False).encode("utf-8", "surrogateescape")


def logs_of_the_release(system):
    """The logs of operators and agent pods, including those of terminated containers."""
    texts = {}
    for component in COMPONENTS:
        for pod in system.items("pods", f"app.kubernetes.io/component={component}"):
            name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
            texts[f"log of {name}"] = log(system, name, container["name"])
            texts[f"former log of {name}"] = log(system, name, container["name"], "--previous")
    return texts


@pytest.mark.attack("secrets")
def test_no_secret_is_found_outside_of_secrets(observed, system):
    results = read_stored(system)
    texts = {**observed, **logs_of_the_release(system), **{f"stored {path}": data for path, data in results.items()}}
    secrets = secrets_so_far()
    # Check first that a Secret is found where it exists.
    assert secrets.found_in(json.dumps(secret_of(system, "dgym-key")).encode())
    assert len(secrets) > 100
    assert texts["log of slow sidecar"]
    assert any(path.endswith("trajectory.jsonl") for path in results)
    found = {f"{place}: {name}" for place, text in texts.items() for name in secrets.found_in(text)}
    objects = {kind: seen(kind) for kind in OBJECTS}
    assert all(objects[kind] for kind in ("pods", "episodes", "events")), "nothing was recorded"
    for versions in objects.values():
        found |= leaks(secrets, versions)
    assert not found, "\n".join(sorted(found))


def secret_of(system, name):
    return json.loads(run("kubectl", "-n", system.namespace, "get", "secret", name, "-o", "json"))
