"""Tests of a namespace of watchNamespaces that does not exist: operator, upgrade and uninstallation skip it."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
import uuid
from datetime import UTC, datetime

import pytest

from tests.chart.conftest import CHART

DEADLINE = 90.0
EPISODE = {
    "apiVersion": "dgym.dev/v1alpha1",
    "kind": "Episode",
    "metadata": {"name": "fix"},
    "spec": {"task": {"source": {"files": [{"path": "test_a.py", "content": ""}]}}},
}


@pytest.fixture
def absent_namespace():
    return f"test-{uuid.uuid4().hex[:10]}"


def until(condition, what):
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def make_namespace(server, name):
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})


def test_an_absent_namespace_is_served_once_it_is_created(
    accounts, run_operator, api_server, api_namespace, absent_namespace
):
    def pods(namespace):
        return api_server.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]

    def run_episode(namespace):
        api_server.request("POST", f"/apis/dgym.dev/v1alpha1/namespaces/{namespace}/episodes", EPISODE)
        until(lambda: pods(namespace), f"a pod in {namespace}: {log.read_text()[-3000:]}")

    def warned():
        events = api_server.request("GET", f"/apis/events.k8s.io/v1/namespaces/{api_namespace}/events")["items"]
        return [each for each in events if each["reason"] == "NamespaceAbsent"]

    def get(path):
        port = next(each["port"] for each in map(json.loads, log.read_text().splitlines()) if "port" in each)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=90) as answer:
            return answer.read().decode()

    release = accounts(api_namespace, absent_namespace)
    with run_operator(release) as log:
        run_episode(api_namespace)
        (event,) = until(warned, "an Event")
        assert f"namespace {absent_namespace} of watchNamespaces" in event["note"]
        assert get("/readyz") == "ok\n"
        assert f'dgym_operator_namespaces{{namespace="{absent_namespace}",state="absent"}} 1.0' in get("/metrics")

        make_namespace(api_server, absent_namespace)
        accounts(api_namespace, absent_namespace)
        run_episode(absent_namespace)
        assert f'dgym_operator_namespaces{{namespace="{absent_namespace}",state="served"}} 1.0' in get("/metrics")


@pytest.fixture
def installed(helm, api_server, api_namespace, absent_namespace, definitions):
    """Run Helm on a release that serves two namespaces, of which the second is deleted after the installation."""
    flags = ("--namespace", api_namespace, "--kubeconfig", str(api_server.kubeconfig))
    served = f"watchNamespaces={{{api_namespace},{absent_namespace}}}"
    values = ("--set", "crds.enabled=false", "--set", "agents.replicas=1", "--set", served)

    def run(verb, *arguments):
        return helm(verb, "dgym", *arguments, *flags)

    make_namespace(api_server, absent_namespace)
    done = run("install", str(CHART), *values)
    assert done.returncode == 0, done.stderr
    # No controllers run here that would delete the objects of the namespace.
    for kind in ("roles", "rolebindings"):
        deleted = api_server.kubectl("delete", kind, "--all", "--namespace", absent_namespace)
        assert deleted.returncode == 0, deleted.stderr
    path = f"/api/v1/namespaces/{absent_namespace}"
    api_server.request("DELETE", path)
    api_server.request("PUT", f"{path}/finalize", {"metadata": {"name": absent_namespace}, "spec": {"finalizers": []}})
    return lambda verb: run(verb, *((str(CHART), *values) if verb == "upgrade" else ()))


def test_helm_upgrades_and_uninstalls_without_it(installed, api_server, api_namespace, absent_namespace):
    def roles(namespace):
        return api_server.kubectl("get", "roles", "--namespace", namespace, "-o", "name").stdout.split()

    upgraded = installed("upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    assert f"namespace {absent_namespace} does not exist" in upgraded.stdout
    assert len(roles(api_namespace)) == 4
    assert not roles(absent_namespace)

    make_namespace(api_server, absent_namespace)
    upgraded = installed("upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    assert len(roles(absent_namespace)) == 3


def test_helm_uninstalls_without_it(installed, api_server, api_namespace):
    with job_controller(api_server, api_namespace):
        uninstalled = installed("uninstall")
    assert uninstalled.returncode == 0, uninstalled.stderr
    assert not api_server.kubectl("get", "deployments", "--namespace", api_namespace, "-o", "name").stdout


@contextlib.contextmanager
def job_controller(server, namespace):
    """Set every Job of the namespace to complete soon after it is created."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    stop = threading.Event()

    def run():
        while not stop.wait(0.1):
            for job in server.request("GET", path)["items"]:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                kinds = ("SuccessCriteriaMet", "Complete")
                conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
                status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
                body = {"status": {**status, "uncountedTerminatedPods": {}}}
                with contextlib.suppress(urllib.error.HTTPError):
                    server.request(
                        "PATCH",
                        f"{path}/{job['metadata']['name']}/status",
                        body,
                        content_type="application/merge-patch+json",
                    )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
