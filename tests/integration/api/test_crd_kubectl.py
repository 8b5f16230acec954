"""Tests of the custom resources with kubectl."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
SERVER_SIDE = ("--server-side", "--force-conflicts")


@pytest.fixture
def kubectl(kinds, api_server, api_namespace):
    def run(*arguments, stdin=None):
        done = api_server.kubectl("-n", api_namespace, *arguments, stdin=None if stdin is None else json.dumps(stdin))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


EPISODE = {"taskRef": {"name": "calc"}, "agent": {"name": "debug_agent", "model": "gpt"}}


def test_fields_are_explained(kubectl):
    text = " ".join(kubectl("explain", "episode.spec").split())
    assert "DESCRIPTION: The task, the agent and the limits." in text
    assert (
        "taskRef <Object> A DebugTask of the same namespace. Exactly one of 'taskRef' and 'task' is required." in text
    )
    assert (
        "suspend <boolean> Delete the pod and wait. When this becomes false, a new pod replays the recorded steps"
        in text
    )


def test_columns_of_episodes(kinds, kubectl, api_namespace):
    kinds.create(api_namespace, kinds.manifest("Episode", EPISODE, "fix-calc"))
    conditions = [{"type": "Resolved", "status": "True"}]
    status = {"reason": "Resolved", "state": "Finished", "conditions": conditions, "steps": 7, "attempt": 1}
    kinds.patch(api_namespace, "Episode", "fix-calc", {"status": {**status, "podName": "fix-calc-1"}}, below="/status")
    heading, row = kubectl("get", "dge", "-o", "wide").splitlines()
    wide = ["TASK", "STATE", "AGENT", "MODEL", "ATTEMPT", "POD", "MESSAGE"]
    assert heading.split() == ["NAME", "REASON", "RESOLVED", "STEPS", "AGE", *wide]
    name, *cells = row.split()
    assert (name, cells[:3], cells[4:]) == (
        "fix-calc",
        ["Resolved", "True", "7"],
        ["calc", "Finished", "debug_agent", "gpt", "1", "fix-calc-1"],
    )
    assert kubectl("get", "dge").splitlines()[0].split() == ["NAME", "REASON", "RESOLVED", "STEPS", "AGE"]


def test_kubectl_get_dgym_lists_all_kinds(kinds, kubectl, api_namespace):
    kinds.create(api_namespace, kinds.manifest("DebugTask", {"image": "example.com/calc:1"}, "calc"))
    kinds.create(api_namespace, kinds.manifest("EpisodeSet", {"tasks": [{"name": "calc"}]}, "many"))
    lines = [line.split() for line in kubectl("get", "dgym").splitlines() if line]
    assert ["NAME", "IMAGE", "HEALTH", "AGE"] in lines
    assert ["NAME", "REASON", "TOTAL", "ACTIVE", "RESOLVED", "UNRESOLVED", "FAILED", "WAITING", "AGE"] in lines
    assert "debugtask.dgym.dev/calc" in {line[0] for line in lines}


def test_episodes_are_selected_by_reason_and_agent(kinds, kubectl, api_namespace):
    for name in ("one", "two"):
        kinds.create(api_namespace, kinds.manifest("Episode", EPISODE, name))
    kinds.patch(api_namespace, "Episode", "one", {"status": {"reason": "Running"}}, below="/status")
    selector = "status.reason=Running,spec.agent.name=debug_agent,spec.agent.model=gpt,spec.taskRef.name=calc"
    assert kubectl("get", "dge", "-o", "name", f"--field-selector={selector}").split() == ["episode.dgym.dev/one"]


def test_a_set_is_scaled(kinds, kubectl, api_namespace):
    kinds.create(api_namespace, kinds.manifest("EpisodeSet", {"tasks": [{"name": "calc"}]}, "many"))
    kubectl("scale", "dgs/many", "--replicas=3")
    assert kubectl("get", "dgs/many", "-o", "jsonpath={.spec.parallelism}") == "3"


def test_a_task_of_nearly_200_kib_is_applied_and_applied_again(kinds, kubectl):
    files = [{"path": f"file{n}.py", "content": "x = 1\n" * 1700} for n in range(20)]
    episode = kinds.manifest("Episode", {"task": {"source": {"files": files}}}, "large")
    assert kubectl("apply", "-f", "-", stdin=episode).split() == ["episode.dgym.dev/large", "created"]
    kubectl("apply", "-f", "-", stdin=episode)
    assert kubectl("get", "dge/large", "-o", "jsonpath={.metadata.generation}") == "1"


def test_two_owners_apply_parts_of_a_set(kinds, kubectl):
    def part(spec):
        return kinds.manifest("EpisodeSet", spec, "many")

    kubectl("apply", "--server-side", "-f", "-", stdin=part({"tasks": [{"name": "a"}, {"name": "b"}]}))
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    kubectl(*other, stdin=part({"parallelism": 3, "tasks": [{"name": "a"}]}))
    stored = json.loads(kubectl("get", "dgs/many", "-o", "json"))["spec"]
    assert (stored["parallelism"], stored["tasks"]) == (3, [{"name": "a"}, {"name": "b"}])


def test_field_selectors_distinguish_a_temporary_from_a_final_reason(kinds, kubectl, api_namespace):
    for name, state in (("waits", "Waiting"), ("over", "Finished")):
        kinds.create(api_namespace, kinds.manifest("Episode", EPISODE, name))
        status = {"reason": "Unschedulable", "state": state}
        kinds.patch(api_namespace, "Episode", name, {"status": status}, below="/status")
    for name, state in (("waits", "Waiting"), ("over", "Finished")):
        selector = f"--field-selector=status.reason=Unschedulable,status.state={state}"
        assert kubectl("get", "dge", "-o", "name", selector).split() == [f"episode.dgym.dev/{name}"]


def test_sets_show_their_reason_and_are_selected_by_it(kinds, kubectl, api_namespace):
    for name, reason in (("one", "Suspended"), ("two", "MaxFailedReached")):
        kinds.create(api_namespace, kinds.manifest("EpisodeSet", {"tasks": [{"name": "calc"}]}, name))
        kinds.patch(api_namespace, "EpisodeSet", name, {"status": {"reason": reason}}, below="/status")
    rows = [line.split()[:2] for line in kubectl("get", "dgs", "--no-headers").splitlines()]
    assert rows == [["one", "Suspended"], ["two", "MaxFailedReached"]]
    selected = kubectl("get", "dgs", "-o", "name", "--field-selector=status.reason=Suspended")
    assert selected.split() == ["episodeset.dgym.dev/one"]


@pytest.mark.parametrize("options", [(), SERVER_SIDE], ids=["client-side", "server-side"])
def test_examples_that_are_applied_again_are_unchanged(kubectl, options):
    # The second server-side apply stores the default of the status, which the operator otherwise writes.
    for _ in range(2):
        kubectl("apply", "-R", "-f", EXAMPLES, *options)
    versions = ("get", "dgym", "-o", "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}")
    before = kubectl(*versions)
    lines = kubectl("apply", "-R", "-f", EXAMPLES, *options).splitlines()
    word = "serverside-applied" if options else "unchanged"
    assert len(lines) > 5
    assert [line for line in lines if not line.endswith(f" {word}")] == []
    assert kubectl(*versions) == before
    assert kubectl("diff", "-R", "-f", EXAMPLES, *options) == ""


def test_quantities_are_whole_numbers_or_texts(kinds, kubectl):
    limits = {"cpu": 1, "memory": "2Gi"}
    task = kinds.manifest("DebugTask", {"image": "example.com/calc:1", "resources": {"limits": limits}}, "calc")
    kubectl("apply", "-f", "-", stdin=task)
    assert kubectl("apply", "-f", "-", stdin=task).split() == ["debugtask.dgym.dev/calc", "unchanged"]
    assert json.loads(kubectl("get", "dgt/calc", "-o", "jsonpath={.spec.resources.limits}")) == limits
