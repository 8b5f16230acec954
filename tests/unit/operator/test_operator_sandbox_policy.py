import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from dgym_operator.__main__ import main
from dgym_operator.actions._networkpolicy import sandbox_policy
from dgym_operator.controllers import SIDECAR_PORT

AGENTS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "agent"}


def policy():
    return sandbox_policy("team", operator_namespace="dgym", agent_pod_labels=AGENTS)


def test_sandboxes_have_no_egress_and_one_open_port():
    spec = policy()["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    assert [rule["ports"] for rule in spec["ingress"]] == [[{"port": SIDECAR_PORT, "protocol": "TCP"}]]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "sandbox"


def test_every_peer_is_named_by_its_labels():
    operator, agents, drivers = policy()["spec"]["ingress"][0]["from"]
    assert operator["namespaceSelector"] == agents["namespaceSelector"]
    assert agents["podSelector"]["matchLabels"] == AGENTS
    assert "namespaceSelector" not in drivers


def test_the_network_policy_is_a_valid_manifest():
    kubernetes_validate.validate(policy(), "1.31", strict=True)


@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_the_open_port_is_the_one_of_the_pod(monkeypatch, tmp_path, template):
    monkeypatch.setenv("DGYM_OPERATOR_SIDECAR_IMAGE", "sidecar")
    episode = tmp_path / "episode.yaml"
    episode.write_text(
        "apiVersion: dgym.dev/v1alpha1\nkind: Episode\nmetadata: {name: fix}\n"
        f"spec: {{task: {{image: i}}, podTemplate: {template}}}\n"
    )
    shown = CliRunner().invoke(main, ["render", str(episode)])
    assert shown.exit_code == 0, shown.output
    pod = yaml.safe_load(shown.output)
    (sidecar,) = [each for each in pod["spec"]["containers"] if each["name"] == "sidecar"]
    assert sidecar["ports"] == [{"name": "http", "containerPort": SIDECAR_PORT}]
