"""``python -m dgym_operator.cleanup --deployment NAME``: remove the objects that the operator created.

It runs before the operator is uninstalled, because Helm removes only the objects that it installed. The operator is
stopped first, because it would create the others again. Then the sandbox pods are deleted, then their NetworkPolicies,
the Secrets and the Leases. Episodes are kept: they belong to users, and a later installation continues them.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import msgspec

from dgym.kube import (
    LEASES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    AccessError,
    ApiError,
    Client,
    Clock,
    Conflict,
    Forbidden,
    LeaseSpec,
    NotFound,
    Resource,
    SystemClock,
    load_access,
)
from dgym.logs import fields
from dgym.wire.assignments import pool_secret
from dgym_operator.objects import (
    NAMESPACE_LABEL,
    OPERATOR_LABELS,
    OWNER_LEASE,
    POLICY_NAME,
    SANDBOX_LABELS,
    WatchedObject,
)
from dgym_operator.settings import AGENT_POD_KEYS_SECRET, KEY_SECRET, LEADER_LEASE, Settings

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
TEST_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "test"}
"""Labels of the pod of ``helm test``, which Helm keeps for its log."""
STOP_SECONDS = 60.0
"""How long pods may take to terminate. The grace period is 30 s for operator pods and 5 s for sandbox pods."""
_POLL_SECONDS = 0.5
_QPS, _BURST = 200.0, 200

_log = logging.getLogger("dgym_operator.cleanup")
K = TypeVar("K")


class NetworkPolicy(WatchedObject, frozen=True, kw_only=True):
    """The NetworkPolicy of the sandboxes in a namespace. The operator that it admits has applied it."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    def admits(self, operator_namespace: str) -> bool:
        """True if it admits the operator in this namespace, so that this operator has applied it."""
        peers = (peer for rule in self.spec.get("ingress", ()) for peer in rule.get("from", ()))
        return any(
            (peer.get("podSelector") or {}).get("matchLabels") == OPERATOR_LABELS
            and (peer.get("namespaceSelector") or {}).get("matchLabels") == {NAMESPACE_LABEL: operator_namespace}
            for peer in peers
        )


class OwnerLease(WatchedObject, frozen=True, kw_only=True):
    """The Lease with which an installation claims a namespace."""

    spec: LeaseSpec = LeaseSpec()


class Cleanup:
    """Removes the objects that one installation has created."""

    def __init__(self, client: Client, settings: Settings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock

    async def run(self, deployment: str) -> None:
        """Remove all objects. Objects that do not exist are ignored.

        Raises:
            ApiError: The API server refused a request or did not answer.
        """
        await self._stop_operator(deployment)
        policies = await self._policies()
        served = {policy.metadata.namespace for policy in policies}
        await self._delete_all(PODS, await self._sandboxes(served))
        # Delete the policies only when all sandboxes are gone: a terminating sandbox must not get network access.
        await self._wait_until_gone("sandboxes", lambda: self._sandboxes(served))
        await self._delete_all(NETWORK_POLICIES, policies)
        await self._delete_all(LEASES, await self._claims())
        await self._delete_all(PODS, await self._labelled(TEST_LABELS))
        await self._delete_own()

    async def _stop_operator(self, deployment: str) -> None:
        await self._delete(DEPLOYMENTS, deployment, self._settings.namespace)
        await self._wait_until_gone("operator pods", lambda: self._labelled(OPERATOR_LABELS))

    async def _labelled(self, labels: dict[str, str]) -> list[WatchedObject]:
        """Return the pods with these labels in the operator's own namespace."""
        return await self._client.list(
            PODS, decode=WatchedObject, namespace=self._settings.namespace, label_selector=_selector(labels)
        )

    async def _policies(self) -> list[NetworkPolicy]:
        found = await self._served(NETWORK_POLICIES, NetworkPolicy, field_selector=f"metadata.name={POLICY_NAME}")
        return [policy for policy in found if policy.admits(self._settings.namespace)]

    async def _claims(self) -> list[OwnerLease]:
        """Return the Leases with which the installation has claimed namespaces, and the Leases without a holder."""
        found = await self._served(LEASES, OwnerLease, field_selector=f"metadata.name={OWNER_LEASE}")
        return [lease for lease in found if lease.spec.holder_identity in (self._settings.installation, "", None)]

    async def _sandboxes(self, served: set[str]) -> list[WatchedObject]:
        found = await self._served(PODS, WatchedObject, label_selector=_selector(SANDBOX_LABELS))
        # Other installations may exist in the cluster. The policy of a namespace shows which one created its pods.
        everywhere = self._settings.watch_namespaces or self._settings.network_policy == "disabled"
        return [pod for pod in found if everywhere or pod.metadata.namespace in served]

    async def _served(self, resource: Resource, kind: type[K], **selectors: str) -> list[K]:
        """Return the objects of a kind in all served namespaces. A deleted namespace is skipped."""
        found: list[K] = []
        for namespace in self._settings.namespaces:
            try:
                found += await self._client.list(resource, decode=kind, namespace=namespace, **selectors)
            except Forbidden as error:
                if namespace is None:
                    raise
                _log.warning(
                    "the namespace cannot be read and is left as it is",
                    extra=fields(namespace=namespace, error=str(error)),
                )
        return found

    async def _delete_all(self, resource: Resource, objects: Sequence[WatchedObject]) -> None:
        for found in objects:
            await self._delete(resource, found.metadata.name, found.metadata.namespace, found.metadata.uid)
        if objects:
            _log.info("deleted", extra=fields(resource=resource.plural, number=len(objects)))

    async def _delete_own(self) -> None:
        settings = self._settings
        secrets = [pool_secret(AGENT_POD_KEYS_SECRET, pool) for pool in settings.agent_pools.names]
        for secret in (*secrets, KEY_SECRET):
            await self._delete(SECRETS, secret, settings.namespace)
        await self._delete(LEASES, LEADER_LEASE, settings.namespace)
        _log.info("deleted the Secrets and the Lease")

    async def _delete(self, resource: Resource, name: str, namespace: str, uid: str | None = None) -> None:
        # The object is already gone, or another object has its name now.
        with suppress(NotFound, Conflict):
            await self._client.delete(resource, name, decode=bytes, namespace=namespace, uid=uid)

    async def _wait_until_gone(self, what: str, find: Callable[[], Awaitable[Sequence[WatchedObject]]]) -> None:
        end = self._clock.monotonic() + STOP_SECONDS
        while left := await find():
            if self._clock.monotonic() > end:
                _log.warning("did not end in time", extra=fields(what=what, number=len(left)))
                return
            await self._clock.sleep(_POLL_SECONDS)


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


async def clean_up(settings: Settings, deployment: str, clock: Clock, random: Random) -> None:
    """Remove the operator with these settings and all objects that it has created.

    Raises:
        AccessError: No API server is configured.
        ApiError: The API server refused a request or did not answer.
    """
    access = await load_access()
    async with Client(access, clock=clock, random=random, qps=_QPS, burst=_BURST) as client:
        await Cleanup(client, settings, clock).run(deployment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 on success and 1 on failure, with the reason in the log."""
    parser = argparse.ArgumentParser(prog="dgym_operator.cleanup", description=__doc__)
    parser.add_argument("--deployment", required=True, help="The operator's own Deployment.")
    deployment: str = parser.parse_args(arguments).deployment
    settings = Settings()
    settings.start_logging()
    try:
        asyncio.run(clean_up(settings, deployment, SystemClock(), Random()))  # noqa: S311 - jitter
    except (AccessError, ApiError) as error:
        _log.error("cannot clean up", extra=fields(error=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
