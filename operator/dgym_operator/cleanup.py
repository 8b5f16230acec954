"""``python -m dgym_operator.cleanup --deployment NAME``: remove what the operator has made, before it is uninstalled.

Helm removes only what Helm made. The operator is stopped first, since it would create everything again; then the pods
of sandboxes are deleted, which would be neither driven nor deleted; then their policies, the Secrets and the Leases.
Episodes stay: they are the users', and a later installation continues them.
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
from dgym_operator.settings import Settings

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
TEST_LABELS = {"app.kubernetes.io/name": "dgym", "app.kubernetes.io/component": "test"}
"""Labels of the pod of ``helm test``, which Helm keeps for its log."""
STOP_SECONDS = 60.0
"""How long pods may take to end: the operator's have 30 s of grace, a sandbox's 5 s."""
_POLL_SECONDS = 0.5
_QPS, _BURST = 200.0, 200

_log = logging.getLogger("dgym_operator.cleanup")
K = TypeVar("K")


class NetworkPolicy(WatchedObject, frozen=True, kw_only=True):
    """A sandboxes' NetworkPolicy, applied by the operator that it admits."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    def admits(self, operator_namespace: str) -> bool:
        """Whether it admits the operator of that namespace, which has applied it."""
        peers = (peer for rule in self.spec.get("ingress", ()) for peer in rule.get("from", ()))
        return any(
            (peer.get("podSelector") or {}).get("matchLabels") == OPERATOR_LABELS
            and (peer.get("namespaceSelector") or {}).get("matchLabels") == {NAMESPACE_LABEL: operator_namespace}
            for peer in peers
        )


class OwnerLease(WatchedObject, frozen=True, kw_only=True):
    """The claim to a namespace."""

    spec: LeaseSpec = LeaseSpec()


class Cleanup:
    """Removes the objects that one installation has made."""

    def __init__(self, client: Client, settings: Settings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock

    async def run(self, deployment: str) -> None:
        """Remove all of it; missing objects are no failure.

        Raises:
            ApiError: The API server refused, or does not answer.
        """
        await self._stop_operator(deployment)
        policies = await self._policies()
        served = {policy.metadata.namespace for policy in policies}
        await self._delete_all(PODS, await self._sandboxes(served))
        # A sandbox that is terminating must not get a network.
        await self._wait_until_gone("sandboxes", lambda: self._sandboxes(served))
        await self._delete_all(NETWORK_POLICIES, policies)
        await self._delete_all(LEASES, await self._claims())
        await self._delete_all(PODS, await self._labelled(TEST_LABELS))
        await self._delete_own()

    async def _stop_operator(self, deployment: str) -> None:
        await self._delete(DEPLOYMENTS, deployment, self._settings.namespace)
        await self._wait_until_gone("operator pods", lambda: self._labelled(OPERATOR_LABELS))

    async def _labelled(self, labels: dict[str, str]) -> list[WatchedObject]:
        """Pods in the operator's own namespace."""
        return await self._client.list(
            PODS, decode=WatchedObject, namespace=self._settings.namespace, label_selector=_selector(labels)
        )

    async def _policies(self) -> list[NetworkPolicy]:
        found = await self._served(NETWORK_POLICIES, NetworkPolicy, field_selector=f"metadata.name={POLICY_NAME}")
        return [policy for policy in found if policy.admits(self._settings.namespace)]

    async def _claims(self) -> list[OwnerLease]:
        """The Leases by which the installation has claimed namespaces, and those that their holder gave back."""
        found = await self._served(LEASES, OwnerLease, field_selector=f"metadata.name={OWNER_LEASE}")
        return [lease for lease in found if lease.spec.holder_identity in (self._settings.installation, "", None)]

    async def _sandboxes(self, served: set[str]) -> list[WatchedObject]:
        found = await self._served(PODS, WatchedObject, label_selector=_selector(SANDBOX_LABELS))
        # In a cluster with other installations the policy shows whose pods are in its namespace.
        everywhere = self._settings.watch_namespaces or self._settings.network_policy == "disabled"
        return [pod for pod in found if everywhere or pod.metadata.namespace in served]

    async def _served(self, resource: Resource, kind: type[K], **selectors: str) -> list[K]:
        """The objects of a kind in all served namespaces; with a deleted one its objects and our role are gone."""
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
        secrets = [pool_secret(settings.agent_keys_secret, pool) for pool in settings.agent_pools.names]
        for secret in (*secrets, settings.key_secret):
            await self._delete(SECRETS, secret, settings.namespace)
        await self._delete(LEASES, settings.lease_name, settings.namespace)
        _log.info("deleted the Secrets and the Lease")

    async def _delete(self, resource: Resource, name: str, namespace: str, uid: str | None = None) -> None:
        # The object is gone already, or another one has its name by now.
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
    """Remove what the operator with these settings has made, itself included.

    Raises:
        AccessError: No API server is configured.
        ApiError: It refused, or does not answer.
    """
    access = await load_access()
    async with Client(access, clock=clock, random=random, qps=_QPS, burst=_BURST) as client:
        await Cleanup(client, settings, clock).run(deployment)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing is left; 1 with the reason in the log."""
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
