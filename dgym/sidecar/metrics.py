"""What Prometheus is told of one attempt."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "Metrics"]

_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)


class Metrics:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.calls = Counter(
            "dgym_sidecar_calls_total", "Calls by what they ask and how they were answered.", ["call", "code"],
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "dgym_sidecar_call_seconds", "How long calls took, waiting for the sandbox included.", ["call"],
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self.steps = Gauge("dgym_sidecar_steps", "Steps of the episode so far.", registry=self._registry)
        self.ready = Gauge("dgym_sidecar_ready", "1 while both runners answer.", registry=self._registry)
        ProcessCollector(namespace="dgym_sidecar", registry=self._registry)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
