"""The informers: a reflector for each watched resource and namespace, which fills a store of the cache."""

from collections.abc import Callable
from random import Random
from typing import Any

from dgym.api.labels import SET
from dgym.kube import (
    CONFIG_MAPS,
    DEBUG_TASKS,
    EPISODE_SETS,
    EPISODES,
    PODS,
    Client,
    Clock,
    Forbidden,
    Reflector,
    Resource,
    Store,
    WatchSettings,
)
from dgym_operator.cache.cache import Cache
from dgym_operator.objects import SANDBOX_LABELS, ConfigMapView, EpisodeSetView, EpisodeView, Pod, TaskView
from dgym_operator.settings import Settings

STALE_SECONDS = 2 * WatchSettings().silence_seconds
"""A stream that is silent for half of it is opened again; after all of it the store may be out of date."""
_AGENTS = "agents"


class Informers:
    """All reflectors, by their names in metrics.

    The namespaces of ``watchNamespaces`` may be absent; until one exists, its objects are not waited for.
    """

    def __init__(self, client: Client, cache: Cache, settings: Settings, clock: Clock, random: Random) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called when a list was answered, and when the requests for a namespace begin or cease to be refused."""
        self._client = client
        self._clock = clock
        self._random = random
        self.by_name: dict[tuple[str, str], Reflector[Any]] = {}
        sandboxes = ",".join(f"{name}={value}" for name, value in SANDBOX_LABELS.items())
        for namespace in settings.namespaces:
            self._add(EPISODES, EpisodeView, cache.episodes, namespace)
            self._add(EPISODE_SETS, EpisodeSetView, cache.sets, namespace)
            self._add(DEBUG_TASKS, TaskView, cache.tasks, namespace)
            self._add(PODS, Pod, cache.pods, namespace, sandboxes)
            self._add(CONFIG_MAPS, ConfigMapView, cache.config_maps, namespace, SET)
        self._add(PODS, Pod, cache.agent_pods, settings.namespace, settings.agent_selector, name=_AGENTS)

    def _add(
        self,
        resource: Resource,
        kind: type[Any],
        store: Store[Any],
        namespace: str | None,
        selector: str = "",
        *,
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
            optional=_is_optional(name, namespace),
            changed=lambda: self.changed(),
        )
        self.by_name[name or resource.plural, namespace or ""] = reflector

    async def synced(self) -> None:
        """Wait until every store has been filled once, except those of absent namespaces."""
        for (name, namespace), reflector in self.by_name.items():
            await (reflector.answered if _is_optional(name, namespace) else reflector.synced).wait()

    def refusal(self, namespace: str) -> Forbidden | None:
        """The API server's refusal of a namespace of ``watchNamespaces``, which mostly is gone; None: it answers."""
        of_namespace = (
            reflector.refusal
            for (name, where), reflector in self.by_name.items()
            if where == namespace and _is_optional(name, where)
        )
        return next((refusal for refusal in of_namespace if refusal is not None), None)

    def complete(self, namespace: str) -> bool:
        """Whether all objects of the namespace are in the stores."""
        of_namespace = [
            reflector
            for (name, where), reflector in self.by_name.items()
            if where in (namespace, "") and name != _AGENTS
        ]
        return all(reflector.synced.is_set() and reflector.refusal is None for reflector in of_namespace)

    def check(self) -> str | None:
        """Readiness check: which store is not up to date. An absent namespace is no fault of this replica."""
        for (name, namespace), reflector in self.by_name.items():
            if _is_optional(name, namespace) and self.refusal(namespace) is not None:
                continue
            where = f"{name} in {namespace or 'all namespaces'}"
            if not reflector.synced.is_set():
                return f"{where} have not been listed yet"
            if reflector.staleness > STALE_SECONDS:
                return f"{where} were last heard of {reflector.staleness:.0f} s ago"
        return None

    def staleness(self) -> dict[tuple[str, str], float]:
        """Seconds since each watch last received anything, except those of absent namespaces."""
        return {
            name: reflector.staleness
            for name, reflector in self.by_name.items()
            if not _is_optional(*name) or reflector.refusal is None
        }


def _is_optional(name: str, namespace: str | None) -> bool:
    return bool(namespace) and name != _AGENTS
