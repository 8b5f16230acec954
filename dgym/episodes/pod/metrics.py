"""What Prometheus is told of an agent pod. Values about now are taken when they are asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dgym.wire.assignments import AssignmentState

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

    def watch(self, now: Callable[[], "Now"]) -> None:
        """Ask ``now`` at every scrape."""
        self.registry.register(_NowCollector(now))

    def stepped(self) -> None:
        """A step was recorded."""
        self._steps.inc()

    def resumed(self) -> None:
        """An episode was taken up where an earlier worker left it."""
        self._resumed.inc()

    def ended(self, reason: str) -> None:
        """An episode finished or failed."""
        self._ended.labels(reason).inc()

    def spoke(self, *, input_tokens: int, output_tokens: int) -> None:
        """A model answered."""
        self._tokens.labels("input").inc(input_tokens)
        self._tokens.labels("output").inc(output_tokens)

    def store_failed(self) -> None:
        """The store did not do its part."""
        self._failures.inc()

    def took(self, stage: str, seconds: float) -> None:
        """A stage of an episode ended."""
        self._stages.labels(stage).observe(seconds)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)


class Now:
    """How things are."""

    def __init__(self, *, slots: int, used: int, draining: bool, states: Mapping[AssignmentState, int]) -> None:
        self.slots = slots
        self.used = used
        self.draining = draining
        self.states = Counter(states)


class _NowCollector:
    def __init__(self, now: Callable[[], Now]) -> None:
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
