"""The gauges of the operator. They are computed from the caches at scrape time.

They are therefore correct after a restart and after a change of the leader. Other replicas export the state of their
own cache. Queries use the values of the leader.
"""

import collections
import heapq
import platform
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import datetime
from importlib.metadata import version
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dgym.api import MOST_ARMS, TREATMENTS, ProgressReason, Treatment
from dgym.kube import WorkQueue
from dgym.metric_types import NAMESPACE_VALUES, OTHER, Catalogue, NamespaceLabel, among
from dgym.wire import EndReason
from dgym_operator.cache import AgentPod, AgentPods, Cache, Informers
from dgym_operator.controllers import EPOCH
from dgym_operator.dispatch import Dispatcher
from dgym_operator.objects import EpisodeSetView, EpisodeView

CATALOGUE = Catalogue()
"""All metrics of the operator. The counters and histograms are declared in ``metrics``."""

PENDING = "pending"
ACTIVE = "active"
FINISHED = "finished"
_NOT_RECONCILED = ProgressReason.PENDING.value
_AGENT_POD_STATES = ("ready", "starting", "draining", "silent", "refusing")
_SET_STATES = ("pending", "active", "suspended", "resolved", "unresolved", "failed")
_ARM_STATES = ("resolved", "unresolved", "failed")
_NAMESPACE_STATES = ("served", "pending", "absent", "held", "refused")
_MOST_SETS = 50
"""Number of sets with their own gauges: unfinished sets first, then those that finished last."""
RESOURCES = ("episodes", "episodesets", "debugtasks", "pods", "configmaps", "agents")
END_REASONS = tuple(reason.value for reason in EndReason)
WAIT_REASONS = tuple(
    dict.fromkeys((*map(str, ProgressReason), *(name for name, how in TREATMENTS.items() if how is Treatment.WAIT)))
)
_KNOWN_EPISODES = (
    *((PENDING, reason) for reason in WAIT_REASONS),
    *((ACTIVE, str(reason)) for reason in ProgressReason),
    *((FINISHED, reason) for reason in END_REASONS),
)
_KNOWN_OF_A_NAMESPACE = (
    (PENDING, ProgressReason.PENDING.value),
    (ACTIVE, ProgressReason.RUNNING.value),
    (FINISHED, EndReason.RESOLVED.value),
)
"""For each namespace, one series per state starts at 0. Series for all reasons exist only in the total."""
_REASONS = f"a reason of `status.reason`, or `{OTHER}`"
_SERVED = "the namespaces of `watchNamespaces`; empty: all namespaces"

