"""The sandboxes' NetworkPolicy, put into every namespace before its first pod.

A sandbox runs code that a model has written. Only the pods that drive and watch an episode may reach its sandbox, and
the sandbox may reach nothing: not even DNS, which would be a way out.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from dgym.api import DRIVER_LABEL, POOL_LABEL
from dgym.kube import NETWORK_POLICIES, ApiError, Forbidden
from dgym_operator.actions.writes import Writes
from dgym_operator.controllers import SIDECAR_PORT
from dgym_operator.objects import MANAGED_BY, NAMESPACE_LABEL, OPERATOR_LABELS, POLICY_NAME, SANDBOX_LABELS
from dgym_operator.settings import Settings

_REAPPLY_SECONDS = 300.0
"""A policy that was deleted or changed is restored after so long, before the next pod."""


class NetworkPolicies:
    """The policy of each namespace, applied again from time to time."""

    def __init__(self, writes: Writes, settings: Settings, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._settings = settings
        self._clock = clock
        self._applied: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ensure(self, namespace: str) -> None:
        """Apply the policy in the namespace.

        Raises:
            ApiError: The policy is required and cannot be applied, or the namespace is being deleted.
        """
        if self._settings.network_policy == "disabled":
            return
        async with self._locks[namespace]:
            if self._clock() < self._applied.get(namespace, float("-inf")) + _REAPPLY_SECONDS:
                return
            manifest = sandbox_policy(
                namespace,
                operator_namespace=self._settings.namespace,
                agent_labels=self._agent_labels(namespace),
                port=SIDECAR_PORT,
            )
            try:
                await self._writes.apply(NETWORK_POLICIES, POLICY_NAME, manifest, namespace=namespace)
            except ApiError as error:
                leaving = isinstance(error, Forbidden) and error.namespace_terminating
                if leaving or self._settings.network_policy == "required":
                    raise
            self._applied[namespace] = self._clock()

    def _agent_labels(self, namespace: str) -> dict[str, str]:
        """The labels of the agents that serve the namespace: those of its pool, where there are pools."""
        labels, pool = selector_labels(self._settings.agent_selector), self._settings.agent_pools.of(namespace)
        return {**labels, POOL_LABEL: pool} if pool else labels


def selector_labels(selector: str) -> dict[str, str]:
    """The labels of a selector of equalities: ``a=b,c=d``."""
    pairs = (part.partition("=") for part in selector.split(",") if part.strip())
    return {key.strip(): value.strip().removeprefix("=") for key, _, value in pairs}


def sandbox_policy(
    namespace: str, *, operator_namespace: str, agent_labels: dict[str, str], port: int
) -> dict[str, Any]:
    """The policy of one namespace."""
    own = {"matchLabels": {NAMESPACE_LABEL: operator_namespace}}
    peers = [
        {"namespaceSelector": own, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}},
        {"namespaceSelector": own, "podSelector": {"matchLabels": dict(agent_labels)}},
        {"podSelector": {"matchExpressions": [{"key": DRIVER_LABEL, "operator": "Exists"}]}},
    ]
    return NETWORK_POLICIES.manifest(
        metadata={"name": POLICY_NAME, "namespace": namespace, "labels": dict(MANAGED_BY)},
        spec={
            "podSelector": {"matchLabels": dict(SANDBOX_LABELS)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": [{"port": port, "protocol": "TCP"}]}],
            "egress": [],
        },
    )
