"""The operator's Prometheus metrics: gauges, and the counters and histograms of this process.

Gauges are computed from the caches at scrape time. They are therefore correct after a restart and after a change of the
leader. Other replicas export the state of their own cache, and queries use the values of the leader. Counters
(``_total``) and histograms start at 0 with each process, and a crash loses the values since the last scrape. Each
transition of an Episode is counted by the replica that is the leader when the transition is observed.
"""

import collections
import heapq
import platform
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dgym.api import MOST_ARMS, TREATMENTS, ConditionType, ProgressReason, Treatment
from dgym.kube import ChangeSource, ObjectChange, Resource, WorkQueue
from dgym.metric_types import LAG_BUCKETS, NAMESPACE_VALUES, OTHER, Catalogue, NamespaceLabel, NamespaceMode, among
from dgym.tracing import Tracer
from dgym.wire import EndReason
from dgym_operator.cache import AgentPod, AgentPods, Cache, Informers
from dgym_operator.controllers import EPOCH, find, is_true
from dgym_operator.dispatch import Dispatcher
from dgym_operator.objects import EpisodeSetView, EpisodeView, Pod

CATALOGUE = Catalogue()
"""All metrics of the operator."""

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
    f"Episodes of a set, as its status counts them; of at most {_MOST_SETS} sets, unfinished sets first.",
    set="namespace and name of a set, with a slash",
    state=_SET_STATES,
)
_SET_ARM_EPISODES = CATALOGUE.gauge(
    "dgym_set_arm_episodes",
    f"Finished episodes of a set under each of its arms; of the same sets, at most {MOST_ARMS} arms each.",
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
_OLDEST = CATALOGUE.gauge("dgym_operator_queue_oldest_seconds", "Time that the oldest object in the queue has waited.")
_BUSY = CATALOGUE.gauge("dgym_operator_queue_active", "Objects that a worker reconciles.")
_DELAYED = CATALOGUE.gauge("dgym_operator_queue_delayed", "Objects that are queued later, after a delay or back-off.")
_ADDS = CATALOGUE.counter("dgym_operator_queue_adds_total", "Objects added to the queue, including duplicates.")
_RETRIES = CATALOGUE.counter("dgym_operator_queue_retries_total", "Reconciles to be repeated after a back-off.")
_STALENESS = CATALOGUE.gauge(
    "dgym_operator_watch_staleness_seconds",
    "Time since a watch last received data; bookmarks arrive about once a minute.",
    resource=f"{', '.join(f'`{name}`' for name in RESOURCES)}",
    namespace=_SERVED,
)
_EVENTS = CATALOGUE.counter("dgym_operator_watch_events_total", "Events received by watches.", resource=RESOURCES)
_WATCHES = CATALOGUE.counter(
    "dgym_operator_watches_total", "Started watches, including repeated watches.", resource=RESOURCES
)
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
_KEY = CATALOGUE.gauge("dgym_operator_key_usable", "0 while this replica is the leader and does not have a usable key.")
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


class SnapshotCollector(Collector):
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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_RECONCILE_BUCKETS = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_API_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_READY_BUCKETS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_STAGE_BUCKETS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_EPISODE_BUCKETS = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)

_KINDS = ("Episode", "EpisodeSet", "SandboxPool", "NetworkPolicy")
_RESULTS = ("ok", "conflict", "error", "gone", "not_leading", "not_served", "defect")
_RESOURCE = "the resources of the operator's rights"
STAGES = ("created", "scheduled", "sandbox_ready", "assigned", "first_step", "last_step", "verified", "released")
"""Stages of an Episode. Each stage starts at the end of the previous one."""