_EPISODES = CATALOGUE.gauge(
    "dgym_episodes",
    "Episodes that exist.",
    episode_namespace=NAMESPACE_VALUES,
    state=(PENDING, ACTIVE, FINISHED),
    reason=_REASONS,
)
_SETS = CATALOGUE.gauge("dgym_sets", "EpisodeSets that exist.", state=("running", "finished"))
_SET_EPISODES = CATALOGUE.gauge(
    "dgym_set_episodes",
    f"Episodes of a set, as its status counts them; of {_MOST_SETS} sets at most, unfinished ones first.",
    set="namespace and name of a set, with a slash",
    state=_SET_STATES,
)
_SET_ARM_EPISODES = CATALOGUE.gauge(
    "dgym_set_arm_episodes",
    f"Finished episodes of a set under each of its arms; of the same sets, {MOST_ARMS} arms at most each.",
    set="namespace and name of a set, with a slash",
    arm="the names in the set's `arms`",
    state=_ARM_STATES,
)
_AGENT_PODS = CATALOGUE.gauge("dgym_agents", "Agent pods that exist.", state=_AGENT_POD_STATES)
_SLOTS = CATALOGUE.gauge("dgym_slots", "Slots of the agent pods that answer.", state=("used", "free"))
_REQUESTS = CATALOGUE.gauge(
    "dgym_admission_requests", "Episodes that wait for the grant of a slot.", resource=("pod", "agent")
)
_OF_NAMESPACES = CATALOGUE.gauge(
    "dgym_namespace_episodes",
    "Episodes of a namespace that are active, as `maxActive` counts them, or wait for a grant.",
    namespace="the namespaces of `namespaces.overrides`",
    state=("active", "waiting"),
)
_DEPTH = CATALOGUE.gauge("dgym_operator_queue_depth", "Objects waiting to be reconciled.")
_OLDEST = CATALOGUE.gauge("dgym_operator_queue_oldest_seconds", "Time that the oldest of them has waited.")
_BUSY = CATALOGUE.gauge("dgym_operator_queue_active", "Objects that a worker reconciles.")
_DELAYED = CATALOGUE.gauge("dgym_operator_queue_delayed", "Objects that are queued later, after a delay or back-off.")
_ADDS = CATALOGUE.counter("dgym_operator_queue_adds_total", "Objects added to the queue, duplicates included.")
_RETRIES = CATALOGUE.counter("dgym_operator_queue_retries_total", "Reconciles to be repeated after a back-off.")
_STALENESS = CATALOGUE.gauge(
    "dgym_operator_watch_staleness_seconds",
    "Time since a watch last received anything; bookmarks come about once a minute.",
    resource=f"{', '.join(f'`{name}`' for name in RESOURCES)}",
    namespace=_SERVED,
)
_EVENTS = CATALOGUE.counter("dgym_operator_watch_events_total", "Events received by watches.", resource=RESOURCES)
_WATCHES = CATALOGUE.counter("dgym_operator_watches_total", "Watches begun, the repeated ones too.", resource=RESOURCES)
_LISTS = CATALOGUE.counter("dgym_operator_lists_total", "Lists of all objects of a resource.", resource=RESOURCES)
_UNREADABLE = CATALOGUE.counter(
    "dgym_operator_unreadable_objects_total", "Objects received that could not be read.", resource=RESOURCES
)
_OBJECTS = CATALOGUE.gauge("dgym_operator_cache_objects", "Objects in the cache.", resource=RESOURCES)
_DROPPED = CATALOGUE.counter(
    "dgym_operator_events_dropped_total", "Kubernetes Events that were not sent.", type=("Normal", "Warning")
)
_THROTTLED = CATALOGUE.counter(
    "dgym_operator_api_throttle_seconds_total", "Time that writes waited for the operator's own limit of requests."
)
_NAMESPACES = CATALOGUE.gauge(
    "dgym_operator_namespaces",
    "1 for the state of each namespace to be served, on the leader.",
    namespace="the namespaces of `watchNamespaces`, or those with episodes",
    state=_NAMESPACE_STATES,
)
_KEY = CATALOGUE.gauge("dgym_operator_key_usable", "0 while this replica leads and has no usable key.")
_LEADER = CATALOGUE.gauge("dgym_operator_is_leader", "1 while this replica may write.")
_BUILD = CATALOGUE.gauge(
    "dgym_operator_build_info", "1; the versions of dgym and Python.", version="dgym's", python="Python's"
)


class QueueState(msgspec.Struct, kw_only=True, frozen=True):
    """Counts of the work queue, other than its depth."""

    active: int = 0
    delayed: int = 0
    adds: int = 0
    retries: int = 0


class WatchState(msgspec.Struct, kw_only=True, frozen=True):
    """Counts of what the watches of one resource received in all namespaces, and of its objects in the cache."""

    events: int = 0
    watches: int = 0
    lists: int = 0
    unreadable: int = 0
    objects: int = 0


