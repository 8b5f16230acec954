"""The NetworkPolicy of sandboxes. Pure.

Inside a sandbox runs whatever a model has written. Nobody but those who drive and watch an episode reaches its pod, and
it reaches nobody: not even DNS, which would be a way out.
"""

from collections.abc import Iterator
from typing import Any

from dgym.api.labels import DRIVER

POLICY_NAME = "dgym-sandbox"
MANAGED_BY = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/managed-by": "dgym-operator"}
SANDBOX_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "sandbox"}
OPERATOR_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "operator"}
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def sandbox_policy(
    namespace: str, *, operator_namespace: str, agent_labels: dict[str, str], metrics_namespace: str, port: int
) -> dict[str, Any]:
    """The policy of one namespace."""
    peers = list(_peers(operator_namespace, agent_labels, metrics_namespace))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY_NAME, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "spec": {
            "podSelector": {"matchLabels": dict(SANDBOX_LABELS)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": [{"port": port, "protocol": "TCP"}]}],
            "egress": [],
        },
    }


def _peers(operator_namespace: str, agent_labels: dict[str, str], metrics_namespace: str) -> Iterator[dict[str, Any]]:
    own = {"matchLabels": {_NAMESPACE_LABEL: operator_namespace}}
    yield {"namespaceSelector": own, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}
    yield {"namespaceSelector": own, "podSelector": {"matchLabels": dict(agent_labels)}}
    yield {"podSelector": {"matchExpressions": [{"key": DRIVER, "operator": "Exists"}]}}
    if metrics_namespace:
        yield {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: metrics_namespace}}}
