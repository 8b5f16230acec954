"""Tests of debug_agent on the cluster, with a scripted model behind a Service."""

import json

from tests.e2e.cluster.episodes import episode
from tests.e2e.cluster.support import run, until

TASKS = 10


def test_a_model_debugs_and_its_agent_pod_is_killed_in_the_middle(release, watched, tmp_path):
    model = ("--agent", "debug_agent", "-p", "agent.model=debugger")
    run("dgym", "submit", "--bundled", "mini_nightmare", *model, "-n", watched.namespace)
    (name,) = (each["metadata"]["name"] for each in watched.items("episodesets"))
    first = f"{name}-0"
    watched.reason(first, "Running")
    before = watched.status(first)["assignment"]
    until(lambda: sidecar_steps(watched, first) >= 2, what="some steps of the model")
    for pod in release.kubectl.items("pods", "app.kubernetes.io/component=agent"):
        if pod["metadata"]["uid"] == before["agentPodUID"]:
            force = ("--grace-period=0", "--force", "--wait=false")
            release.kubectl("delete", "pod", pod["metadata"]["name"], *force)
    watched("wait", "--for=condition=Finished", f"episodeset/{name}", "--timeout=400s", timeout=430)
    status = watched.get("episodeset", name)["status"]
    assert (status["resolved"], status["total"]) == (TASKS, TASKS), status
    taken_over = watched.status(first)
    assert taken_over["attempt"] == 1
    assert taken_over["assignment"]["epoch"] > before["epoch"]
    assert taken_over["outcome"]["inputTokens"] > 0
    lines = release.trajectory(watched, first, tmp_path)
    assert [line["seq"] for line in lines] == list(range(taken_over["outcome"]["steps"] + 1))
    assert {"pdb", "rewrite"} <= {line["call"]["tool"] for line in lines if line["call"]}
    silent = [line["seq"] for line in lines[1:] if not line.get("exchanges")]
    assert len(silent) <= 1, "what the model said is lost for the one step that ran during the kill, if for any"
    release.wait()


def test_a_model_that_only_rewrites_does_not_resolve_the_task(release, watched):
    agent = {"name": "debug_agent", "model": "rewriter", "maxSteps": 40}
    watched.apply(episode("rewrites", agent=agent, taskRef={"name": "call-billing"}))
    status = watched.finished("rewrites")
    assert status["reason"] in ("Unresolved", "StepLimitReached")
    assert status["outcome"]["resolved"] is False


def sidecar_steps(kubectl, name):
    """Number of steps that the sidecar has answered so far, from its log."""
    log = kubectl("logs", kubectl.status(name)["podName"], "--container=sidecar", check=False)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return sum(line.get("path", "").startswith("/v1/steps/") and line.get("code") == "ok" for line in lines)
