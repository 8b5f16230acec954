"""The tracer of a process: which episodes are sampled, and the exporter of their spans.

The ids of an episode's trace are derived from its UID. Therefore a new leader of the operator and another agent pod
continue the trace without stored state.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dgym.tracing._spans import NO_SPAN, Kind, NoSpan, OpenSpan, Span, Trace, read_traceparent

if TYPE_CHECKING:
    from dgym.tracing._export import SdkExporter

_log = logging.getLogger("dgym.tracing")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = ("true", "span_only", "span_and_event")


class Tracer:
    """Starts the traces of episodes.

    Args:
        exporter: Exporter of the spans. None: spans are not recorded.
        content: Whether prompts, replies, arguments and results are recorded.
    """

    def __init__(self, exporter: "SdkExporter | None" = None, *, content: bool = False) -> None:
        self._exporter = exporter
        self._content = content

    def traceparent(self, uid: str) -> str:
        """Return the header for the root span of the Episode ``uid``; empty if this process has no exporter."""
        if self._exporter is None:
            return ""
        trace_id, root_id = trace_ids(uid)
        return f"00-{trace_id}-{root_id}-{'01' if self._exporter.samples(trace_id) else '00'}"

    def attempt(self, uid: str, name: str, *, traceparent: str, kind: Kind = "consumer") -> OpenSpan | NoSpan:
        """Return a span below the root span of the Episode ``uid``.

        If ``traceparent`` is given, the span is a child of the span that it names, and it decides on sampling.
        """
        if self._exporter is None:
            return NO_SPAN
        trace_id, root_id = trace_ids(uid)
        parent = read_traceparent(traceparent)
        if not (self._exporter.samples(trace_id) if parent is None else parent.sampled):
            return NO_SPAN
        if parent is not None:
            trace_id, root_id = parent.trace_id, parent.span_id
        return OpenSpan(self._trace(trace_id, uid), root_id, name, kind)

    def episode(self, uid: str, name: str, *, conversation: str) -> OpenSpan | NoSpan:
        """Return the root span of an episode that this process runs from start to end."""
        trace_id, root_id = trace_ids(uid)
        if self._exporter is None or not self._exporter.samples(trace_id):
            return NO_SPAN
        return OpenSpan(self._trace(trace_id, conversation), "", name, "internal", root_id)

    def record_past(self, uid: str, spans: Iterable[tuple[str, int, int]], attributes: Mapping[str, str | int]) -> None:
        """Record the spans of a finished episode: name, start and end (in nanoseconds) of each, the root first."""
        trace_id, root_id = trace_ids(uid)
        if self._exporter is None or not self._exporter.samples(trace_id):
            return
        for number, (name, start, end) in enumerate(spans):
            span_id = trace_ids(f"{uid}/{name}/{number}")[1] if number else root_id
            made = Span(name=name, trace_id=trace_id, span_id=span_id, start=start, end=max(start, end))
            made.parent_id, made.attributes = (root_id, {}) if number else ("", dict(attributes))
            self._exporter.record(made)

    def forward(self, spans: Iterable[Span], trace_id: str, *, service: str) -> None:
        """Record spans of another process, except those of other traces."""
        if self._exporter is not None:
            for each in spans:
                if each.trace_id == trace_id:
                    self._exporter.record(each, service)

    def close(self) -> None:
        """Send the queued spans; see ``SdkExporter.close``."""
        if self._exporter is not None:
            self._exporter.close()

    def _trace(self, trace_id: str, conversation: str) -> Trace:
        assert self._exporter is not None
        return Trace(trace_id, self._exporter.record, conversation, self._content)


OFF = Tracer()


def trace_ids(uid: str) -> tuple[str, str]:
    """Return the ids of an episode's trace and of its root span.

    The digits of the UID are not used directly, because samplers compare the last 64 bits of the trace id, and two of
    these are constant in a UUID.
    """
    digits = hashlib.sha256(uid.encode()).hexdigest()
    return digits[:32], digits[32:48]


def start_tracer(service: str, environment: Mapping[str, str] = os.environ) -> Tracer:
    """Create the tracer that OpenTelemetry's environment variables request.

    Traces are requested by an OTLP endpoint, or by an ``OTEL_TRACES_EXPORTER`` other than ``none``. Otherwise the
    tracer has no exporter. Invalid settings and missing packages are only logged, so that tracing cannot make an
    episode fail.

    Args:
        service: Name of the service, if ``OTEL_SERVICE_NAME`` does not set it.
        environment: Environment variables.
    """
    if not _is_requested(environment):
        return OFF
    try:
        from dgym.tracing._export import SdkExporter

        exporter = SdkExporter(service)
    except ImportError as error:
        _log.warning("no traces are sent: %s; pip install 'dgym[otel]'", error)
        return OFF
    except Exception as error:
        _log.warning("no traces are sent: %s", error)
        return OFF
    return Tracer(exporter, content=environment.get(_CAPTURE, "").lower() in _CAPTURING)


def _is_requested(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporter != "none" if exporter else any(environment.get(name) for name in _ENDPOINTS)
