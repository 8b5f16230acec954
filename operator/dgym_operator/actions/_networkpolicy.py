"""The NetworkPolicy of the sandboxes. It is applied to every namespace before the first pod is created.

A sandbox runs code that a model has written. Only the operator, the agent pods and external drivers may connect to it.
The sandbox may not connect to anything. This includes DNS, because a program could send data out with DNS queries.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dgym.api import DRIVER_LABEL, POOL_LABEL
from dgym.kube import NETWORK_POLICIES, ApiError, EventRecorder, Forbidden
from dgym.logs import fields
from dgym_operator.actions._writes import Writes
from dgym_operator.cache import Cache
from dgym_operator.controllers import SIDECAR_PORT
from dgym_operator.objects import (
    MANAGED_BY,
    NAMESPACE_LABEL,
    OPERATOR_LABELS,
    POLICY_NAME,
    SANDBOX_LABELS,
    NetworkPolicyView,
)
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 300.0
"""Interval between two tries if the API server refuses a policy that is not required."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NetworkPolicies:
    """Applies the policy of each namespace if the observed one differs, before each pod and after each change.

    ``restored`` is called each time when a policy was missing or different in a namespace that needs it.
    """

    cache: Cache
    writes: Writes
    settings: Settings
    events: EventRecorder
    restored: Callable[[], None]
    _refused: dict[str, float] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def ensure(self, namespace: str) -> None:
        """Apply the policy if the namespace does not have it.

        Raises:
            ApiError: The policy is required and cannot be applied, or the namespace is being deleted.
        """
        if self.settings.network_policy == "disabled":
            return
        async with self._locks[namespace]:
            wanted, found = self._wanted(namespace), self.cache.network_policies.get((namespace, POLICY_NAME))
            if found is not None and _without_empty(found.spec) == _without_empty(wanted["spec"]):
                return
            now = self.cache.clock.monotonic()
            if now < self._refused.get(namespace, float("-inf")) + _RETRY_SECONDS:
                return
            try:
                applied = await self.writes.apply(
                    NETWORK_POLICIES, POLICY_NAME, wanted, decode=NetworkPolicyView, namespace=namespace
                )
            except ApiError as error:
                leaving = isinstance(error, Forbidden) and error.namespace_terminating
                if leaving or self.settings.network_policy == "required":
                    raise
                self._refused[namespace] = now
                _log.warning("the NetworkPolicy was not applied: %s", error, extra=fields(namespace=namespace))
                return
            self._refused.pop(namespace, None)
            self.cache.network_policies.assume(applied)
        if found is not None or self.cache.pods_by_namespace.count(namespace):
            self._report(applied, "was deleted" if found is None else "was changed")

    async def reconcile(self, namespace: str) -> None:
        """Restore the policy of a namespace with pods or Episodes, or delete it if policies are disabled.

        Raises:
            ApiError: See ``ensure``. Also if the policy could not be deleted.
        """
        if self.settings.network_policy != "disabled":
            if namespace in self.cache.namespaces or self.cache.pods_by_namespace.count(namespace):
                await self.ensure(namespace)
            return
        key = (namespace, POLICY_NAME)
        found = self.cache.network_policies.get(key)
        if found is not None and found.metadata.labels.items() >= MANAGED_BY.items():
            store, uid = self.cache.network_policies, found.metadata.uid
            await self.writes.delete(NETWORK_POLICIES, store, key, uid, decode=NetworkPolicyView)

    def _report(self, applied: NetworkPolicyView, cause: str) -> None:
        message = f"NetworkPolicy {POLICY_NAME} {cause} and was restored: without it, sandboxes have network access"
        self.restored()
        self.events.record(NETWORK_POLICIES, applied, type="Warning", reason="NetworkPolicyRestored", message=message)
        _log.warning("%s", message, extra=fields(namespace=applied.metadata.namespace))

    def _wanted(self, namespace: str) -> dict[str, Any]:
        return sandbox_policy(
            namespace,
            operator_namespace=self.settings.namespace,
            agent_pod_labels=self._agent_pod_labels(namespace),
        )

    def _agent_pod_labels(self, namespace: str) -> dict[str, str]:
        """Return the labels of the agent pods that serve the namespace, including the label of its pool."""
        labels, pool = selector_labels(self.settings.agent_selector), self.settings.agent_pools.of(namespace)
        return {**labels, POOL_LABEL: pool} if pool else labels


def selector_labels(selector: str) -> dict[str, str]:
    """Return the labels of a selector that consists of equalities, such as ``a=b,c=d``."""
    pairs = (part.partition("=") for part in selector.split(",") if part.strip())
    return {key.strip(): value.strip().removeprefix("=") for key, _, value in pairs}


def sandbox_policy(namespace: str, *, operator_namespace: str, agent_pod_labels: dict[str, str]) -> dict[str, Any]:
    """Return the manifest of the policy for one namespace."""
    own = {"matchLabels": {NAMESPACE_LABEL: operator_namespace}}
    peers = [
        {"namespaceSelector": own, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}},
        {"namespaceSelector": own, "podSelector": {"matchLabels": dict(agent_pod_labels)}},
        {"podSelector": {"matchExpressions": [{"key": DRIVER_LABEL, "operator": "Exists"}]}},
    ]
    return NETWORK_POLICIES.manifest(
        metadata={"name": POLICY_NAME, "namespace": namespace, "labels": dict(MANAGED_BY)},
        spec={
            "podSelector": {"matchLabels": dict(SANDBOX_LABELS)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": [{"port": SIDECAR_PORT, "protocol": "TCP"}]}],
            "egress": [],
        },
    )


def _without_empty(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Remove empty values from the spec, because the API server omits empty lists."""
    return {name: value for name, value in spec.items() if value}
