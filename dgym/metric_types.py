"""Types that describe Prometheus metrics. The metrics themselves are declared beside the code that counts.

docs/metrics.md is generated from the descriptions. A description has all labels with all their values, or with a text
on what limits the values. Series with known values begin at 0, so that the first failure is visible in a rate.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

LAG_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
MOST_BUCKETS = 12
"""Maximum number of buckets of a histogram, including the bucket ``+Inf``."""
OTHER = "other"
"""Label value that replaces unknown values, so that programs cannot create new series."""
NAMESPACE = "episode_namespace"
"""Label with the namespace of an Episode. Prometheus sets ``namespace`` to the namespace of the installation."""
OTHER_NAMESPACES = "_other"
"""Value of this label for namespaces above the limit. No namespace can have this name."""
NAMESPACE_VALUES = f"namespaces of Episodes, and `{OTHER_NAMESPACES}`; empty with `metrics.namespaceLabel: false`"
"""Description of the values of this label."""

NamespaceMode = Literal["auto", "true", "false"]
"""How many namespaces have a separate label value: up to 50, up to 1,000, none."""
MOST_NAMESPACES: Mapping[NamespaceMode, int] = {"auto": 50, "true": 1000, "false": 0}

Values = tuple[str, ...] | str
"""All values of a label, or a text on what limits them."""
_UNITS = {"seconds": "seconds", "bytes": "bytes", "tokens": "tokens"}


class Metric(msgspec.Struct, frozen=True):
    """A metric: its name in queries, its help text, and its labels."""

    name: str
    text: str
    labels: Mapping[str, Values] = {}

    @property
    def kind(self) -> str:
        """Prometheus type: counter, gauge or histogram."""
        return {CounterMetric: "counter", HistogramMetric: "histogram"}.get(type(self), "gauge")

    @property
    def unit(self) -> str:
        """Unit of the values; empty for counts and for 0 and 1."""
        return next((_UNITS[part] for part in reversed(self.name.split("_")) if part in _UNITS), "")

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series in queries."""
        return (self.name,)

    def known(self, namespace: str = "") -> Iterator[tuple[str, ...]]:
        """Yield all combinations of a namespace's label values; none without labels or with unknown values."""
        labels = {name: (namespace,) if name == NAMESPACE else each for name, each in self.labels.items()}
        values = tuple(each for each in labels.values() if not isinstance(each, str))
        if values and len(values) == len(labels):
            yield from itertools.product(*values)


class GaugeMetric(Metric, frozen=True):
    """A current value, computed at each scrape."""

    def family(self, values: Mapping[Any, float], zeros: Iterable[tuple[str, ...]] | None = None) -> GaugeMetricFamily:
        """Return the gauge, given its values by label values in the order of ``labels``.

        Missing combinations of label values in ``zeros`` (default: all known combinations) get the value 0.
        """
        family = GaugeMetricFamily(self.name, self.text, labels=tuple(self.labels))
        _fill(family, values, self.known() if zeros is None else zeros)
        return family

    def single(self, value: float) -> GaugeMetricFamily:
        """Return the gauge with one value, without labels."""
        return GaugeMetricFamily(self.name, self.text, value)


class CounterMetric(Metric, frozen=True):
    """A count since the start of the process."""

    def register(self, registry: CollectorRegistry) -> Counter:
        """Return a counter that can be incremented. Series with known label values begin at 0."""
        counter = Counter(self.name, self.text, tuple(self.labels), registry=registry)
        for values in self.known():
            counter.labels(*values)
        return counter

    def family(self, values: Mapping[Any, float]) -> CounterMetricFamily:
        """Return the counter with externally counted values, by label values in the order of ``labels``."""
        family = CounterMetricFamily(self.name, self.text, labels=tuple(self.labels))
        _fill(family, values, self.known())
        return family

    def single(self, value: float) -> CounterMetricFamily:
        """Return the counter with one externally counted value, without labels."""
        return CounterMetricFamily(self.name, self.text, value)