class Snapshot(msgspec.Struct, kw_only=True):
    """The current state of the operator, from the cache."""

    episodes: Mapping[tuple[str, str, str], int] = {}
    """By namespace, state (``pending``, ``active``, ``finished``) and ``status.reason``."""
    agent_pods: Mapping[str, int] = {}
    """By state: ``ready``, ``starting``, ``draining``, ``silent``, ``refusing``."""
    slots_used: int = 0
    slots_free: int = 0
    queue_depth: int = 0
    queue_oldest_seconds: float = 0.0
    watch_staleness_seconds: Mapping[tuple[str, str], float] = {}
    """By resource and namespace (empty: all namespaces)."""
    namespaces: Mapping[str, str] = {}
    """The state of each namespace to be served, on the leader: ``namespaces.State``."""
    key_usable: bool = True
    """True if the leader has the cluster's key. Always true on other replicas."""
    is_leader: bool = False
    sets: Mapping[str, int] = {}
    """By state (``running``, ``finished``)."""
    set_episodes: Mapping[tuple[str, str], int] = {}
    """By set (``namespace/name``) and state of its episodes."""
    set_arm_episodes: Mapping[tuple[str, str, str], int] = {}
    """By set, arm, and state of its finished episodes."""
    requests: Mapping[str, int] = {}
    """Number of episodes that wait for a ``pod`` (sandbox pod) or an ``agent`` (agent pod)."""
    admission: Mapping[tuple[str, str], int] = {}
    """Number of episodes by namespace that has its own policy, and by state (``active``, ``waiting``)."""
    queue: QueueState = QueueState()
    watches: Mapping[str, WatchState] = {}
    """By resource."""
    events_dropped: Mapping[str, int] = {}
    """By type."""
    throttle_seconds: float = 0.0


class Present(Collector):
    """The gauges of a snapshot at scrape time."""

    def __init__(self, snapshot: Callable[[], Snapshot], namespace_label: NamespaceLabel) -> None:
        self._snapshot = snapshot
        self._namespace_label = namespace_label
        self._build = (version("dgym"), platform.python_version())

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, because the registration must not take a snapshot before the process is complete."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counters whose values other classes keep."""
        now = self._snapshot()
        yield self._episodes(now)
        yield _SETS.family(now.sets)
        yield _SET_EPISODES.family(now.set_episodes)
        yield _SET_ARM_EPISODES.family(now.set_arm_episodes)
        yield _AGENT_PODS.family(now.agent_pods)
        yield _SLOTS.family({"used": now.slots_used, "free": now.slots_free})
        yield _REQUESTS.family(now.requests)
        yield _OF_NAMESPACES.family(now.admission)
        yield _DEPTH.single(now.queue_depth)
        yield _OLDEST.single(now.queue_oldest_seconds)
        yield _BUSY.single(now.queue.active)
        yield _DELAYED.single(now.queue.delayed)
        yield _ADDS.single(now.queue.adds)
        yield _RETRIES.single(now.queue.retries)
        yield _STALENESS.family(now.watch_staleness_seconds)
        yield _EVENTS.family({name: each.events for name, each in now.watches.items()})
        yield _WATCHES.family({name: each.watches for name, each in now.watches.items()})
        yield _LISTS.family({name: each.lists for name, each in now.watches.items()})
        yield _UNREADABLE.family({name: each.unreadable for name, each in now.watches.items()})
        yield _OBJECTS.family({name: each.objects for name, each in now.watches.items()})
        yield _DROPPED.family(now.events_dropped)
        yield _THROTTLED.single(now.throttle_seconds)
        yield _NAMESPACES.family(dict.fromkeys(now.namespaces.items(), 1))
        yield _KEY.single(int(now.key_usable))
        yield _LEADER.single(int(now.is_leader))
        yield _BUILD.family({self._build: 1})

    def _episodes(self, now: Snapshot) -> GaugeMetricFamily:
        shown: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for (namespace, state, reason), count in now.episodes.items():
            shown[self._namespace_label(namespace), state, reason] += count
        zeros = [("", *each) for each in _KNOWN_EPISODES]
        zeros += [(name, *each) for name in self._namespace_label.values for each in _KNOWN_OF_A_NAMESPACE]
        return _EPISODES.family(shown, zeros)


def state_of(episode: EpisodeView) -> str:
    """Return ``pending`` before the first assignment of an attempt, ``active`` after it, or ``finished``."""
    if episode.is_finished:
        return FINISHED
    return ACTIVE if episode.status.pod_name else PENDING


def count_episodes(episodes: Iterable[EpisodeView]) -> dict[tuple[str, str, str], int]:
    """Return the number of Episodes by namespace, state and reason."""
    return dict(
        collections.Counter((each.metadata.namespace, state_of(each), _reason(each.status.reason)) for each in episodes)
    )


