import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from dgym.api import loads
from dgym.cli.app import cli

EXAMPLES = Path(__file__).parents[4] / "examples"
EPISODE = {"taskRef": {"name": "calc"}, "agent": {"name": "debug_agent", "model": "gpt"}}
MANIFEST = "apiVersion: dgym.dev/v1alpha1\nkind: Episode\nmetadata: {name: fix}\nspec: "


def test_a_manifest_becomes_resources_and_may_be_submitted_again(dgym, namespace):
    assert dgym("submit", EXAMPLES / "episodeset.yaml").out.splitlines() == [
        "debugtask/median created",
        "debugtask/mode created",
        "episodeset/statistics created",
    ]
    assert dgym("submit", EXAMPLES / "episodeset.yaml").out.splitlines()[-1] == "episodeset/statistics applied"
    stored = namespace.get("episodeset", "statistics")
    assert stored["spec"]["template"]["agent"]["name"] == "solution"
    assert stored["metadata"]["generation"] == 1


def test_fields_are_changed_on_the_way(dgym, namespace):
    dgym("submit", EXAMPLES / "episodeset.yaml", "-p", "set.samples=3", "--agent", "replay", "-p", "agent.maxSteps=7")
    spec = namespace.get("episodeset", "statistics")["spec"]
    assert (spec["samples"], spec["template"]["agent"]["name"], spec["template"]["agent"]["maxSteps"]) == (
        3,
        "replay",
        7,
    )


def test_a_bundled_benchmark(dgym, namespace):
    lines = dgym("submit", "--bundled", "mini_nightmare").out.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "episodeset/mini-nightmare created"
    assert len(namespace.get("episodeset", "mini-nightmare")["spec"]["tasks"]) == 10


def test_a_dry_run_creates_nothing(dgym):
    assert "episodeset/statistics created (dry run)" in dgym("submit", EXAMPLES / "episodeset.yaml", "--dry-run").out
    assert "no Episodes and EpisodeSets in namespace" in dgym("get").err


def test_a_local_repository_is_sent_inside_the_manifest(dgym, namespace):
    dgym("submit", EXAMPLES / "task-and-episode.yaml")
    source = namespace.get("debugtask", "ledger")["spec"]["source"]
    assert sorted(file["path"] for file in source["files"]) == ["ledger.py", "tests/test_ledger.py"]


def test_a_bare_repository_with_an_agent(dgym, namespace):
    lines = dgym("submit", EXAMPLES / "ledger", "--agent", "solution").out.splitlines()
    assert lines == ["debugtask/ledger created", "episode/ledger created"]
    assert namespace.get("episode", "ledger")["spec"]["taskRef"] == {"name": "ledger"}


def test_a_refusal_of_the_cluster_is_reported_as_an_error_of_the_manifest(dgym, namespace):
    namespace.create("Episode", "smooth", EPISODE)
    refused = dgym("submit", EXAMPLES / "episode.yaml", status=2)
    assert "spec.agent: Invalid value: cannot be changed; delete the Episode and create it again" in refused.err


def test_a_missing_namespace(dgym, kinds):
    done = CliRunner().invoke(cli, ["submit", str(EXAMPLES / "episode.yaml"), "-n", "nowhere"])
    assert done.exit_code == 1
    assert (
        'namespaces "nowhere" not found; create it (kubectl create namespace nowhere), or choose another' in done.stderr
    )


def later(namespace, kind, name, **status):
    """Finish the object as soon as it exists, as an operator would."""

    def act():
        namespace.wait_for(kind, name)
        namespace.finish(kind, name, **status)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_waiting_for_an_outcome(dgym, namespace):
    outcome = {"resolved": True, "score": 2, "maxScore": 2, "steps": 5}
    thread = later(namespace, "episode", "smooth", reason="Resolved", outcome=outcome)
    done = dgym("submit", EXAMPLES / "episode.yaml", "--wait")
    thread.join()
    assert "smooth: Resolved 2/2, 5 steps" in done.err
    assert "smooth  Resolved    2/2      5" in done.out


