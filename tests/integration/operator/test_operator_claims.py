"""Tests of two installations that are configured for one namespace: only one of them serves it."""

import pytest

from tests.integration.operator.peers import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@pytest.fixture
def leases(installation):
    return LEASES.format(installation.namespace)


async def test_the_second_installation_leaves_the_namespace_to_the_first(installation):
    agent = await installation.start_agent()
    first = await installation.start_operator()
    await installation.episode("fix")
    assert (await installation.finished("fix"))["status"]["reason"] == "Resolved"

    other = f"{installation.namespace}-other"
    await installation.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    second = await installation.start_operator(namespace=other)
    await until(second.elector.is_leader, "the second leads its own installation")

    note = await installation.event("NamespaceHeld", other)
    assert f"the installation {installation.namespace}/dgym-operator serves it" in note
    await installation.episode("next")
    assert (await installation.finished("next"))["status"]["reason"] == "Resolved"
    assert {given.epoch for given in agent.given} == {1}
    assert first.elector.is_leader()


async def test_a_claim_that_is_not_renewed_is_taken_over(installation, leases):
    spec = {"holderIdentity": "gone/dgym-operator", "leaseDurationSeconds": 1}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "dgym-owner"}, "spec": spec}
    await installation.api.call("POST", leases, lease)
    await installation.start_agent()
    await installation.start_operator(namespace_lease_seconds=8.0)
    await installation.episode("fix")
    await installation.finished("fix")
    found = await installation.api.call("GET", f"{leases}/dgym-owner")
    assert found["spec"]["holderIdentity"] == f"{installation.namespace}/dgym-operator"
