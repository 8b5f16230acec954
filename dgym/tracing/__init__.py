"""Traces of episodes: one trace for each episode, exported with OpenTelemetry's SDK if it is configured.

All processes of dgym record their work as ``Span``, without importing a tracing library. The operator, agent pods and
the command line pass their spans to the SDK. A sidecar keeps its spans until the agent pod fetches them, because a pod
with untrusted code must not have the collector's credentials and cannot connect to it.
"""

from dgym.tracing._spans import (
    OpenSpan,
    Recorder,
    Span,
    capturing,
    clean,
    continue_trace,
    current_traceparent,
    genai_span,
    span,
)
from dgym.tracing._tracer import OFF, Tracer, start_tracer

__all__ = [
    "OFF",
    "OpenSpan",
    "Recorder",
    "Span",
    "Tracer",
    "capturing",
    "clean",
    "continue_trace",
    "current_traceparent",
    "genai_span",
    "span",
    "start_tracer",
]