def test_waiting_for_a_failure(dgym, namespace):
    outcome = {"resolved": False, "message": "pip install failed"}
    thread = later(namespace, "episode", "smooth", reason="SetupFailed", outcome=outcome)
    done = dgym("submit", EXAMPLES / "episode.yaml", "--wait", status=1)
    thread.join()
    assert "smooth: SetupFailed 0/0, 0 steps: pip install failed" in done.err


def test_waiting_for_a_set(dgym, namespace):
    counts = {"total": 4, "resolved": 3, "unresolved": 1, "passAt1": "0.7500"}
    thread = later(namespace, "episodeset", "statistics", **counts)
    done = dgym("submit", EXAMPLES / "episodeset.yaml", "--wait")
    thread.join()
    assert "statistics: 4/4 finished: 3 resolved, 1 unresolved, 0 failed · 0 active" in done.err
    assert "0.7500" in done.out


def test_a_set_is_shown_with_its_episodes(dgym, namespace):
    namespace.create("EpisodeSet", "many", {"tasks": [{"name": "calc"}]})
    namespace.create("Episode", "many-0", EPISODE, {"dgym.dev/set": "many"})
    namespace.create("Episode", "other", EPISODE)
    namespace.finish("episode", "many-0", reason="Unresolved", attempt=1, podName="many-0-1")
    text = dgym("get", "many").out
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [
        ["episodeset/many", "Pending"],
        ["many-0", "Unresolved"],
    ]


def test_all_by_label_and_in_all_namespaces(dgym, namespace):
    namespace.create("Episode", "one", EPISODE, {"team": namespace.name})
    namespace.create("Episode", "two", EPISODE)
    text = dgym("get", "-A", "-l", f"team={namespace.name}").out
    assert "two" not in text
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [[namespace.name, "one", "Pending"]]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_json_and_yaml_output_are_lists_of_manifests(dgym, namespace, form):
    namespace.create("Episode", "one", EPISODE)
    namespace.create("EpisodeSet", "many", {"tasks": [{"name": "calc"}]})
    text = dgym("get", "--output", form).out
    assert [resource.metadata.name for resource in loads(text, source=f"stdin.{form}")] == ["many", "one"]
    assert [each["metadata"]["name"] for each in json.loads(dgym("get", "one", "--output", "json").out)["items"]] == [
        "one"
    ]


def test_a_misspelt_name(dgym, namespace):
    namespace.create("Episode", "fix-calc", EPISODE)
    assert "fix-clac: no Episode or EpisodeSet of that name" in dgym("get", "fix-clac", status=2).err
    assert "did you mean 'fix-calc'?" in dgym("cancel", "episode/fix-clac", status=2).err
    assert "this command does not accept the kind 'pod'; write episode/x" in dgym("cancel", "pod/x", status=2).err


def test_cancelling(dgym, namespace):
    namespace.create("Episode", "one", EPISODE)
    namespace.create("Episode", "two", EPISODE)
    namespace.create("EpisodeSet", "one", {"tasks": [{"name": "calc"}]})
    namespace.finish("episode", "two", reason="Resolved")
    lines = dgym("cancel", "dgs/one", "one", "two").out.splitlines()
    assert lines == ["episodeset/one cancelled", "episode/one cancelled", "episode/two has finished already"]
    assert namespace.get("episodeset", "one")["spec"]["cancel"]
    assert namespace.get("episode", "one")["spec"]["cancel"]
    assert not namespace.get("episode", "two")["spec"]["cancel"]


