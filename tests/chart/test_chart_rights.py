"""The operator with the rights that the chart gives it, and nothing more: enough, and none that it does not use."""

import time

import pytest

DEADLINE = 90.0
GROUP = "/apis/dgym.dev/v1alpha1"
TASK = {"source": {"files": [{"path": "a.py", "content": "A = 1\n"}, {"path": "test_a.py", "content": ""}]}}
READS = {"get", "list", "watch"}
SELDOM = {
    ("patch", "leases"),  # to renew it, after some seconds
    ("patch", "events"),  # when something happens again
    ("create", "networkpolicies"),  # an apply that creates: asked for by the server, logged as a patch
}


@pytest.fixture
def release(accounts, api_namespace):
    """The objects of a release that serves the test's namespace; its accounts and roles are applied."""
    return accounts(api_namespace)


@pytest.fixture
def operator(run_operator, release):
    """The path of the operator's log."""
    with run_operator(release) as log:
        yield log


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
    end = time.monotonic() + DEADLINE
    # The audit log and Events come a little later than what they are about.
    while not granted - objects.written() <= SELDOM:
        assert time.monotonic() < end, granted - objects.written()
        time.sleep(0.1)
    assert objects.written() <= granted


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
