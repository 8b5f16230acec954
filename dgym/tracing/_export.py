"""Export of spans with OpenTelemetry's SDK: its sampler, queue and exporters, which its variables configure."""

import logging
import os
import threading
import time
from importlib.metadata import version

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from dgym.tracing._spans import Span

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""Version of the semantic conventions for the attributes."""
_UNNAMED = "unknown_service"
"""The SDK's default for the name of the service."""
_CLOSE_SECONDS = 5.0
_QUIET_SECONDS = 60.0
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_log = logging.getLogger("dgym.tracing")


class SdkExporter:
    """Sends spans in the background. If the queue is full, spans are dropped, so that episodes do not wait for it.

    Raises:
        ValueError: An environment variable has an invalid value.
    """

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        _quieten()
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._resources = {"": resource}
        # The provider is used only for its sampler, which the variables configure. dgym creates the spans itself.
        self._sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        self._limits = SpanLimits()
        self._scope = InstrumentationScope("dgym", version("dgym"), SCHEMA_URL)
        self._processor = BatchSpanProcessor(exporter or _exporter())

    def record(self, span: Span, service: str = "") -> None:
        """Add a span to the queue, without waiting."""
        try:
            self._processor.on_end(self._converted(span, service))
        except Exception:
            # An error in tracing must not end an episode.
            _log.exception("a span was lost")

    def samples(self, trace_id: str) -> bool:
        """Return whether the trace is sampled."""
        return self._sampler.should_sample(None, int(trace_id, 16), "episode").decision is Decision.RECORD_AND_SAMPLE

    def close(self) -> None:
        """Send the queued spans. Waits for at most 5 s if the collector does not answer."""
        closing = threading.Thread(target=self._processor.shutdown, name="dgym-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def _converted(self, span: Span, service: str) -> ReadableSpan:
        error = {"error.type": span.error} if span.error else {}
        attributes = BoundedAttributes(
            self._limits.max_span_attributes,
            {**span.attributes, **error},
            max_value_len=self._limits.max_span_attribute_length,
        )
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource(service),
            attributes=attributes,
            kind=SpanKind[span.kind.upper()],
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=span.start,
            end_time=span.end,
        )

    def _resource(self, service: str) -> Resource:
        if service not in self._resources:
            self._resources[service] = self._resources[""].merge(Resource({SERVICE_NAME: service}))
        return self._resources[service]


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _exporter() -> SpanExporter:
    """Create the exporter that the environment variables name.

    Raises:
        ValueError: dgym does not have that exporter or protocol.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "console":
        return ConsoleSpanExporter()
    if name != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER is {name[:50]!r}; it must be otlp, console or none")
    protocol = next((os.environ[each] for each in _PROTOCOLS if os.environ.get(each)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ValueError(f"the protocol of OTLP is {protocol[:50]!r}; dgym supports only http/protobuf, on port 4318")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class _Quiet(logging.Handler):
    """Logs at most one warning of the SDK per minute. Otherwise an unreachable collector would fill the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() - self._last >= _QUIET_SECONDS:
            self._last = time.monotonic()
            _log.warning("traces: %s", record.getMessage())


def _quieten() -> None:
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Quiet) for handler in logger.handlers):
        logger.addHandler(_Quiet())
        logger.propagate = False
