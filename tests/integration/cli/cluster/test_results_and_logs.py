"""Tests of results and logs: the real code of operator and agent pod serves them, behind a stand-in for the cluster."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.terminal import printable
from tests.integration.cli.cluster.standin import POD, READER, RESOLVED


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, status=0):
        done = CliRunner().invoke(cli, list(arguments))
        assert done.exit_code == status, (done.output, done.exception)
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    return run


def test_results_come_through_a_port_forward(cluster, stored, dgym, tmp_path):
    patch = "".join(f"+line {number}\n" for number in range(100_000))
    stored("fix", attempt=1, resolved=False, reason="SandboxLost", score=0, max_score=2)
    source = stored("fix", attempt=2, patch=patch, **RESOLVED)
    stored("fix", uid="an-earlier-one", **RESOLVED)
    cluster.episode("fix", reason="Resolved", attempt=2)
    done = dgym("results", "fix")
    assert done.out.splitlines()[0] == "fix: Resolved 2/2, results/default/fix/uid-1/2"
    fetched = tmp_path / "results/default/fix/uid-1/2"
    for name in ("result.json", "trajectory.jsonl", "patch.diff", "episode.log"):
        assert (fetched / name).read_bytes() == (source / name).read_bytes()
    assert sorted(path.name for path in fetched.parent.parent.iterdir()) == ["uid-1"]
    assert cluster.forwarded_to == 8080
    resource = {"group": "dgym.dev", "resource": "episodes", "subresource": "results", "verb": "get"}
    asked = {"user": "tenant", "groups": ["all"], "resourceAttributes": {**resource, "namespace": "default"}}
    assert [{**each, **asked} for each in cluster.reviewed] == cluster.reviewed[:1]
    assert dgym("report", "results").out.startswith("1 of 1 resolved")


def test_results_of_a_set_with_those_that_are_deleted(cluster, stored, dgym, tmp_path):
    metadata = {"name": "many", "namespace": "default", "labels": {}}
    cluster.objects["episodesets", "many"] = {"metadata": metadata, "status": {"completedIndexes": "0-1"}}
    for index in range(2):
        stored(f"many-{index}", uid=f"uid-{index}", **RESOLVED)
    cluster.episode("many-2", uid="uid-2", labels={"dgym.dev/set": "many"}, reason="Running")
    done = dgym("results", "many", "--directory", "there", status=1)
    assert done.out.splitlines() == [
        "many-0: Resolved 2/2, there/default/many-0/uid-0/1",
        "many-1: Resolved 2/2, there/default/many-1/uid-1/1",
        "many-2: nothing is stored yet",
        "2 of 3 in there; dgym report there shows their figures",
    ]
    assert (tmp_path / "there/default/many-1/uid-1/1/result.json").is_file()


def test_results_of_deleted_episodes_of_arms(cluster, stored, dgym):
    metadata = {"name": "pays", "namespace": "default", "labels": {}}
    spec, status = {"arms": [{"name": "pdb"}, {"name": "plain"}]}, {"completedIndexes": "0-2"}
    cluster.objects["episodesets", "pays"] = {"metadata": metadata, "spec": spec, "status": status}
    names = ("pays-pdb-0", "pays-pdb-1", "pays-plain-0")
    for name in names:
        stored(name, **RESOLVED)
    done = dgym("results", "pays")
    assert [line.partition(":")[0] for line in done.out.splitlines()[:3]] == list(names)


def test_results_of_a_store_that_is_a_directory_here(cluster, stored, dgym, tmp_path):
    source = stored("fix", root=tmp_path / "mounted", **RESOLVED)
    cluster.episode("fix", reason="Resolved", outcome={"resolved": True, "resultURI": source.as_uri()})
    assert dgym("results", "fix").out.startswith("fix: Resolved 2/2, results/default/fix/uid-1/1\n")
    assert cluster.forwarded_to is None


def test_a_directory_of_another_episode_is_not_copied(cluster, stored, dgym, tmp_path):
    source = stored("other", root=tmp_path / "mounted", **RESOLVED)
    cluster.episode("fix", reason="Resolved", outcome={"resolved": True, "resultURI": source.as_uri()})
    assert "fix: nothing is stored yet" in dgym("results", "fix", status=1).out
    assert cluster.forwarded_to == 8080


def test_dgym_is_installed_elsewhere(cluster, dgym):
    cluster.episode("fix", attempt=1)
    cluster.pods = []
    assert "--system-namespace names the namespace in which dgym is installed" in dgym("results", "fix", status=1).err


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([], "operator pods were not found in namespace dgym-system"),
        ([{**POD, "status": {"phase": "Pending"}}], "no operator pod runs in namespace dgym-system"),
    ],
)
def test_no_operator(cluster, dgym, pods, message):
    cluster.episode("fix", attempt=1)
    cluster.pods = pods
    assert message in dgym("results", "fix", status=1).err


def test_a_user_without_the_right_gets_nothing(cluster, stored, dgym, tmp_path):
    stored("fix", **RESOLVED)
    cluster.episode("fix", attempt=1)
    cluster.readers.clear()
    error = dgym("results", "fix", status=1).err
    assert "user tenant may not get episodes/results in namespace default; the ClusterRoles view and edit" in error
    assert not list(tmp_path.glob("results/default/**/*"))


def test_a_token_that_the_api_server_does_not_know(cluster, dgym):
    cluster.episode("fix", attempt=1)
    cluster.users.clear()
    assert "the API server does not accept the token" in dgym("results", "fix", status=1).err


def test_a_user_who_may_request_a_reader_token_does_not_send_their_own(cluster, stored, dgym):
    stored("fix", **RESOLVED)
    cluster.episode("fix", attempt=1)
    cluster.requestable = True
    cluster.users = {key: user for key, user in cluster.users.items() if key[0] == READER}
    assert dgym("results", "fix").out.startswith("fix: Resolved 2/2")


def test_a_kubeconfig_without_a_token_is_explained(cluster, dgym, kubeconfig):
    cluster.episode("fix", attempt=1)
    kubeconfig(cluster.server, token="")
    error = dgym("results", "fix", status=1).err
    assert "context 'here' has no token by which the operator can identify you" in error


@pytest.mark.parametrize("command", ["results", "logs"])
@pytest.mark.parametrize("forbidden", ["/dgym-system/pods", "/portforward"])
def test_forbidden_names_the_rights_and_the_value_that_grants_them(cluster, dgym, command, forbidden):
    cluster.episode("fix", attempt=1)
    cluster.forbidden = forbidden
    error = dgym(command, "fix", status=1).err
    assert (
        "the operator cannot be reached: this requires list on pods and get and create on pods/portforward in namespace"
        " dgym-system; the chart's value rbac.resultsReaders grants them"
    ) in error
    assert "ClusterRole" not in error


def test_the_port_cannot_be_reached(cluster, dgym):
    cluster.episode("fix", attempt=1)
    cluster.error = b"connection refused"
    error = dgym("results", "fix", status=1).err
    assert "port 8080 of pod operator-0 cannot be reached: connection refused" in error


def test_the_log_of_a_pod(cluster, dgym):
    cluster.episode("fix", attempt=1, podName="fix-1", reason="Running")
    cluster.logs = {("fix-1", "sidecar"): b"one\ntwo\n", ("fix-1", "sandbox"): b"three"}
    assert dgym("logs", "fix").out == "one\ntwo\n"
    assert dgym("logs", "fix", "-f", "--container", "sandbox").out == "three\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_the_model_that_an_episode_waits_for_is_beside_its_log(cluster, dgym, follow):
    waits = "waiting for the model: rate limited, try 3, again in 21 s"
    cluster.episode("fix", attempt=1, podName="fix-1", reason="Running", message=waits)
    cluster.logs = {("fix-1", "sidecar"): b"one\n"}
    done = dgym("logs", "fix", *follow)
    assert (done.out, done.err) == ("one\n", f"fix: Running: {waits}\n")
    assert waits in " ".join(dgym("get", "fix").out.split())


def test_the_log_of_the_container_that_sets_a_workspace_up(cluster, dgym):
    cluster.episode("fix", attempt=1, podName="fix-1", reason="SetupFailed")
    cluster.logs = {("fix-1", "copy"): b"cp: no space left"}
    assert dgym("logs", "fix", "--container", "copy").out == "cp: no space left\n"


def test_the_log_of_a_pod_that_is_gone(cluster, stored, dgym):
    for attempt in (1, 2):
        stored("fix", attempt=attempt, **RESOLVED)
    cluster.episode("fix", attempt=2, podName="fix-2", reason="Resolved")
    done = dgym("logs", "fix")
    assert done.out == "log of fix 2\n"
    assert "this is the stored log of attempt 2" in done.err
    assert "the log of its sandbox is gone" in dgym("logs", "fix", "--container", "sandbox", status=1).err


def test_a_finished_episode_without_a_log_waits_for_no_pod(cluster, dgym):
    over = [{"type": "Finished", "status": "True", "reason": "SandboxStartFailed"}]
    cluster.episode("fix", attempt=1, reason="SandboxStartFailed", conditions=over)
    error = dgym("logs", "fix", status=1).err
    assert "no log of it is stored; the Episode has finished and does not get another pod" in error


def test_no_log_yet(cluster, dgym):
    conditions = [{"type": "SandboxReady", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]
    cluster.episode("fix", reason="Unschedulable", conditions=conditions)
    error = dgym("logs", "fix", status=1).err
    assert "Episode fix does not have a pod yet (Unschedulable: no node fits); -f waits for it" in error


def test_paths_from_a_pod_outside_of_the_episode_are_refused():
    from dgym.cli.cluster.results import _is_below

    assert _is_below("default/fix/uid/1/result.json", "default", "fix")
    for path in ("default/fix/../1/result.json", "/default/fix/u/1/result.json", "default/fix/u/1/evil.sh", "other"):
        assert not _is_below(path, "default", "fix"), path


def test_indexes():
    from dgym.cli.results import indexes

    assert indexes("") == []
    assert indexes("0-2,7") == [0, 1, 2, 7]
    assert json.dumps(indexes("5")) == "[5]"


HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"


@pytest.mark.attack("terminal")
def test_terminal_escapes_in_a_status_are_printed_as_text(cluster, dgym):
    cluster.episode("fix", uid=HOSTILE, reason=f"Resolved\n{HOSTILE}", message=HOSTILE, podName=HOSTILE)
    shown = dgym("get").out
    assert printable(shown) == shown
    assert shown.count(SHOWN) == 2
    assert len(shown.splitlines()) == 2
    as_json = dgym("get", "--output", "json").out
    assert printable(as_json) == as_json
    assert json.loads(as_json)["items"][0]["status"]["message"] == HOSTILE
    refused = dgym("logs", "fix", "--container", "sandbox", status=1)
    assert printable(refused.err) == refused.err


@pytest.mark.attack("terminal")
def test_terminal_escapes_in_logs_are_printed_as_text(cluster, stored, dgym):
    cluster.episode("fix", podName="fix-1", attempt=1)
    cluster.logs["fix-1", "sandbox"] = f"10%\r100%\r\n{HOSTILE}\xff".encode() + b"\xff"
    assert dgym("logs", "fix", "--container", "sandbox").out == f"10%\n100%\n{SHOWN}ÿ\ufffd\n"
    cluster.episode("gone", attempt=1)
    (stored("gone", **RESOLVED) / "episode.log").write_text(HOSTILE)
    assert dgym("logs", "gone").out == SHOWN
