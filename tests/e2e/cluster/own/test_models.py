"""debug_agent on the cluster, with a scripted model behind a Service."""

import json

import pytest

from tests.e2e.cluster.episodes import episode
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import new_namespace, run, until

TASKS = ("call-billing", "rolling-usage")


@pytest.fixture(scope="module")
def watched():
    with new_namespace("e2e-thinking") as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def release(watched):
    with installed("models", watch=watched.namespace, agents=1) as release:
        run("dgym", "submit", "--bundled", "mini_nightmare", "--tasks-only", "-n", watched.namespace)
        yield release


def thinking(name, task, model):
    return episode(name, agent={"name": "debug_agent", "model": model, "maxSteps": 40}, taskRef={"name": task})


def trajectory(release, kubectl, name, directory):
    run("dgym", "results", name, *release.client_flags(kubectl.namespace), "--directory", str(directory))
    (file,) = directory.rglob("trajectory.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()][1:]


def test_a_model_debugs_and_its_agent_pod_is_killed_in_the_middle(release, watched, tmp_path):
    for task in TASKS:
        watched.apply(thinking(f"debugs-{task}", task, "debugger"))
    first = f"debugs-{TASKS[0]}"
    watched.reason(first, "Running")
    steps = until(lambda: sidecar_steps(watched, first), what="a step of the model")
    pods = release.kubectl.items("pods", "app.kubernetes.io/component=agent")
    for pod in pods:
        release.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
    for task in TASKS:
        status = watched.finished(f"debugs-{task}")
        assert (status["reason"], status["attempt"]) == ("Resolved", 1), watched.explain(f"debugs-{task}")
        assert status["outcome"]["inputTokens"] > 0
    lines = trajectory(release, watched, first, tmp_path)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert len(lines) > steps
    tools = {line["call"]["tool"] for line in lines if line["call"]}
    assert {"pdb", "rewrite"} <= tools
    assert watched.status(first)["assignment"]["epoch"] > 1
    release.wait()


def test_a_model_that_only_rewrites_does_not_solve(release, watched):
    name = "rewrites"
    watched.apply(thinking(name, TASKS[0], "rewriter"))
    status = watched.finished(name)
    assert status["reason"] in ("Unresolved", "StepLimitReached")
    assert status["outcome"]["resolved"] is False


def sidecar_steps(kubectl, name):
    """How many steps the sidecar has counted so far, from its metrics; 0 while there is none."""
    pod = kubectl.status(name)["podName"]
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}:8080/proxy/metrics"
    for line in kubectl("get", "--raw", path, check=False).splitlines():
        if line.startswith("dgym_sidecar_steps "):
            return int(float(line.split()[-1]))
    return 0
