import kubernetes_validate
import pytest

from dgym_operator.policies_manifest import sandbox_policy

AGENTS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "agent"}


def policy(metrics_namespace=""):
    return sandbox_policy(
        "team", operator_namespace="dgym", agent_labels=AGENTS, metrics_namespace=metrics_namespace, port=8080
    )


def test_sandboxes_reach_nobody_and_one_port_of_theirs_is_open():
    spec = policy()["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    assert [rule["ports"] for rule in spec["ingress"]] == [[{"port": 8080, "protocol": "TCP"}]]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "sandbox"


def test_every_peer_is_named_by_its_labels():
    operator, agents, drivers = policy()["spec"]["ingress"][0]["from"]
    assert operator["namespaceSelector"] == agents["namespaceSelector"]
    assert agents["podSelector"]["matchLabels"] == AGENTS
    assert "namespaceSelector" not in drivers


def test_prometheus_is_let_in_where_it_is_told_of():
    assert policy("monitoring")["spec"]["ingress"][0]["from"][3] == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    }


@pytest.mark.parametrize("metrics_namespace", ["", "monitoring"])
def test_it_is_a_valid_manifest(metrics_namespace):
    kubernetes_validate.validate(policy(metrics_namespace), "1.31", strict=True)