class HistogramMetric(Metric, frozen=True):
    """Durations in buckets."""

    buckets: tuple[float, ...] = ()

    def register(self, registry: CollectorRegistry) -> Histogram:
        """Return a histogram that can observe durations. Series with known label values begin at 0."""
        histogram = Histogram(self.name, self.text, tuple(self.labels), registry=registry, buckets=self.buckets)
        for values in self.known():
            histogram.labels(*values)
        return histogram

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series in queries."""
        return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))


M = TypeVar("M", bound=Metric)


class Catalogue:
    """The metrics of one kind of process, in the order of their declaration."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, **labels: Values) -> GaugeMetric:
        """Declare a gauge."""
        return self._add(GaugeMetric(name, text, labels))

    def counter(self, name: str, text: str, **labels: Values) -> CounterMetric:
        """Declare a counter."""
        if not name.endswith("_total"):
            raise ValueError(f"the name of the counter {name} does not end in _total")
        return self._add(CounterMetric(name, text, labels))

    def histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Values) -> HistogramMetric:
        """Declare a histogram of seconds."""
        if len(buckets) >= MOST_BUCKETS:
            raise ValueError(f"{name} has more than {MOST_BUCKETS} buckets")
        return self._add(HistogramMetric(name, text, labels, tuple(buckets)))

    def _add(self, metric: M) -> M:
        if metric.name in self.metrics or not metric.name.startswith("dgym_"):
            raise ValueError(f"{metric.name} is declared twice, or its name is not one of dgym's")
        self.metrics[metric.name] = metric
        return metric


def omit_creation_times() -> None:
    """Disable the gauges with the creation time of each counter in this process, which would double the samples."""
    disable_created_metrics()  # type: ignore[no-untyped-call]


def among(value: str, known: Iterable[str]) -> str:
    """Return ``value`` as a label value if it is in ``known``, else ``OTHER``."""
    return value if value in known else OTHER


class NamespaceLabel:
    """The values of the label ``NAMESPACE`` in this process: the first namespaces that are used, up to a limit.

    The value of a namespace does not change until the process ends, as counters require.
    """

    def __init__(self, mode: NamespaceMode = "false") -> None:
        self._most = MOST_NAMESPACES[mode]
        self._metrics: list[tuple[Metric, Counter | Histogram]] = []
        self.values: set[str] = set()
        """The values in use, except the empty value."""

    def follow(self, metric: Metric, series: Counter | Histogram) -> None:
        """Make the series of the metric begin at 0 for each new namespace."""
        self._metrics.append((metric, series))

    def __call__(self, namespace: str) -> str:
        """Return the label value of a namespace: its name, ``OTHER_NAMESPACES`` or ""."""
        if not self._most:
            return ""
        if namespace in self.values:
            return namespace
        value = namespace if len(self.values - {OTHER_NAMESPACES}) < self._most else OTHER_NAMESPACES
        if value not in self.values:
            self.values.add(value)
            for metric, series in self._metrics:
                for known in metric.known(value):
                    series.labels(*known)
        return value


@contextlib.asynccontextmanager
async def sampling_lag(histogram: Histogram, interval_seconds: float = 1.0) -> AsyncIterator[None]:
    """Observe the delay of event loop callbacks once per interval, while the context is active."""
    loop = asyncio.get_running_loop()

    async def sample() -> None:
        while True:
            due = loop.time() + interval_seconds
            await asyncio.sleep(interval_seconds)
            histogram.observe(max(0.0, loop.time() - due))

    sampler = asyncio.ensure_future(sample())
    try:
        yield
    finally:
        sampler.cancel()


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float], zeros: Iterable[tuple[str, ...]]
) -> None:
    given = {(key,) if isinstance(key, str) else tuple(key): value for key, value in values.items()}
    for key, value in sorted((dict.fromkeys(zeros, 0.0) | given).items()):
        family.add_metric(key, value)
