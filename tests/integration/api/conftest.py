"""Fixtures for the custom resources of dgym in a real API server."""

import http.client
import json
import ssl
import time
from urllib.parse import urlsplit

import pytest

from dgym.api import custom_resource_definitions

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/dgym.dev/v1alpha1"


class Api:
    """A persistent connection to the API server, because tests send hundreds of manifests in a second or two."""

    def __init__(self, server):
        address = urlsplit(server.url)
        context = ssl.create_default_context(cafile=server.ca_file)
        self._connection = http.client.HTTPSConnection(address.hostname, address.port, context=context, timeout=90)
        self._token = server.token

    def call(self, method, path, body=None, content_type="application/json"):
        """Return status and decoded body. Without JSON, as for paths that are not served, the body is {}."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body)
        try:
            response = self._ask(method, path, data, headers)
        except ConnectionError:
            # The server closes a connection after 90 seconds without a request.
            self._connection.close()
            response = self._ask(method, path, data, headers)
        answer = response.read()
        return response.status, json.loads(answer) if response.getheader("Content-Type") == "application/json" else {}

    def _ask(self, method, path, data, headers):
        self._connection.request(method, path, data, headers)
        return self._connection.getresponse()

    def create(self, namespace, manifest, *, dry_run=False):
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.call("POST", f"{path_of(namespace, manifest['kind'])}{query}", manifest)

    def patch(self, namespace, kind, name, change, *, below=""):
        path = f"{path_of(namespace, kind)}/{name}{below}?fieldValidation=Strict"
        return self.call("PATCH", path, change, "application/merge-patch+json")

    @staticmethod
    def manifest(kind, spec, name="a"):
        return {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    @staticmethod
    def causes(answer):
        """The reasons for which a manifest is refused, each as ``field: message``."""
        return [f"{each['field']}: {each['message']}" for each in answer["details"]["causes"]]

    def close(self):
        self._connection.close()


def path_of(namespace, kind):
    return f"{GROUP}/namespaces/{namespace}/{kind.lower()}s"


@pytest.fixture(scope="session")
def kinds(api_server):
    """The connection to a server on which the kinds of dgym are defined. Other tests may have defined them already."""
    api = Api(api_server)
    for definition in custom_resource_definitions():
        status, answer = api.call("POST", DEFINITIONS, definition)
        assert status in (201, 409), answer
    deadline = time.monotonic() + 90
    for kind in ("DebugTask", "Episode", "EpisodeSet", "SandboxPool"):
        while api.call("GET", path_of("default", kind))[0] != 200:
            assert time.monotonic() < deadline, f"{kind} is not served"
    yield api
    api.close()


@pytest.fixture
def refused(kinds, api_namespace):
    """A function that returns the reasons for which the server refuses a manifest."""

    def why(kind, spec, *, name="a"):
        status, answer = kinds.create(api_namespace, kinds.manifest(kind, spec, name), dry_run=True)
        assert status == 422, answer
        return kinds.causes(answer)

    return why
