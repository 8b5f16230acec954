"""How the assignments of an agent pod go: for the operator's report and for Prometheus, and what they share."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dgym.agents import Exchange
from dgym.env import Patience
from dgym.episodes.player import Models
from dgym.results import Store, StoreUnavailable
from dgym.wire import EndReason, Outcome, Step
from dgym.wire.assignments import AssignmentState
from dgym.workspace.sources import SourceCache

_log = logging.getLogger("dgym.episodes.episode")

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1200, 3600)


class Metrics:
    """The metrics of one worker. Their labels have few values: states, reasons, stages."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._steps = Total("dgym_agent_steps", "Steps recorded.", registry=self.registry)
        self._ended = Total("dgym_agent_episodes_ended", "Ends by reason.", ["reason"], registry=self.registry)
        self._resumed = Total("dgym_agent_episodes_resumed", "Episodes taken up midway.", registry=self.registry)
        self._tokens = Total("dgym_agent_model_tokens", "Tokens of models.", ["direction"], registry=self.registry)
        self._failures = Total("dgym_agent_store_failures", "Calls the store failed.", registry=self.registry)
        self._stages = Histogram(
            "dgym_agent_stage_seconds", "Time by stage.", ["stage"], buckets=_BUCKETS, registry=self.registry
        )

    def add_gauges(self, now: Callable[[], "Gauges"]) -> None:
        """Call ``now`` at every scrape."""
        self.registry.register(_GaugesCollector(now))

    def step_recorded(self) -> None:
        """Count a step."""
        self._steps.inc()

    def resumed(self) -> None:
        """Count an episode that resumes where an earlier agent left it."""
        self._resumed.inc()

    def ended(self, reason: str) -> None:
        """Count an episode that finished or failed."""
        self._ended.labels(reason).inc()

    def tokens_used(self, *, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model's reply."""
        self._tokens.labels("input").inc(input_tokens)
        self._tokens.labels("output").inc(output_tokens)

    def store_failed(self) -> None:
        """Count a failed call of the store."""
        self._failures.inc()

    def observe_stage(self, stage: str, seconds: float) -> None:
        """Add the duration of a stage of an episode."""
        self._stages.labels(stage).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Gauges:
    """Slots and episodes at one moment."""

    def __init__(self, *, slots: int, used: int, draining: bool, states: Mapping[AssignmentState, int]) -> None:
        self.slots = slots
        self.used = used
        self.draining = draining
        self.states = Counter(states)


class _GaugesCollector:
    def __init__(self, now: Callable[[], Gauges]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        yield GaugeMetricFamily("dgym_agent_slots", "Episodes that are played at the same time at most.", now.slots)
        yield GaugeMetricFamily("dgym_agent_slots_used", "Slots with an episode.", now.used)
        yield GaugeMetricFamily("dgym_agent_draining", "1 once nothing new is taken.", int(now.draining))
        episodes = GaugeMetricFamily("dgym_agent_episodes", "Episodes held, by state.", labels=["state"])
        for state in AssignmentState:
            episodes.add_metric([state.value], now.states[state])
        yield episodes


_CAUSE_CHARACTERS = 1000


class Stage(msgspec.Struct, frozen=True):
    """How far an assignment is: its state, the steps taken, the cause of a wait, and whether its deadline runs."""

    state: AssignmentState
    steps: int = 0
    cause: str = ""
    active: bool = False


Report = Callable[[Stage], None]
"""Called with the stage whenever it changes."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all episodes of a worker use together."""

    store: Store
    sources: SourceCache
    models: Models
    metrics: Metrics
    patience: Patience = Patience()
    store_retry_seconds: float = 30.0
    store_patience_seconds: float = 600.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an assignment: the result stored and the pod released, or a failure that the operator may retry."""

    state: AssignmentState
    reason: EndReason
    outcome: Outcome | None = None
    message: str = ""


class Progress:
    """How far one assignment is, for the operator's report and for metrics."""

    def __init__(self, report: Report, metrics: Metrics) -> None:
        self._report_stage = report
        self._metrics = metrics
        self._state = AssignmentState.PREPARING
        self._begun = False
        self._steps = 0
        self.store_problem: StoreUnavailable | None = None

    def enter(self, state: AssignmentState) -> None:
        """Report the beginning of a stage."""
        self._state = state
        self._report(state)

    def step_recorded(self, step: Step) -> None:
        """Report a step; the reset is the first, and the deadline runs from it on."""
        self._begun = True
        self._steps = step.seq
        if step.seq:
            self._metrics.step_recorded()
        self._report(self._state)

    def model_replied(self, exchange: Exchange) -> None:
        """Count the tokens of a reply."""
        usage = exchange.usage
        self._metrics.tokens_used(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)

    def resumed(self) -> None:
        """Report that an earlier agent had begun."""
        self._begun = True
        _log.info("taken up where an earlier agent left it")
        self._metrics.resumed()

    def store_unavailable(self, error: StoreUnavailable | None) -> None:
        """Report a failed call of the store; None: it answers again.

        The state that says so also says that there is a verdict, for which the operator waits past every clock.
        """
        self.store_problem = error
        if error is not None:
            _log.warning("the store is asked again: %s", error)
            self._metrics.store_failed()
        waits = error is not None and self._state is AssignmentState.STORING
        if waits:
            self._report(AssignmentState.STORE_UNAVAILABLE, str(error)[:_CAUSE_CHARACTERS])
        else:
            self._report(self._state)

    def _report(self, state: AssignmentState, cause: str = "") -> None:
        active = self._begun and state is AssignmentState.RUNNING
        self._report_stage(Stage(state, self._steps, cause, active))

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure a stage."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._metrics.observe_stage(stage, time.monotonic() - began)
