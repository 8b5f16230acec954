"""The operator with the rights that the chart gives it, and nothing more: enough, and none that it does not use."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
GROUP = "/apis/dgym.dev/v1alpha1"
TASK = {"source": {"files": [{"path": "a.py", "content": "A = 1\n"}, {"path": "test_a.py", "content": ""}]}}
READS = {"get", "list", "watch"}
SELDOM = {
    ("patch", "leases"),  # to renew it, after some seconds
    ("patch", "events"),  # when something happens again
    ("create", "networkpolicies"),  # an apply that creates: asked for by the server, logged as a patch
}


@pytest.fixture
def release(helm, api_server, api_namespace, definitions):
    """The accounts and roles of a release that serves the test's namespace."""
    answer = helm.template("--namespace", api_namespace, "--set", f"watchNamespaces={{{api_namespace}}}")
    assert answer.returncode == 0, answer.stderr
    objects = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    accounts = yaml.dump_all(each for each in objects if each["kind"] in kinds)
    done = api_server.kubectl("apply", "--server-side", "-f", "-", stdin=accounts)
    assert done.returncode == 0, done.stderr
    return objects


@pytest.fixture
def operator(release, api_server, api_namespace, tmp_path):
    """The operator, as the account and with the environment of its Deployment; the path of its log."""
    token = api_server.kubectl("create", "token", "dgym-operator", "--namespace", api_namespace).stdout.strip()
    kubeconfig = yaml.safe_load(api_server.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    (deployment,) = (each for each in release if each["kind"] == "Deployment" and _name(each) == "dgym-operator")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    environment |= {"DGYM_OPERATOR_NAMESPACE": api_namespace, "DGYM_OPERATOR_PORT": "0"}
    command = [sys.executable, "-m", "dgym_operator", *container["args"], "--kubeconfig", tmp_path / "kubeconfig"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log)
        yield tmp_path / "log"
        process.terminate()
        assert process.wait(DEADLINE) == 0, (tmp_path / "log").read_text()


def test_the_operator_may_do_what_it_does_and_nothing_else(release, operator, api_server, api_namespace):
    objects = _Objects(api_server, api_namespace, operator)
    objects.make("DebugTask", "task", TASK)
    template = {"agent": {"name": "solution"}, "ttlSecondsAfterFinished": 0}
    objects.make(
        "EpisodeSet",
        "set",
        {"tasks": [{"name": "task"}], "template": template, "ttlSecondsAfterFinished": 0, "samples": 1},
    )
    objects.wait_for(f"/api/v1/namespaces/{api_namespace}/pods", 1)
    objects.patch("episodesets", "set", {"spec": {"cancel": True}})
    objects.wait_for(f"{GROUP}/namespaces/{api_namespace}/episodesets", 0)

    assert "forbidden" not in operator.read_text().lower()
    granted = {
        (verb, resource)
        for role in release
        if role["kind"] == "Role" and _name(role).startswith("dgym-operator")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in set(rule["verbs"]) - READS
    }
    written = objects.written()
    assert written <= granted
    assert granted - written <= SELDOM


class _Objects:
    def __init__(self, server, namespace, log):
        self.server, self.namespace, self.log = server, namespace, log

    def make(self, kind, name, spec):
        body = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.server.request("POST", f"{GROUP}/namespaces/{self.namespace}/{kind.lower()}s", body)

    def patch(self, plural, name, body):
        path = f"{GROUP}/namespaces/{self.namespace}/{plural}/{name}"
        self.server.request("PATCH", path, body, content_type="application/merge-patch+json")

    def wait_for(self, collection, number):
        end = time.monotonic() + DEADLINE
        while len(self.server.request("GET", collection)["items"]) != number:
            assert time.monotonic() < end, f"{number} of {collection}: {self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def written(self):
        account = f"system:serviceaccount:{self.namespace}:dgym-operator"
        for_subresource = (
            (
                entry["verb"],
                "/".join(filter(None, (entry["objectRef"]["resource"], entry["objectRef"].get("subresource")))),
            )
            for entry in self.server.writes()
            if entry["user"]["username"] == account
        )
        return set(for_subresource)


def _name(made):
    return made["metadata"]["name"]
