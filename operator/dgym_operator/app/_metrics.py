"""The operator's Prometheus metrics: counters and histograms of this process, and the gauges of ``present``.

Gauges are correct after any failure. Counters (``_total``) and histograms start at 0 with each process, and a crash
loses the values since the last scrape. Each transition of an Episode is counted by the replica that is the leader when
the transition is observed.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from dgym.api import ConditionType
from dgym.kube import ChangeSource, ObjectChange
from dgym.metric_types import LAG_BUCKETS, NAMESPACE_VALUES, OTHER, NamespaceLabel, NamespaceMode, among
from dgym.tracing import Tracer
from dgym.wire import EndReason
from dgym_operator.app._present import CATALOGUE, END_REASONS, Present, Snapshot
from dgym_operator.controllers import find, is_true
from dgym_operator.objects import EpisodeView, Pod

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
    "Time of a request to the API server, watches apart.",
    _API_BUCKETS,
    verb="get, list, create, patch, delete",
    resource=_RESOURCE,
)
_FINISHED = CATALOGUE.counter(
    "dgym_episodes_finished_total",
    "Episodes seen to finish.",
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
_STEPS = CATALOGUE.counter("dgym_episode_steps_total", "Steps of the Episodes seen to finish.")
_TOKENS = CATALOGUE.counter(
    "dgym_episode_tokens_total",
    "Tokens that models used in Episodes seen to finish.",
    episode_namespace=NAMESPACE_VALUES,
    direction=("input", "output"),
)
_ASSIGNMENTS = CATALOGUE.counter(
    "dgym_assignments_total",
    "Assignments sent to agent pods, repeated ones too.",
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
    "NetworkPolicies of sandboxes that somebody had deleted or changed, and that were restored.",
)
_COUNTED = frozenset(reason.value for reason in EndReason if reason.is_counted)


class Metrics:
    """The operator's metrics. Each instance has its own registry, so that a process may have several instances."""

    def __init__(self, snapshot: Callable[[], Snapshot], namespace_mode: NamespaceMode = "false") -> None:
        self.namespace_label = NamespaceLabel(namespace_mode)
        self.registry = CollectorRegistry()
        self.registry.register(Present(snapshot, self.namespace_label))
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

    def requested(self, verb: str, resource: str, status: int, seconds: float) -> None:
        """Count a request to the API server."""
        count, duration = self._of_request(verb, resource, str(status))
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
    return "unresolved" if episode.status.reason in _COUNTED else "failed"


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