def test_failed_episodes_of_a_set_run_again(dgym, namespace):
    spec = {"tasks": [{"name": "calc"}]}
    failed = [{"reason": "AgentPodLost", "indexes": "4"}, {"reason": "ModelError", "indexes": "0-1,3"}]
    for name in ("all", "some", "none"):
        namespace.create("EpisodeSet", name, spec)
    for name in ("all", "some"):
        namespace.finish("episodeset", name, reason="Completed", failedIndexes=failed)
    assert dgym("retry", "all", "dgs/none").out.splitlines() == [
        "episodeset/all: failed episodes run again: AgentPodLost 1, ModelError 3",
        "episodeset/none has no episode that failed",
    ]
    assert dgym("retry", "some", "--reason", "ModelError").out.splitlines() == [
        "episodeset/some: failed episodes run again: ModelError 3"
    ]
    assert namespace.get("episodeset", "some")["metadata"]["annotations"]["dgym.dev/retry"].endswith(" ModelError")
    assert " " not in namespace.get("episodeset", "all")["metadata"]["annotations"]["dgym.dev/retry"]
    assert "annotations" not in namespace.get("episodeset", "none")["metadata"]
    before = namespace.get("episodeset", "all")["metadata"]["annotations"]
    dgym("retry", "all")
    assert namespace.get("episodeset", "all")["metadata"]["annotations"] != before
    refused = dgym("retry", "all", "--reason", "Unresolved", status=2).err
    assert "Unresolved is not a reason of failed episodes; one of AgentPodLost," in refused
    assert dgym("retry", "some", "--reason", "SandboxLost").out == (
        "episodeset/some has no episode that failed with SandboxLost\n"
    )


def test_watching_until_interrupted(kinds, namespace):
    namespace.create("Episode", "one", EPISODE)
    command = [sys.executable, "-c", "from dgym.cli import main; main()", "get", "one", "--watch", "-n", namespace.name]
    environment = {**os.environ, "KUBECONFIG": str(kinds.kubeconfig), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert next(line for line in process.stdout if line.startswith("one")).split()[1] == "Pending"
            namespace.status("episode", "one", {"reason": "Running"})
            assert next(line for line in process.stdout if line.startswith("one")).split()[1] == "Running"
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def invoke(*arguments):
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 1, done.output
    return done.stderr


def test_no_kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert f"{tmp_path}/none not found; set KUBECONFIG to the file of your cluster" in invoke("get")


def test_a_file_that_is_not_a_kubeconfig(tmp_path, monkeypatch):
    (tmp_path / "config").write_text("- a list\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert f"{tmp_path}/config" in invoke("get")


def test_the_api_server_does_not_answer(kubeconfig):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    kubeconfig(f"https://127.0.0.1:{port}")
    text = invoke("get")
    assert f"the cluster of context 'here' cannot be reached at https://127.0.0.1:{port}" in text
    assert "choose another with --context" in text


def test_a_missing_context(kubeconfig):
    kubeconfig("https://127.0.0.1:1", contexts=("staging", "production"))
    assert "--context prodction: no such context" in (text := invoke("get", "--context", "prodction"))
    assert "did you mean 'production'?" in text


def test_a_user_without_rights(kinds, namespace, kubeconfig):
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    kinds.request("POST", path, {"metadata": {"name": "guest"}})
    token = kinds.request("POST", f"{path}/guest/token", {"spec": {}})["status"]["token"]
    kubeconfig(kinds.url, ca_file=kinds.ca_file, token=token)
    text = invoke("get", "-n", namespace.name)
    assert 'cannot list resource "episode' in text
    assert f"ask an administrator of the cluster for the ClusterRole 'view' in namespace {namespace.name}" in text


def test_invalid_credentials(kinds, kubeconfig):
    kubeconfig(kinds.url, ca_file=kinds.ca_file, token="wrong")
    assert "rejects the credentials of context 'here'; log in again" in invoke("get")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "a", "-A"], "names cannot be combined with --selector and --all-namespaces"),
        (["get", "--watch", "--output", "json"], "--watch shows tables"),
        (["get", "--watch", "--output", "yaml"], "watch with kubectl get -w -o yaml"),
        (["submit"], "name at least one manifest, or a benchmark with --bundled"),
        (["submit", "--bundled", "mini_nightmare", "--wait", "--dry-run"], "--wait cannot be combined with --dry-run"),
    ],
)
def test_usage(arguments, message):
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert message in done.stderr
