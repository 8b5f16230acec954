"""Tests of the API server that integration tests use."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import ROOT, ApiServer, ApiServerUnavailableError, shared_api_server, start_api_server

POD = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]},
}


def test_objects_are_defaulted_validated_and_audited(api_server: ApiServer, api_namespace: str) -> None:
    pods = f"/api/v1/namespaces/{api_namespace}/pods"
    created = api_server.request("POST", pods, POD)
    assert created["spec"]["restartPolicy"] == "Always"
    with pytest.raises(urllib.error.HTTPError) as refused:
        api_server.request("POST", pods, {"metadata": {"name": "q"}, "spec": {"containers": []}})
    assert refused.value.code == 422
    refused.value.close()

    def mine() -> list[dict[str, Any]]:
        return [entry for entry in api_server.writes() if entry["objectRef"].get("namespace") == api_namespace]

    # The server logs a request after it has answered.
    deadline = time.monotonic() + 90
    while sum(entry["objectRef"]["resource"] == "pods" for entry in mine()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [
        (entry["verb"], entry["responseStatus"]["code"]) for entry in mine() if entry["objectRef"]["resource"] == "pods"
    ] == [
        ("create", 201),
        ("create", 422),
    ]
    assert {entry["level"] for entry in mine()} == {"Metadata"}


def test_service_accounts_may_do_what_rbac_grants(api_server: ApiServer, api_namespace: str) -> None:
    api_server.request("POST", f"/api/v1/namespaces/{api_namespace}/serviceaccounts", {"metadata": {"name": "a"}})
    whom = f"--as=system:serviceaccount:{api_namespace}:a"
    list_pods = ("get", "pods", "-n", api_namespace, whom)
    assert "forbidden" in api_server.kubectl(*list_pods).stderr.lower()
    api_server.kubectl("create", "role", "v", "--verb=list", "--resource=pods", "-n", api_namespace)
    grant = ("create", "rolebinding", "v", "--role=v", f"--serviceaccount={api_namespace}:a", "-n", api_namespace)
    api_server.kubectl(*grant)
    # The authorizer receives grants through a watch.
    deadline = time.monotonic() + 90
    while api_server.kubectl(*list_pods).returncode:
        assert time.monotonic() < deadline


def test_the_second_user_joins_the_server_of_the_first(api_server: ApiServer) -> None:
    second = shared_api_server(api_server.directory.parent)
    assert second.url == api_server.url
    second.release()
    api_server.request("GET", "/readyz")


@pytest.mark.usefixtures("api_server_binaries")
def test_no_process_is_left_behind_when_the_user_dies(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, tests.support.apiserver as a\n"
        "s = a.start_api_server(pathlib.Path(sys.argv[1])); print(s.url, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "server")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline().startswith(b"https://127.0.0.1:")
        os.kill(user.pid, signal.SIGKILL)
    with (tmp_path / "server" / "running.lock").open("rb") as running:
        deadline = time.monotonic() + 90
        while True:
            try:
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    assert not (tmp_path / "server" / "etcd").exists()


def test_missing_binaries_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ApiServerUnavailableError, match="no etcd and kube-apiserver"):
        start_api_server(tmp_path / "server")


def test_tests_without_a_server_are_skipped_with_the_reason(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KUBEBUILDER", "DGYM"))
    }
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    test = f"{__file__}::test_objects_are_defaulted_validated_and_audited"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
    assert "SKIPPED [1]" in done.stdout, done.stdout
    assert "no API server: etcd and kube-apiserver not found" in done.stdout
    assert "dgym: no kube-apiserver (make binaries builds it): 1 tests skipped, kmock stood in" in done.stdout


def test_its_kubeconfig_names_one_context(api_server: ApiServer) -> None:
    document = json.loads(api_server.kubeconfig.read_text())
    assert document["current-context"] == "dgym"
    assert document["clusters"][0]["cluster"]["server"] == api_server.url
