"""Tests of the operator's rights: with the roles of the chart it can work, and it uses every right that it has."""

import time
import uuid

import pytest

from tests.security.rights import ACCOUNT, denied, granted, requests, unused

DEADLINE = 90.0
GROUP = "/apis/dgym.dev/v1alpha1"
TASK = {"source": {"files": [{"path": "a.py", "content": "A = 1\n"}, {"path": "test_a.py", "content": ""}]}}
SELDOM = {
    # Leases are renewed after some seconds. Replicas that do not lead read the lease of the leader.
    "operator (own): patch coordination.k8s.io/leases dgym-operator",
    "operator (own): list coordination.k8s.io/leases dgym-operator",
    "operator (own): watch coordination.k8s.io/leases dgym-operator",
    "operator (served): patch coordination.k8s.io/leases dgym-owner",
    # An Event is repeated, or the installation has an error.
    "operator (served): patch events.k8s.io/events",
    "operator (own): create events.k8s.io/events",
    "operator (own): patch events.k8s.io/events",
    # Clients read results.
    "operator (served): create authentication.k8s.io/tokenreviews",
    "operator (served): create authorization.k8s.io/subjectaccessreviews",
    # Episodes without an agent.
    "operator (served): create /secrets",
    # Required by an admission plugin when a child with blockOwnerDeletion is created.
    "operator (served): update dgym.dev/episodes/finalizers",
    "operator (served): update dgym.dev/episodesets/finalizers",
    "operator (served): update dgym.dev/sandboxpools/finalizers",
    # Used after a lost response, and for objects that are not in the caches.
    "operator (served): get /configmaps",
    "operator (served): get /pods",
    "operator (served): get dgym.dev/episodes",
    "operator (served): get dgym.dev/episodesets",
    "operator (served): get dgym.dev/sandboxpools",
}
"""Rights that the operator does not need in the first seconds of one EpisodeSet."""


@pytest.fixture
def served(api_server):
    """The namespace that the release serves. The operator has other rights in the release's own namespace."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return name


@pytest.fixture
def release(accounts, served):
    """The objects of a release that serves this namespace. Its accounts and roles are applied."""
    return accounts(served)


@pytest.fixture
def operator(run_operator, release):
    """The path of the log of the running operator."""
    with run_operator(release) as log:
        yield log


def test_the_operator_may_do_what_it_does_and_nothing_else(release, operator, api_server, api_namespace, served):
    objects = _Objects(api_server, served, operator)
    objects.make("DebugTask", "task", TASK)
    objects.make("SandboxPool", "pool", {"taskRef": {"name": "task"}, "minIdle": 1})
    objects.start_all(objects.wait_for(f"/api/v1/namespaces/{served}/pods", 1))
    template = {"agent": {"name": "solution"}, "ttlSecondsAfterFinished": 0}
    objects.make(
        "EpisodeSet",
        "set",
        {
            "tasks": [{"name": "task"}],
            "template": template,
            "ttlSecondsAfterFinished": 0,
            "samples": 5,
            "parallelism": 1,
            "pool": {"minIdle": 1},
        },
    )
    # The first episode claims the pod of the pool, which then creates another. The pool of the set has a pod as well.
    objects.wait_for(f"/api/v1/namespaces/{served}/pods", 3)
    objects.patch("episodesets", "set", {"spec": {"pool": {"minIdle": 2}}})
    objects.wait_for(f"/api/v1/namespaces/{served}/pods", 4)
    objects.patch("episodesets", "set", {"spec": {"cancel": True}})
    objects.wait_for(f"{GROUP}/namespaces/{served}/episodesets", 0)

    assert "forbidden" not in operator.read_text().lower()
    rights = {right for right in granted(release, api_namespace) if right.component == "operator"}
    end = time.monotonic() + DEADLINE
    # The audit log and Events are written some time after the requests.
    while left := never_used(rights, api_server, api_namespace):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert denied(asked(api_server, api_namespace)) == []


def asked(api_server, namespace):
    """The requests of the operator of the namespace, from the audit log."""
    account = f'"{ACCOUNT}{namespace}:dgym-operator"'
    return requests(line for line in api_server.audited() if account in line)


def never_used(rights, api_server, namespace):
    """The rights that the operator has not used yet, without those in ``SELDOM``."""
    return {str(right) for right in unused(rights, asked(api_server, namespace))} - SELDOM


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
        while len(found := self.server.request("GET", collection)["items"]) != number:
            assert time.monotonic() < end, f"{number} of {collection}: {self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        return found

    def start_all(self, pods):
        """Set pods to ready, as a kubelet does. The test does not depend on the responses of the sidecars."""
        for pod in pods:
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [ready]}
            self.server.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
