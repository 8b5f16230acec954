"""The ``helm`` program and the rendered chart."""

import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from hack.cluster.controlplane import Client
from tests.chart.admission import POLICY_KINDS, Operator, wait_for_policies
from tests.support.apiserver import ApiServer
from tests.support.required import built

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dgym"
VALUES = Path(__file__).parent / "values"
NAMESPACE = "dgym-system"
DEADLINE = 90.0


class Rendered(NamedTuple):
    """The objects of a release, hooks included."""

    objects: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """The only object with this kind and name."""
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The pod templates of all workloads, and the pods without a workload."""
        bare = [{"metadata": each["metadata"], "spec": each["spec"]} for each in self.of("Pod")]
        workloads = [each for kind in ("Deployment", "DaemonSet", "Job") for each in self.of(kind)]
        return [each["spec"]["template"] for each in workloads] + bare


class Helm:
    """The ``helm`` program without the configuration and cache of the user."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self._environment = {**os.environ, "HELM_CONFIG_HOME": str(home), "HELM_CACHE_HOME": str(home)}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``helm`` without a check of the exit status."""
        command = [str(self._program), *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=90, check=False)

    def template(self, *arguments: str, release: str = "dgym") -> subprocess.CompletedProcess[str]:
        """Render the chart."""
        return self("template", release, str(CHART), "--namespace", NAMESPACE, *arguments)


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    return Helm(built("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def render(helm):
    """Render the chart with a file of values and further changes. Each combination is rendered once."""
    done: dict[tuple[str, ...], Rendered] = {}

    def made(file: str = "default", *changes: str, release: str = "dgym") -> Rendered:
        key = (file, release, *changes)
        if key not in done:
            sets = [part for change in changes for part in ("--set", change)]
            answer = helm.template("--values", str(VALUES / f"{file}.yaml"), *sets, release=release)
            assert answer.returncode == 0, answer.stderr
            loaded = yaml.load_all(answer.stdout, yaml.CSafeLoader)
            done[key] = Rendered([each for each in loaded if each is not None])
        return done[key]

    return made


@pytest.fixture(scope="session")
def definitions(api_server, render):
    """Define the kinds of the chart on the API server."""
    documents = yaml.dump_all(render("default").of("CustomResourceDefinition"))
    flags = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    done = api_server.kubectl(*flags, stdin=documents)
    assert done.returncode == 0, done.stderr
    end = time.monotonic() + DEADLINE
    # The server serves a kind some time after its definition is stored.
    while api_server.kubectl("get", "episodes.dgym.dev", "--namespace", "default").returncode != 0:
        assert time.monotonic() < end


@pytest.fixture
def api_namespace(api_server: ApiServer) -> str:
    """A new namespace for this test. It admits only restricted pods."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return name


@pytest.fixture
def accounts(helm, api_server, api_namespace, definitions):
    """Render a release in the test's namespace that serves other namespaces; apply its accounts, roles and policies.

    Returns its objects. Objects of a namespace that does not exist are skipped, as by an upgrade.
    """
    of_the_cluster = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    applied = []

    def apply(*served):
        answer = helm.template("--namespace", api_namespace, "--set", f"watchNamespaces={{{','.join(served)}}}")
        assert answer.returncode == 0, answer.stderr
        objects = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
        kinds = ("ServiceAccount", "Role", "RoleBinding")
        there = {each["metadata"]["name"] for each in api_server.request("GET", "/api/v1/namespaces")["items"]}
        documents = [each for each in objects if each["kind"] in kinds and each["metadata"]["namespace"] in there]
        applied.extend(each for each in objects if each["kind"] in of_the_cluster)
        documents += applied
        done = api_server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.dump_all(documents))
        assert done.returncode == 0, done.stderr
        return objects

    yield apply
    if applied:
        api_server.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.dump_all(applied))


@pytest.fixture
def kubeconfig_of(api_server, api_namespace, tmp_path):
    """Write the kubeconfig of a service account of the test's namespace."""

    def write(account):
        token = api_server.kubectl("create", "token", account, "--namespace", api_namespace).stdout.strip()
        kubeconfig = yaml.safe_load(api_server.kubeconfig.read_text())
        kubeconfig["users"][0]["user"] = {"token": token}
        path = tmp_path / f"kubeconfig-{account}"
        path.write_text(yaml.safe_dump(kubeconfig))
        return path

    return write


@pytest.fixture
def run_operator(kubeconfig_of, api_namespace, tmp_path):
    """Run the operator with the account and the environment of its Deployment. Yields the path of its log."""

    @contextmanager
    def run(release, **settings):
        deployment = Rendered(release).one("Deployment", "dgym-operator")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        environment |= {"DGYM_OPERATOR_NAMESPACE": api_namespace, "DGYM_OPERATOR_PORT": "0", **settings}
        command = [
            sys.executable,
            "-m",
            "dgym_operator",
            *container["args"],
            "--kubeconfig",
            kubeconfig_of("dgym-operator"),
        ]
        log = tmp_path / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output
            )
            try:
                yield log
            finally:
                process.terminate()
                status = process.wait(60)
        assert status == 0, log.read_text()

    return run


@pytest.fixture(scope="module")
def install(helm, api_server, definitions):
    """Apply the accounts and policies of a release with these values. Returns the operator when they are in force."""
    installed = {}
    applied = []

    def made(*changes):
        if changes not in installed:
            namespace = f"test-{uuid.uuid4().hex[:10]}"
            api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            sets = [part for change in (f"watchNamespaces={{{namespace}}}", *changes) for part in ("--set", change)]
            answer = helm.template("--namespace", namespace, *sets)
            assert answer.returncode == 0, answer.stderr
            kinds = ("ServiceAccount", "Role", "RoleBinding", *POLICY_KINDS)
            loaded = yaml.load_all(answer.stdout, yaml.CSafeLoader)
            objects = [each for each in loaded if each and each["kind"] in kinds]
            applied.extend(each for each in objects if each["kind"] in POLICY_KINDS)
            done = api_server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.dump_all(objects))
            assert done.returncode == 0, done.stderr
            token = api_server.kubectl("create", "token", "dgym-operator", "--namespace", namespace).stdout.strip()
            installed[changes] = Operator(Client(api_server.url, api_server.ca_file, token), namespace)
            wait_for_policies(installed[changes])
        return installed[changes]

    yield made
    # Policies belong to the cluster, which other tests share.
    api_server.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.dump_all(applied))


@pytest.fixture(scope="module")
def operator(install):
    """The operator of a release with default values."""
    return install()