_RECONCILES = CATALOGUE.counter("dgym_operator_reconcile_total", "Reconciles.", kind=_KINDS, result=_RESULTS)
_RECONCILE_SECONDS = CATALOGUE.histogram(
    "dgym_operator_reconcile_seconds", "Time of a reconcile and its writes.", _RECONCILE_BUCKETS, kind=_KINDS
)
_API_REQUESTS = CATALOGUE.counter(
    "dgym_operator_api_requests_total",
    "Requests to the API server; code 0: no answer.",
    verb="get, list, watch, create, patch, delete",
    resource=_RESOURCE,
    code="HTTP statuses",
)
_API_SECONDS = CATALOGUE.histogram(
    "dgym_operator_api_request_seconds",
    "Time of a request to the API server, except watches.",
    _API_BUCKETS,
    verb="get, list, create, patch, delete",
    resource=_RESOURCE,
)
_FINISHED = CATALOGUE.counter(
    "dgym_episodes_finished_total",
    "Episodes whose end was observed.",
    episode_namespace=NAMESPACE_VALUES,
    reason=(*END_REASONS, OTHER),
)
_ATTEMPTS_FAILED = CATALOGUE.counter(
    "dgym_attempts_failed_total",
    "Attempts that failed.",
    reason=(*END_REASONS, OTHER),
)
_EPISODE_SECONDS = CATALOGUE.histogram(
    "dgym_episode_duration_seconds",
    "Time from the creation of an Episode to its end.",
    _EPISODE_BUCKETS,
    episode_namespace=NAMESPACE_VALUES,
    outcome=("resolved", "unresolved", "failed"),
)
_STAGE_SECONDS = CATALOGUE.histogram(
    "dgym_episode_stage_seconds",
    "Time of each stage of the last attempt of an Episode.",
    _STAGE_BUCKETS,
    episode_namespace=NAMESPACE_VALUES,
    stage=STAGES,
)
_STEPS = CATALOGUE.counter("dgym_episode_steps_total", "Steps of the Episodes whose end was observed.")
_TOKENS = CATALOGUE.counter(
    "dgym_episode_tokens_total",
    "Tokens that models used in Episodes whose end was observed.",
    episode_namespace=NAMESPACE_VALUES,
    direction=("input", "output"),
)
_ASSIGNMENTS = CATALOGUE.counter(
    "dgym_assignments_total",
    "Assignments sent to agent pods, including repeated assignments.",
    result=("delivered", "failed", "unmet"),
)
_READY_SECONDS = CATALOGUE.histogram(
    "dgym_sandbox_ready_seconds", "Time from the creation of a pod until its sandbox is ready.", _READY_BUCKETS
)
_LAG_SECONDS = CATALOGUE.histogram(
    "dgym_operator_loop_lag_seconds", "Delay of a callback of the event loop, sampled once a second.", LAG_BUCKETS
)
_POLICIES_RESTORED = CATALOGUE.counter(
    "dgym_operator_network_policies_restored_total",
    "Restored NetworkPolicies of sandboxes, which were deleted or changed.",
)


