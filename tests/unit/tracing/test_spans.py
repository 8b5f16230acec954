"""Tests of spans: they nest, inherit their trace, and are not recorded outside a trace."""

import asyncio

import msgspec
import pytest

from dgym.tracing import Recorder, Span, capturing, continue_trace, current_traceparent, genai_span, span
from dgym.tracing._spans import read_traceparent

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def recorder():
    return Recorder()


def test_spans_are_not_recorded_outside_of_a_trace():
    with span("work") as working, genai_span("chat", "gpt") as asking:
        assert working is None
        assert asking is None
        assert current_traceparent() == ""
    assert not capturing()


async def test_spans_nest_and_tasks_inherit_their_parent(recorder):
    async def inner():
        with span("inner"):
            pass

    with continue_trace(HEADER, recorder.record, "outer"):
        header = current_traceparent()
        task = asyncio.create_task(inner())
    await task
    outer, inside = sorted(recorder.spans(), key=lambda each: each.name, reverse=True)
    assert (outer.trace_id, outer.parent_id, outer.kind) == (TRACE, PARENT, "server")
    assert (inside.trace_id, inside.parent_id) == (TRACE, outer.span_id)
    assert header == f"00-{TRACE}-{outer.span_id}-01"
    assert outer.end >= outer.start > 0


def test_an_exception_is_named_without_its_text(recorder):
    with (
        pytest.raises(ValueError, match="a prompt"),
        continue_trace(HEADER, recorder.record, "outer"),
        span("failing"),
    ):
        raise ValueError("a prompt")
    failing, outer = recorder.spans()
    assert failing.error == outer.error == "ValueError"
    assert b"a prompt" not in msgspec.json.encode(failing)


def test_an_exception_that_is_an_answer_is_not_an_error_of_the_span(recorder):
    with pytest.raises(KeyError), continue_trace(HEADER, recorder.record, "call", answers=(LookupError,)):
        raise KeyError
    (call,) = recorder.spans()
    assert not call.error


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}-00",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_a_header_without_a_sampled_parent_begins_nothing(header, recorder):
    with continue_trace(header, recorder.record, "call"), span("work"):
        pass
    assert not recorder.spans()


def test_a_later_version_of_the_header_is_understood():
    assert read_traceparent(f"01-{TRACE}-{PARENT}-01-more").span_id == PARENT


def test_a_recorder_keeps_the_newest():
    recorder = Recorder(limit=2)
    for name in ("a", "b", "c"):
        with continue_trace(HEADER, recorder.record, name):
            pass
    assert [each.name for each in recorder.spans()] == ["b", "c"]


def test_hostile_text_is_bounded_and_can_be_encoded(recorder):
    with continue_trace(HEADER, recorder.record, "\ud800" * 10_000) as outer:
        outer.set("text", "half \ud800 pair")
        outer.set("nothing", None)
    (made,) = recorder.spans()
    assert len(made.name) == 128
    assert msgspec.json.decode(msgspec.json.encode(made), type=Span) == made
    assert made.attributes == {"text": "half ? pair"}
