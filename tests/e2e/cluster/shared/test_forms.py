"""Tests of an episode with each form of task source, and of what a user sees of it."""

import json

import pytest

from tests.e2e.cluster.episodes import FILES, debug_task, episode, inline_source, task_spec
from tests.e2e.cluster.support import condition, run, until


def check_resolved(kubectl, name):
    status = kubectl.finished(name)
    assert (status["reason"], condition(status, "Resolved")["status"]) == ("Resolved", "True"), kubectl.explain(name)
    assert status["outcome"]["score"] == status["outcome"]["maxScore"] == 1
    return status


def test_an_inline_episode_and_the_output_of_kubectl(namespace, system, tmp_path):
    namespace.apply(episode("inline", task=task_spec(inline_source())))
    status = check_resolved(namespace, "inline")

    table = namespace("get", "episodes")
    assert table.split("\n")[0].split() == ["NAME", "REASON", "RESOLVED", "STEPS", "AGE"]
    assert table.split("\n")[1].split()[:3] == ["inline", "Resolved", "True"]
    described = namespace("describe", "episode", "inline")
    assert "Finished" in described
    assert "Events:" in described
    assert {"podCreated", "sandboxReady", "assigned", "verified"} <= set(status["stages"])
    assert status["completionTime"] > status["startTime"]
    until(lambda: not namespace.items("pods"), what="the pod to be deleted")

    places = ("-n", namespace.namespace, "--system-namespace", system.namespace, "--directory", str(tmp_path))
    run("dgym", "results", "inline", *places)
    (result,) = tmp_path.rglob("result.json")
    stored = json.loads(result.read_text())
    assert (stored["reason"], stored["episode"], stored["namespace"]) == ("Resolved", "inline", namespace.namespace)
    assert "+    return a + b" in (result.parent / "patch.diff").read_text()
    steps = [json.loads(line) for line in (result.parent / "trajectory.jsonl").read_text().splitlines()]
    assert steps[0]["schemaVersion"] == 1
    assert steps[1]["seq"] == 0


def test_a_task_by_reference(namespace):
    namespace.apply(debug_task("sums", task_spec(inline_source())), episode("by-name", taskRef={"name": "sums"}))
    status = check_resolved(namespace, "by-name")
    assert status["taskUID"] == namespace.get("debugtask", "sums")["metadata"]["uid"]


def test_a_source_in_a_config_map(namespace):
    data = {"calc": FILES["calc.py"], "test": FILES["test_calc.py"]}
    items = [{"key": "calc", "path": "calc.py"}, {"key": "test", "path": "test_calc.py"}]
    source = {"configMapRef": {"name": "repository", "items": items}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "repository"}, "data": data},
        episode("mapped", task=task_spec(source)),
    )
    check_resolved(namespace, "mapped")


def test_a_source_in_git(namespace, sources):
    namespace.apply(episode("git", task=task_spec({"git": sources.git})))
    check_resolved(namespace, "git")


def test_a_source_in_an_archive(namespace, sources):
    namespace.apply(episode("archive", task=task_spec({"archive": sources.archive})))
    check_resolved(namespace, "archive")


@pytest.mark.parametrize("template", [None, "restricted"])
def test_a_repository_in_the_image(namespace, baked_image, template):
    spec = task_spec(image=baked_image, **({"podTemplate": template} if template else {}))
    namespace.apply(episode("baked", task=spec))
    check_resolved(namespace, "baked")


def test_a_repository_in_the_image_as_root(baseline_namespace, baked_image):
    baseline_namespace.apply(episode("baked", task=task_spec(image=baked_image, podTemplate="baseline")))
    check_resolved(baseline_namespace, "baked")
