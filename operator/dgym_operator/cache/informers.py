"""What is watched, where."""

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
from dgym_operator.cache.cache import World
from dgym_operator.objects import SANDBOX_LABELS, ConfigMapView, EpisodeSetView, EpisodeView, Pod, TaskView
from dgym_operator.settings import Settings

STALE_SECONDS = 2 * WatchSettings().silence_seconds
"""A stream may be silent for half of it and is then opened anew; after all of it, what a watch shows may be history."""
_AGENTS = "agents"


class Watches:
    """All reflectors, by what they are called in metrics.

    The namespaces of ``watchNamespaces`` may be absent: until one is there (again), nothing waits for its objects.
    """

    def __init__(self, client: Client, world: World, settings: Settings, clock: Clock, random: Random) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called when a list was answered, and when a namespace begins or ceases to refuse requests."""
        self._client = client
        self._clock = clock
        self._random = random
        self.by_name: dict[tuple[str, str], Reflector[Any]] = {}
        sandboxes = ",".join(f"{name}={value}" for name, value in SANDBOX_LABELS.items())
        for namespace in settings.namespaces:
            self._add(EPISODES, EpisodeView, world.episodes, namespace)
            self._add(EPISODE_SETS, EpisodeSetView, world.sets, namespace)
            self._add(DEBUG_TASKS, TaskView, world.tasks, namespace)
            self._add(PODS, Pod, world.pods, namespace, sandboxes)
            self._add(CONFIG_MAPS, ConfigMapView, world.config_maps, namespace, SET)
        self._add(PODS, Pod, world.agent_pods, settings.namespace, settings.agent_selector, name=_AGENTS)

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
        """Wait until every store has been filled once, those of absent namespaces apart."""
        for (name, namespace), reflector in self.by_name.items():
            await (reflector.answered if _is_optional(name, namespace) else reflector.synced).wait()

    def refusal(self, namespace: str) -> Forbidden | None:
        """The API server's answer where it refuses to show a namespace of ``watchNamespaces``: mostly, it is gone."""
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
        """What is not in step with the API server. An absent namespace is no fault of this replica."""
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
        """Seconds since each watch last said anything, those of absent namespaces apart."""
        return {
            name: reflector.staleness
            for name, reflector in self.by_name.items()
            if not _is_optional(*name) or reflector.refusal is None
        }


def _is_optional(name: str, namespace: str | None) -> bool:
    return bool(namespace) and name != _AGENTS