class Metrics:
    """The operator's metrics. Each instance has its own registry, so that a process may have several instances."""

    def __init__(self, snapshot: Callable[[], Snapshot], namespace_mode: NamespaceMode = "false") -> None:
        self.namespace_label = NamespaceLabel(namespace_mode)
        self.registry = CollectorRegistry()
        self.registry.register(SnapshotCollector(snapshot, self.namespace_label))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.reconciles = _RECONCILES.register(self.registry)
        self.reconcile_seconds = _RECONCILE_SECONDS.register(self.registry)
        self.api_requests = _API_REQUESTS.register(self.registry)
        self.api_seconds = _API_SECONDS.register(self.registry)
        self.finished = _FINISHED.register(self.registry)
        self.attempts_failed = _ATTEMPTS_FAILED.register(self.registry)
        self.episode_seconds = _EPISODE_SECONDS.register(self.registry)
        self.stage_seconds = _STAGE_SECONDS.register(self.registry)
        self.steps = _STEPS.register(self.registry)
        self.tokens = _TOKENS.register(self.registry)
        self.assignments = _ASSIGNMENTS.register(self.registry)
        self.ready_seconds = _READY_SECONDS.register(self.registry)
        self.lag_seconds = _LAG_SECONDS.register(self.registry)
        self.policies_restored = _POLICIES_RESTORED.register(self.registry)
        for metric, series in (
            (_FINISHED, self.finished),
            (_EPISODE_SECONDS, self.episode_seconds),
            (_STAGE_SECONDS, self.stage_seconds),
            (_TOKENS, self.tokens),
        ):
            self.namespace_label.follow(metric, series)
        # Cached, because the look-up of a series by its labels takes longer than counting.
        self._of_reconcile = cache(
            lambda kind, result: (
                self.reconciles.labels(kind=kind, result=result),
                self.reconcile_seconds.labels(kind=kind),
            )
        )
        self._of_request = cache(
            lambda verb, resource, code: (
                self.api_requests.labels(verb=verb, resource=resource, code=code),
                self.api_seconds.labels(verb=verb, resource=resource) if verb != "watch" else None,
            )
        )

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        """Count a reconcile."""
        count, duration = self._of_reconcile(kind, result)
        count.inc()
        duration.observe(seconds)

    def requested(self, verb: str, resource: Resource, status: int, seconds: float) -> None:
        """Count a request to the API server."""
        count, duration = self._of_request(verb, resource.plural, str(status))
        count.inc()
        if duration is not None:
            duration.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class TransitionObserver:
    """Counts each transition once in the cluster: on the leader, and only from watches.

    Changes from a list are ignored, because a former leader may have counted them.
    """

    def __init__(
        self, metrics: Metrics, leads: Callable[[], bool], ended: Callable[[EpisodeView], None] = lambda _: None
    ) -> None:
        self._metrics = metrics
        self._leads = leads
        self._ended = ended

    def episode(self, change: ObjectChange[EpisodeView]) -> None:
        """Count the finish of an Episode, or the end of its attempt."""
        old, new = change.old, change.new
        if new is not None:
            self._metrics.namespace_label(new.metadata.namespace)
        if old is None or new is None or change.source is ChangeSource.LIST or not self._leads():
            return
        if new.is_finished and not old.is_finished:
            self._finished(new)
        elif new.status.failures + new.status.disruptions > old.status.failures + old.status.disruptions:
            ready = find(new.status.conditions, ConditionType.SANDBOX_READY)
            reason = among(ready.reason if ready is not None else "", END_REASONS)
            self._metrics.attempts_failed.labels(reason=reason).inc()

    def _finished(self, episode: EpisodeView) -> None:
        """Count the finished Episode, its durations, and the steps and tokens of its outcome."""
        status, metrics = episode.status, self._metrics
        namespace = metrics.namespace_label(episode.metadata.namespace)
        metrics.finished.labels(namespace, among(status.reason, END_REASONS)).inc()
        if status.outcome is not None:
            metrics.steps.inc(status.outcome.steps)
            metrics.tokens.labels(namespace, "input").inc(status.outcome.input_tokens)
            metrics.tokens.labels(namespace, "output").inc(status.outcome.output_tokens)
        for stage, begin, end in stage_times(episode):
            metrics.stage_seconds.labels(namespace, stage).observe((end - begin).total_seconds())
        created = episode.metadata.creation_timestamp
        if created is not None and status.completion_time is not None:
            seconds = max(0.0, (status.completion_time - created).total_seconds())
            metrics.episode_seconds.labels(namespace, _outcome(episode)).observe(seconds)
        self._ended(episode)

    def pod(self, change: ObjectChange[Pod]) -> None:
        """Measure the time until a pod is ready."""
        old, new = change.old, change.new
        if old is None or new is None or old.ready or not new.ready or not self._leads():
            return
        ready, created = new.condition("Ready"), new.metadata.creation_timestamp
        if ready is not None and ready.last_transition_time is not None and created is not None:
            self._metrics.ready_seconds.observe(max(0.0, (ready.last_transition_time - created).total_seconds()))


def stage_times(episode: EpisodeView) -> list[tuple[str, datetime, datetime]]:
    """Return start and end of each stage whose end was observed.

    A stage starts at the last observed end of an earlier stage, or at the creation of the Episode.
    """
    status, stages = episode.status, episode.status.stages
    ends = (
        stages.pod_created,
        stages.scheduled,
        stages.sandbox_ready,
        stages.assigned,
        stages.first_step,
        stages.last_step,
        stages.verified,
        status.completion_time,
    )
    found: list[tuple[str, datetime, datetime]] = []
    before: datetime | None = episode.metadata.creation_timestamp
    for stage, end in zip(STAGES, ends, strict=True):
        if end is None:
            continue
        if before is not None:
            found.append((stage, before, max(before, end)))
        before = end
    return found


def _outcome(episode: EpisodeView) -> str:
    if is_true(episode.status.conditions, ConditionType.RESOLVED):
        return "resolved"
    return "unresolved" if TREATMENTS.get(episode.status.reason) is Treatment.COUNTED else "failed"


def trace_episode(tracer: Tracer, episode: EpisodeView) -> None:
    """Record the trace of a finished Episode. All times come from its status, so a new leader can record it too."""
    created, ended = episode.metadata.creation_timestamp, episode.status.completion_time
    if created is None or ended is None:
        return
    spans = [("episode", _nanoseconds(created), _nanoseconds(ended))]
    spans += [(f"stage {stage}", _nanoseconds(begin), _nanoseconds(end)) for stage, begin, end in stage_times(episode)]
    status, metadata = episode.status, episode.metadata
    attributes: dict[str, str | int] = {
        "gen_ai.conversation.id": metadata.uid,
        "dgym.namespace": metadata.namespace,
        "dgym.episode": metadata.name,
        "dgym.reason": status.reason,
        "dgym.attempt": status.attempt,
    }
    tracer.record_past(metadata.uid, spans, attributes)


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
