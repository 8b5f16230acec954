"""The watches that fill the cache's stores, and the hand-over of their resourceVersions to the next leader."""

import contextlib
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from dgym.api import SET_LABEL
from dgym.kube import (
    CONFIG_MAPS,
    DEBUG_TASKS,
    EPISODE_SETS,
    EPISODES,
    NETWORK_POLICIES,
    PODS,
    RESOURCE_QUOTAS,
    SANDBOX_POOLS,
    ApiError,
    Backoff,
    Client,
    Clock,
    Forbidden,
    InformerStore,
    NotFound,
    Reflector,
    Resource,
    WatchSettings,
)
from dgym_operator.cache._cache import Cache
from dgym_operator.objects import (
    POLICY_NAME,
    SANDBOX_LABELS,
    ConfigMapView,
    EpisodeSetView,
    EpisodeView,
    NetworkPolicyView,
    Pod,
    QuotaView,
    SandboxPoolView,
    TaskView,
)
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_AGENT_PODS = "agents"
_BACKOFF = Backoff(base=0.5, limit=5.0)
_HANDOVER_SECONDS = 0.5
_UNCERTAIN_SECONDS = 120.0
"""Longer than the maximum delay of requests and watches."""
_LARGE_PAGE = 2000
STALE_SECONDS = 2 * WatchSettings().silence_seconds
"""A store is stale after this time without an update. A stream that is silent for half of it is reopened."""


