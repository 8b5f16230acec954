"""Fixtures for the commands of dgym against a real API server without an operator."""

import json
import time
import urllib.error
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dgym.api import custom_resource_definitions
from dgym.cli.app import cli
from tests.integration.cli.cluster.standin import cluster as cluster
from tests.integration.cli.cluster.standin import stored as stored

GROUP = "/apis/dgym.dev/v1alpha1/namespaces"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Namespace:
    """A new namespace for a test, and the requests that tests make in it."""

    def __init__(self, server, name):
        self._server = server
        self.name = name

    def get(self, kind, name):
        return self._server.request("GET", f"{GROUP}/{self.name}/{kind}s/{name}")

    def create(self, kind, name, spec, labels=None):
        manifest = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "labels": labels or {}}}
        return self._server.request("POST", f"{GROUP}/{self.name}/{kind.lower()}s", {**manifest, "spec": spec})

    def finish(self, kind, name, **status):
        conditions = [{"type": "Finished", "status": "True"}]
        self.status(kind, name, {"conditions": conditions, **status})

    def status(self, kind, name, status):
        path = f"{GROUP}/{self.name}/{kind}s/{name}/status"
        self._server.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")

    def wait_for(self, kind, name):
        deadline = time.monotonic() + 90
        while True:
            try:
                return self.get(kind, name)
            except urllib.error.HTTPError as error:
                if error.code != 404 or time.monotonic() > deadline:
                    raise


@pytest.fixture(scope="session")
def kinds(api_server):
    """The server on which the kinds of dgym are defined. Other tests may have defined them already."""
    for definition in custom_resource_definitions():
        try:
            api_server.request("POST", DEFINITIONS, definition)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
    deadline = time.monotonic() + 90
    for kind in ("debugtasks", "episodes", "episodesets"):
        while True:
            try:
                api_server.request("GET", f"{GROUP}/default/{kind}")
                break
            except urllib.error.HTTPError as error:
                if error.code not in (404, 429) or time.monotonic() > deadline:
                    raise
    return api_server


@pytest.fixture
def namespace(kinds, api_namespace):
    return Namespace(kinds, api_namespace)


@pytest.fixture
def dgym(kinds, api_namespace, monkeypatch):
    """Runs a command in the test's namespace."""
    monkeypatch.setenv("KUBECONFIG", str(kinds.kubeconfig))
    monkeypatch.setenv("COLUMNS", "200")

    def run(name, *arguments, status=0):
        done = CliRunner().invoke(cli, [name, "-n", api_namespace, *map(str, arguments)])
        assert done.exit_code == status, (done.output, done.exception)
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    """A function that writes a kubeconfig and selects it with KUBECONFIG."""

    def write(server, *, ca_file=None, token="", contexts=("here",)):
        cluster = {"server": server, **({"certificate-authority": str(ca_file)} if ca_file else {})}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": contexts[0],
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "one", "user": "me"}} for name in contexts],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(path))

    return write
