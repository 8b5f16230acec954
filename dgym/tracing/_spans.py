"""Spans, and the current span of an asyncio task. Outside a sampled trace, spans are not recorded.

Attributes of model requests follow OpenTelemetry's semantic conventions for GenAI, version 1.41.0.
"""

import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal, NamedTuple

import msgspec

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Value = str | bool | int | float | tuple[str, ...]

MOST_SPANS = 4096
"""Maximum number of spans that a sidecar keeps. New spans replace the oldest."""
_NAME_CHARACTERS = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ZERO_TRACE, _ZERO_SPAN = "0" * 32, "0" * 16


class Span(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A timed operation in a trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: 16 hexadecimal digits; empty for a root span.
        start: Nanoseconds since the epoch.
        end: Nanoseconds since the epoch.
        error: Class of the exception that ended it, or another cause; empty without an error.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str = ""
    kind: Kind = "internal"
    start: int
    end: int = 0
    attributes: dict[str, Value] = msgspec.field(default_factory=dict)
    error: str = ""


class Trace(NamedTuple):
    """A sampled trace.

    Attributes:
        record: Called with each span that has ended.
        conversation: UID of the Episode.
        content: Whether prompts, replies, arguments and results are recorded.
    """

    trace_id: str
    record: Callable[[Span], None]
    conversation: str = ""
    content: bool = False


_current: ContextVar[tuple[Trace, str] | None] = ContextVar("dgym-trace", default=None)


class OpenSpan:
    """Context manager of a span, which is the current span inside. An exception is recorded as the span's error.

    Exceptions of the classes ``answers`` are not errors, such as a refusal that is part of the protocol.
    """

    __slots__ = ("_answers", "_began", "_span", "_token", "_trace")

    def __init__(
        self,
        trace: Trace,
        parent_id: str,
        name: str,
        kind: Kind,
        span_id: str = "",
        answers: tuple[type[Exception], ...] = (),
    ) -> None:
        self._answers = answers
        self._trace = trace
        self._span = Span(
            name=clean(name, _NAME_CHARACTERS),
            trace_id=trace.trace_id,
            span_id=span_id or secrets.token_hex(8),
            parent_id=parent_id,
            kind=kind,
            start=0,
        )
        self._began = 0
        self._token: Token[tuple[Trace, str] | None]

    def __enter__(self) -> "OpenSpan":
        self._token = _current.set((self._trace, self._span.span_id))
        self._began = time.monotonic_ns()
        self._span.start = time.time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        # From the monotonic clock, because the wall clock may have been changed during the span.
        self._span.end = self._span.start + time.monotonic_ns() - self._began
        if kind is not None and not issubclass(kind, self._answers):
            # Without the exception's message, because it may contain a prompt.
            self.fail(kind.__name__)
        self._trace.record(self._span)

    @property
    def trace_id(self) -> str:
        """Id of the trace."""
        return self._trace.trace_id

    def rename(self, name: str) -> None:
        """Change the name of the span, if it is not known at the start."""
        self._span.name = clean(name, _NAME_CHARACTERS)

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute. The value None is ignored."""
        if value is not None:
            self._span.attributes[name] = clean(value) if isinstance(value, str) else value

    def fail(self, cause: str) -> None:
        """Record an error, unless the span already has one."""
        self._span.error = self._span.error or cause


NoSpan = nullcontext[None]
NO_SPAN: NoSpan = nullcontext()
"""A context manager that does not record a span."""


def span(name: str) -> OpenSpan | NoSpan:
    """Return a context manager for a child of the current span. Its value is None outside a sampled trace."""
    here = _current.get()
    return NO_SPAN if here is None else OpenSpan(*here, name, "internal")


def genai_span(operation: str, subject: str, *, kind: Kind = "internal") -> OpenSpan | NoSpan:
    """Return a span of the GenAI conventions, such as ``chat gpt-5``, with the id of the conversation; see ``span``."""
    here = _current.get()
    if here is None:
        return NO_SPAN
    opened = OpenSpan(*here, f"{operation} {subject}", kind)
    opened.set("gen_ai.operation.name", operation)
    opened.set("gen_ai.conversation.id", here[0].conversation)
    return opened


def capturing() -> bool:
    """Return whether the current trace records requests and replies of models and tools."""
    here = _current.get()
    return here is not None and here[0].content


def current_traceparent() -> str:
    """Return the header ``traceparent`` (W3C Trace Context) for a request; empty outside a sampled trace."""
    here = _current.get()
    return "" if here is None else f"00-{here[0].trace_id}-{here[1]}-01"


class Parent(NamedTuple):
    """The parent span of another process."""

    trace_id: str
    span_id: str
    sampled: bool


def read_traceparent(header: str) -> Parent | None:
    """Parse a header ``traceparent``; None if it is empty or invalid."""
    match = _TRACEPARENT.fullmatch(header)
    if match is None or header.startswith("ff") or match[1] == _ZERO_TRACE or match[2] == _ZERO_SPAN:
        return None
    return Parent(match[1], match[2], bool(int(match[3], 16) & 1))


def continue_trace(
    header: str, record: Callable[[Span], None], name: str, *, answers: tuple[type[Exception], ...] = ()
) -> OpenSpan | NoSpan:
    """Return a span of kind "server" below the span in a request's header, if that is sampled; see ``OpenSpan``."""
    parent = read_traceparent(header)
    if parent is None or not parent.sampled:
        return NO_SPAN
    return OpenSpan(Trace(parent.trace_id, record), parent.span_id, name, "server", answers=answers)


class Recorder:
    """Keeps the newest spans until they are fetched."""

    def __init__(self, limit: int = MOST_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=limit)

    def record(self, ended: Span) -> None:
        """Add a span."""
        self._spans.append(ended)

    def spans(self) -> tuple[Span, ...]:
        """Return the recorded spans, oldest first."""
        return tuple(self._spans)


def clean(text: str, limit: int | None = None) -> str:
    """Return at most ``limit`` characters of ``text``, with "?" for characters that UTF-8 cannot encode.

    Such a character (half of a surrogate pair) in one span would make the export of the whole batch fail.
    """
    text = text if limit is None else text[:limit]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
