"""Tests of the sandboxes' NetworkPolicy on a real API server. Tenants may delete and change the policy."""

from dgym.wire import EndReason
from tests.integration.operator.conftest import get
from tests.integration.operator.peers import MERGE, until

POLICY_PATH = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/dgym-sandbox"


async def restored(installation, before):
    """Wait until the policy exists again with the earlier ``spec``, and return it."""
    path = POLICY_PATH.format(installation.namespace)

    async def look():
        found = await installation.api.find(path)
        return found if found and found["spec"] == before["spec"] else None

    return await until(look, "the policy is restored")


async def test_a_policy_that_a_tenant_deletes_or_changes_is_restored_while_pods_run(installation):
    agent = await installation.start_agent()
    agent.playing = False
    operator = await installation.start_operator()
    await installation.episode("fix")
    await until(lambda: agent.held, "the episode is assigned")
    path = POLICY_PATH.format(installation.namespace)
    policy = await installation.api.find(path)
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy["spec"]
    _, text = await get(operator, "/metrics")
    assert "dgym_operator_network_policies_restored_total 0.0" in text
    await installation.api.call("DELETE", path)
    again = await restored(installation, policy)
    assert again["metadata"]["uid"] != policy["metadata"]["uid"]
    assert "was deleted and was restored" in await installation.event("NetworkPolicyRestored")
    opened = {"spec": {"egress": [{}]}}
    await installation.api.call("PATCH", path, opened, MERGE)
    await restored(installation, policy)
    _, text = await get(operator, "/metrics")
    assert "dgym_operator_network_policies_restored_total 2.0" in text
    (uid,) = agent.held
    await agent.finish(uid, EndReason.RESOLVED)
    await installation.finished("fix")


async def test_a_policy_that_went_while_no_operator_ran_is_restored_before_the_next_pod(installation):
    await installation.start_agent()
    await installation.start_operator()
    await installation.episode("one")
    await installation.finished("one")
    path = POLICY_PATH.format(installation.namespace)
    policy = await installation.api.find(path)
    await installation.stop_operator()
    await installation.api.call("DELETE", path)
    await installation.start_operator()
    await restored(installation, policy)


async def test_disabled_policies_are_removed_but_for_those_of_others(installation):
    await installation.start_agent()
    await installation.start_operator()
    await installation.episode("one")
    await installation.finished("one")
    path = POLICY_PATH.format(installation.namespace)
    assert await installation.api.find(path)
    await installation.stop_operator()
    await installation.start_operator(network_policy="disabled")

    async def gone():
        return await installation.api.find(path) is None

    await until(gone, "the policy is removed")
    own = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "dgym-sandbox"},
        "spec": {"podSelector": {}},
    }
    await installation.api.call("POST", path.rpartition("/")[0], own)
    await installation.episode("two")
    await installation.finished("two")
    assert await installation.api.find(path)