class _Version(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str
    namespace: str = ""


class _Listed(msgspec.Struct):
    metadata: _Version


class Informers:
    """All reflectors, by their names in metrics.

    Namespaces in ``watchNamespaces`` may be missing. The operator does not wait for the objects of a missing namespace.
    """

    def __init__(self, client: Client, cache: Cache, settings: Settings, clock: Clock, random: Random) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called when a list was answered, and when the API server starts or stops refusing requests of a namespace."""
        self._client = client
        self._cache = cache
        self._clock = clock
        self._random = random
        self.by_name: dict[tuple[str, str], Reflector[Any]] = {}
        sandboxes = ",".join(f"{name}={value}" for name, value in SANDBOX_LABELS.items())
        for namespace in settings.namespaces:
            self._add(EPISODES, EpisodeView, cache.episodes, namespace)
            self._add(EPISODE_SETS, EpisodeSetView, cache.sets, namespace)
            self._add(SANDBOX_POOLS, SandboxPoolView, cache.sandbox_pools, namespace)
            self._add(DEBUG_TASKS, TaskView, cache.tasks, namespace)
            self._add(PODS, Pod, cache.pods, namespace, sandboxes)
            self._add(CONFIG_MAPS, ConfigMapView, cache.config_maps, namespace, SET_LABEL)
            self._add(RESOURCE_QUOTAS, QuotaView, cache.quotas, namespace)
            policy = f"metadata.name={POLICY_NAME}"
            self._add(NETWORK_POLICIES, NetworkPolicyView, cache.network_policies, namespace, field_selector=policy)
        self._add(PODS, Pod, cache.agent_pod_objects, settings.namespace, settings.agent_selector, name=_AGENT_PODS)

    def _add(
        self,
        resource: Resource,
        kind: type[Any],
        store: InformerStore[Any],
        namespace: str | None,
        selector: str = "",
        *,
        field_selector: str = "",
        name: str = "",
    ) -> None:
        reflector = Reflector(
            self._client,
            resource,
            decode=kind,
            store=store,
            clock=self._clock,
            random=self._random,
            namespace=namespace,
            label_selector=selector,
            field_selector=field_selector,
            optional=_is_optional(name, namespace),
            changed=lambda: self.changed(),
        )
        self.by_name[name or resource.plural, namespace or ""] = reflector

    async def synced(self) -> None:
        """Wait until every store was filled once, except the stores of missing namespaces."""
        for (name, namespace), reflector in self.by_name.items():
            await (reflector.answered if _is_optional(name, namespace) else reflector.synced).wait()

    def handover(self) -> str:
        """Return the hand-over text for the next leader: the resourceVersion that its watches of Episodes must reach.

        It is empty if the version is not known. This includes two minutes after a failed write, because the write may
        have taken effect under a higher version.
        """
        cache = self._cache
        if self._clock.monotonic() - cache.memory.failed_write_at < _UNCERTAIN_SECONDS:
            return ""
        newest = {namespace: cache.episodes.newest(namespace or None) for namespace in self._of_episodes()}
        return msgspec.json.encode(newest).decode() if all(newest.values()) else ""

    async def catch_up(self, handed_over: str) -> None:
        """Bring the Episodes up to date, because the watches may be behind the last writes of the former leader.

        The Episodes are listed, unless the watches reach the versions in ``handed_over`` within half a second.
        """
        if await self._has_caught_up(handed_over):
            return
        failures = 0
        for reflector in self._of_episodes().values():
            while reflector.refusal is None:
                try:
                    await self._catch_up(reflector.namespace)
                except (Forbidden, NotFound):
                    break
                except ApiError as error:
                    failures += 1
                    _log.info("the Episodes could not be listed: %s", error)
                    await self._clock.sleep(_BACKOFF.delay(failures, self._random))
                else:
                    break

    async def _has_caught_up(self, handed_over: str) -> bool:
        """Wait up to half a second. Returns True if the watches have delivered all writes of the former leader."""
        try:
            versions = msgspec.json.decode(handed_over, type=dict[str, str]) if handed_over else {}
        except msgspec.DecodeError:
            versions = {}
        reflectors = self._of_episodes()
        if not versions.keys() >= reflectors.keys():
            return False
        deadline = self._clock.monotonic() + _HANDOVER_SECONDS
        while any(not _has_reached(reflector.version, versions[name]) for name, reflector in reflectors.items()):
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(_HANDOVER_SECONDS / 50)
        return True

    def _of_episodes(self) -> dict[str, Reflector[Any]]:
        """Return the reflectors of Episodes by namespace. The empty key stands for all namespaces."""
        return {where: each for (name, where), each in self.by_name.items() if name == EPISODES.plural}

    async def _catch_up(self, namespace: str | None) -> None:
        store, decoder = self._cache.episodes, msgspec.json.Decoder(_Listed)
        pages = self._client.pages(EPISODES, decode=msgspec.Raw, namespace=namespace, limit=_LARGE_PAGE)
        async for page in pages:
            for raw in page.items:
                listed = decoder.decode(raw).metadata
                known = store.get((listed.namespace, listed.name))
                if known is None or known.metadata.resource_version != listed.resource_version:
                    with contextlib.suppress(msgspec.ValidationError):
                        store.assume(msgspec.json.decode(raw, type=EpisodeView))

    def refusal(self, namespace: str) -> Forbidden | None:
        """Return the API server's refusal of a namespace in ``watchNamespaces``, or None if it answers.

        Usually the namespace does not exist.
        """
        of_namespace = (
            reflector.refusal
            for (name, where), reflector in self.by_name.items()
            if where == namespace and _is_optional(name, where)
        )
        return next((refusal for refusal in of_namespace if refusal is not None), None)

    def complete(self, namespace: str) -> bool:
        """True if the stores contain all objects of the namespace."""
        of_namespace = [
            reflector
            for (name, where), reflector in self.by_name.items()
            if where in (namespace, "") and name != _AGENT_PODS
        ]
        return all(reflector.synced.is_set() and reflector.refusal is None for reflector in of_namespace)

    def check(self) -> str | None:
        """Readiness check: return a message if a store is not up to date. Missing namespaces are ignored."""
        for (name, namespace), reflector in self.by_name.items():
            if _is_optional(name, namespace) and self.refusal(namespace) is not None:
                continue
            where = f"{name} in {namespace or 'all namespaces'}"
            if not reflector.synced.is_set():
                return f"{where} have not been listed yet"
            if reflector.staleness > STALE_SECONDS:
                return f"{where} have had no update for {reflector.staleness:.0f} s"
        return None

    def staleness(self) -> dict[tuple[str, str], float]:
        """Return the seconds since each watch last received data, except the watches of missing namespaces."""
        return {
            name: reflector.staleness
            for name, reflector in self.by_name.items()
            if not _is_optional(*name) or reflector.refusal is None
        }


def _has_reached(version: str, wanted: str) -> bool:
    return version.isdecimal() and wanted.isdecimal() and int(version) >= int(wanted)


def _is_optional(name: str, namespace: str | None) -> bool:
    return bool(namespace) and name != _AGENT_PODS
