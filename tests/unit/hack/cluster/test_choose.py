"""Tests of the choice of a cluster, and of the errors if no cluster is possible."""

import json
import sys
from pathlib import Path

import pytest

from hack.cluster import build
from hack.cluster.cli import ExistingCluster, choose, main, ours
from hack.cluster.local import LocalCluster
from hack.cluster.machine import ClusterError


def yes() -> bool:
    return True


def no() -> bool:
    return False


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DGYM_CLUSTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def existing(tmp_path: Path, **more: str) -> dict[str, str]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    return {"E2E_CLUSTER": "existing", "KUBECONFIG": str(kubeconfig), **more}


def test_an_existing_cluster_is_preferred(tmp_path: Path) -> None:
    cluster = choose(existing(tmp_path), yes, yes)
    assert (cluster.name, cluster.kubeconfig) == ("existing", tmp_path / "kubeconfig")


@pytest.mark.parametrize(("kind", "local", "chosen"), [(yes, yes, "kind"), (yes, no, "kind"), (no, yes, "local")])
def test_kind_is_preferred_to_processes_of_this_machine(kind, local, chosen: str) -> None:
    assert choose({}, kind, local).name == chosen


@pytest.mark.parametrize("name", ["kind", "local"])
def test_the_environment_variable_takes_precedence(name: str) -> None:
    assert choose({"E2E_CLUSTER": name}, no, no).name == name


def test_a_kubeconfig_alone_does_not_make_a_cluster_a_test_cluster(tmp_path: Path) -> None:
    environment = existing(tmp_path)
    del environment["E2E_CLUSTER"]
    assert choose(environment, no, yes).name == "local"


def test_if_no_cluster_is_possible_all_three_options_are_named() -> None:
    with pytest.raises(ClusterError) as refused:
        choose({}, no, no)
    assert all(word in str(refused.value) for word in ("E2E_CLUSTER=existing", "Docker", "root"))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"E2E_CLUSTER": "minikube"}, "existing, kind or local, not 'minikube'"),
        ({"E2E_CLUSTER": "existing"}, "needs KUBECONFIG"),
        ({"E2E_CLUSTER": "existing", "KUBECONFIG": "/nowhere"}, "which does not exist"),
    ],
)
def test_mistakes_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose(environment, yes, yes)


def test_an_existing_cluster_takes_images_only_by_a_command_of_its_user(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"registry.*E2E_LOAD_COMMAND"):
        ExistingCluster(existing(tmp_path)).load(["a:1"])
    loaded = tmp_path / "loaded"
    program = f"import sys, pathlib; pathlib.Path({str(loaded)!r}).write_text(' '.join(sys.argv[1:]))"
    command = f'{sys.executable} -c "{program}"'
    ExistingCluster(existing(tmp_path, E2E_LOAD_COMMAND=command)).load(["a:1", "b:2"])
    assert loaded.read_text() == "a:1 b:2"
    with pytest.raises(ClusterError, match="failed with exit code 1"):
        ExistingCluster(existing(tmp_path, E2E_LOAD_COMMAND="false")).load(["a:1"])


def test_down_does_not_remove_an_existing_cluster(tmp_path: Path) -> None:
    environment = existing(tmp_path)
    assert [cluster.name for cluster in ours(environment, yes)] == ["existing"]
    ours(environment, yes)[0].down()
    assert json.loads(Path(environment["KUBECONFIG"]).read_text()) == {}


def test_down_reaches_a_cluster_of_kind_that_we_made() -> None:
    assert "kind" not in [cluster.name for cluster in ours({}, yes)]
    made = build.cache_directory().parent / "kind" / "kubeconfig"
    made.parent.mkdir(parents=True)
    made.touch()
    assert "kind" in [cluster.name for cluster in ours({}, yes)]
    assert "kind" not in [cluster.name for cluster in ours({}, no)]


def test_components_of_another_cluster_are_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    monkeypatch.setenv("E2E_CLUSTER", "existing")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main(["stop", "kubelet"]) == 1
    assert "E2E_CLUSTER=local can" in capsys.readouterr().err
    with pytest.raises(ClusterError, match=r"not a component: dockerd \(there are etcd, "):
        LocalCluster(tmp_path).stop("dockerd")