_REASONS_KNOWN = frozenset((*WAIT_REASONS, *END_REASONS))


def _reason(reason: str) -> str:
    return among(reason or _NOT_RECONCILED, _REASONS_KNOWN)


def count_sets(sets: Iterable[EpisodeSetView]) -> dict[str, int]:
    """Return the number of EpisodeSets by state."""
    return dict(collections.Counter("running" if each.status.completion_time is None else FINISHED for each in sets))


def count_set_episodes(sets: Iterable[EpisodeSetView]) -> dict[tuple[str, str], int]:
    """Return the number of episodes by set and state, for unfinished sets and those that finished last."""
    return {("/".join(each.key), state): getattr(each.status, state) for each in _shown(sets) for state in _SET_STATES}


def count_set_arm_episodes(sets: Iterable[EpisodeSetView]) -> dict[tuple[str, str, str], int]:
    """Return the number of finished episodes by set, arm and state, for the same sets."""
    return {
        ("/".join(each.key), arm.name, state): getattr(arm, state)
        for each in _shown(sets)
        for arm in each.status.arms
        for state in _ARM_STATES
    }


def _shown(sets: Iterable[EpisodeSetView]) -> list[EpisodeSetView]:
    return heapq.nlargest(_MOST_SETS, sets, key=_recency)


def _recency(each: EpisodeSetView) -> tuple[bool, datetime]:
    ended = each.status.completion_time
    return ended is None, ended or each.metadata.creation_timestamp or EPOCH


def _watch_states(informers: Informers, cache: Cache) -> dict[str, WatchState]:
    """Return the counts of the watches by resource."""
    stores: tuple[Sized, ...] = (
        cache.episodes,
        cache.sets,
        cache.tasks,
        cache.pods,
        cache.config_maps,
        cache.agent_pod_objects,
    )
    found = {}
    for name, store in zip(RESOURCES, stores, strict=True):
        reflectors = [each for (resource, _), each in informers.by_name.items() if resource == name]
        found[name] = WatchState(
            events=sum(each.events for each in reflectors),
            watches=sum(each.watches for each in reflectors),
            lists=sum(each.lists for each in reflectors),
            unreadable=sum(each.unreadable for each in reflectors),
            objects=len(store),
        )
    return found


def count_agent_pods(agent_pods: AgentPods) -> dict[str, int]:
    """Return the number of agent pods by state."""
    return dict(collections.Counter(_agent_pod_state(agent_pods, agent_pod) for agent_pod in agent_pods))


def _agent_pod_state(agent_pods: AgentPods, agent_pod: AgentPod) -> str:
    if agent_pod.refuses_token:
        return "refusing"
    if agent_pods.is_silent(agent_pod):
        return "silent"
    if agent_pod.report is not None and agent_pod.report.draining:
        return "draining"
    return "ready" if agent_pod.takes_more else "starting"


def snapshot_of(cache: Cache, informers: Informers, queue: WorkQueue[Any], dispatcher: Dispatcher) -> Snapshot:
    """Return a snapshot of the cache, the watches, the work queue and the dispatcher."""
    used, free = dispatcher.slots()
    pods, agent_pods = dispatcher.requests()
    return Snapshot(
        episodes=count_episodes(cache.episodes),
        sets=count_sets(cache.sets),
        set_episodes=count_set_episodes(cache.sets),
        set_arm_episodes=count_set_arm_episodes(cache.sets),
        agent_pods=count_agent_pods(cache.agent_pods),
        slots_used=used,
        slots_free=free,
        requests={"pod": pods, "agent": agent_pods},
        admission=dispatcher.admission(),
        queue_depth=len(queue),
        queue_oldest_seconds=queue.oldest_age,
        queue=QueueState(active=queue.active, delayed=queue.delayed, adds=queue.adds, retries=queue.retries),
        watch_staleness_seconds=informers.staleness(),
        watches=_watch_states(informers, cache),
    )
