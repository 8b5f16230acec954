"""The operator's Prometheus metrics.

Gauges describe the present and are computed from the caches at scrape time, so that they are right after a restart and
a change of leader. Counters ending in ``_total`` count what this process itself observed or did.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dgym.api import ConditionType
from dgym.kube import Change, Source
from dgym_operator.cache import Agent, Agents
from dgym_operator.controllers import find
from dgym_operator.objects import EpisodeView, Pod

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_RECONCILE_BUCKETS = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_API_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_STAGE_BUCKETS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)


class Snapshot(msgspec.Struct, kw_only=True):
    """The present, as the cache shows it."""

    episodes: Mapping[tuple[str, str], int] = {}
    """By state (``pending``, ``active``, ``finished``) and ``status.reason``."""
    agents: Mapping[str, int] = {}
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
    """Whether the leader has the cluster's key; true on the others."""
    is_leader: bool = False


class Metrics:
    """The operator's metrics in a registry of their own, so that tests and processes may have several."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Present(snapshot))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.reconciles = self._counter("dgym_operator_reconcile", "Reconciles, by kind and result.", "kind", "result")
        self.reconcile_seconds = self._histogram(
            "dgym_operator_reconcile_seconds", "How long a reconcile and its writes took.", _RECONCILE_BUCKETS, "kind"
        )
        self.api_requests = self._counter(
            "dgym_operator_api_requests", "Requests to the API server.", "verb", "resource", "code"
        )
        self.api_seconds = self._histogram(
            "dgym_operator_api_request_seconds", "How long they took, watches apart.", _API_BUCKETS, "verb", "resource"
        )
        self.finished = self._counter("dgym_episodes_finished", "Episodes seen to finish, by reason.", "reason")
        self.attempts_failed = self._counter(
            "dgym_attempts_failed", "Attempts that ended without a verdict, by reason.", "reason"
        )
        self.assignments = self._counter("dgym_assignments", "Assignments sent to agents, repeated ones too.", "result")
        self.ready_seconds = self._histogram(
            "dgym_sandbox_ready_seconds", "From the pod's creation until its sandbox is ready.", _STAGE_BUCKETS
        )

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, help_text, labels, registry=self.registry, buckets=tuple(buckets))


class _Present(Collector):
    """Gauges from a snapshot at scrape time."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """No metrics: registration must not take a snapshot of a process that is not complete yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The gauges."""
        now = self._snapshot()
        yield _gauge("dgym_episodes", "Episodes there are.", ("state", "reason"), now.episodes)
        yield _gauge("dgym_agents", "Agent pods there are.", ("state",), {(k,): v for k, v in now.agents.items()})
        slots = {("used",): now.slots_used, ("free",): now.slots_free}
        yield _gauge("dgym_agent_slots", "Slots of the agents that answer.", ("state",), slots)
        yield GaugeMetricFamily("dgym_operator_queue_depth", "Objects waiting to be reconciled.", now.queue_depth)
        yield GaugeMetricFamily(
            "dgym_operator_queue_oldest_seconds", "How long the oldest of them waits.", now.queue_oldest_seconds
        )
        yield _gauge(
            "dgym_operator_watch_staleness_seconds",
            "Since a watch last received anything.",
            ("resource", "namespace"),
            now.watch_staleness_seconds,
        )
        yield _gauge(
            "dgym_operator_namespaces",
            "Namespaces to be served, on the leader: 1 for the state that each is in.",
            ("namespace", "state"),
            dict.fromkeys(now.namespaces.items(), 1),
        )
        yield GaugeMetricFamily(
            "dgym_operator_key_usable", "0 while this replica leads and has no usable key.", int(now.key_usable)
        )
        yield GaugeMetricFamily("dgym_operator_is_leader", "1 while this replica may write.", int(now.is_leader))


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


PENDING = "pending"
ACTIVE = "active"
FINISHED = "finished"
_NOT_RECONCILED = "Pending"


def state_of(episode: EpisodeView) -> str:
    """``pending`` before the first assignment of an attempt, ``active`` after it, or ``finished``."""
    if episode.is_finished:
        return FINISHED
    return ACTIVE if episode.status.pod_name else PENDING


def count_episodes(episodes: Iterable[EpisodeView]) -> dict[tuple[str, str], int]:
    """Number of Episodes by state and reason."""
    return dict(collections.Counter((state_of(each), each.status.reason or _NOT_RECONCILED) for each in episodes))


def count_agents(agents: Agents) -> dict[str, int]:
    """Number of agents by state."""
    return dict(collections.Counter(_agent_state(agents, agent) for agent in agents))


def _agent_state(agents: Agents, agent: Agent) -> str:
    if agent.refuses_token:
        return "refusing"
    if agents.is_silent(agent):
        return "silent"
    if agent.report is not None and agent.report.draining:
        return "draining"
    return "ready" if agent.takes_more else "starting"


class TransitionObserver:
    """Counts transitions once in the cluster: on the leader, from watches. A list may show those of another leader."""

    def __init__(self, metrics: Metrics, leads: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._leads = leads

    def episode(self, change: Change[EpisodeView]) -> None:
        """Count the finish of an Episode, or the end of its attempt."""
        old, new = change.old, change.new
        if old is None or new is None or change.source is Source.LIST or not self._leads():
            return
        if new.is_finished and not old.is_finished:
            self._metrics.finished.labels(reason=new.status.reason).inc()
        elif new.status.failures + new.status.disruptions > old.status.failures + old.status.disruptions:
            ready = find(new.status.conditions, ConditionType.SANDBOX_READY)
            self._metrics.attempts_failed.labels(reason=ready.reason if ready is not None else "").inc()

    def pod(self, change: Change[Pod]) -> None:
        """Measure the time until a pod is ready."""
        old, new = change.old, change.new
        if old is None or new is None or old.ready or not new.ready or not self._leads():
            return
        ready, created = new.condition("Ready"), new.metadata.creation_timestamp
        if ready is not None and ready.last_transition_time is not None and created is not None:
            self._metrics.ready_seconds.observe(max(0.0, (ready.last_transition_time - created).total_seconds()))
