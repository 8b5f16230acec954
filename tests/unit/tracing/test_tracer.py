"""Tests of the tracer: the OTEL_* variables, and the traces of episodes in an exporter of the SDK."""

import logging
import subprocess
import sys
import threading
import uuid

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dgym.tracing import OFF, Recorder, Tracer, continue_trace, current_traceparent, span, start_tracer
from dgym.tracing._export import SCHEMA_URL, SdkExporter
from dgym.tracing._tracer import trace_ids

UID = "8b1f6c1e-0000-4000-8000-000000000001"


@pytest.fixture
def memory():
    return InMemorySpanExporter()


@pytest.fixture
def make(memory, monkeypatch):
    """Return a function that makes a tracer of the SDK with these environment variables."""

    def make(content=False, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return Tracer(SdkExporter("dgym-test", memory), content=content)

    return make


def finished(tracer, memory):
    # The exporter keeps its spans after the shutdown.
    tracer.close()
    return {each.name: each for each in memory.get_finished_spans()}


def test_an_episode_is_one_trace(make, memory):
    tracer = make()
    header = tracer.traceparent(UID)
    with tracer.attempt(UID, "attempt 1", traceparent=header) as attempt, span("prepare"):
        sidecar = Recorder()
        with continue_trace(current_traceparent(), sidecar.record, "POST /v1/prepare"):
            pass
        tracer.forward(sidecar.spans(), attempt.trace_id, service="dgym-sidecar")
    tracer.record_past(UID, [("episode", 10, 90), ("stage created", 10, 20)], {"dgym.reason": "Resolved"})
    found = finished(tracer, memory)
    root, stage, first = found["episode"], found["stage created"], found["attempt 1"]
    assert {each.context.trace_id for each in found.values()} == {int(trace_ids(UID)[0], 16)}
    assert root.parent is None
    assert stage.parent.span_id == first.parent.span_id == root.context.span_id
    assert found["prepare"].parent.span_id == first.context.span_id
    assert found["POST /v1/prepare"].parent.span_id == found["prepare"].context.span_id
    assert found["POST /v1/prepare"].resource.attributes["service.name"] == "dgym-sidecar"
    assert first.resource.attributes["service.name"] == "dgym-test"
    assert first.instrumentation_scope.schema_url == SCHEMA_URL
    assert (root.start_time, root.end_time, root.attributes["dgym.reason"]) == (10, 90, "Resolved")


def test_a_new_leader_and_another_agent_continue_the_same_trace(make):
    assert make().traceparent(UID) == make().traceparent(UID) != make().traceparent(UID + "x")


def test_spans_of_another_trace_are_not_forwarded(make, memory):
    tracer, foreign = make(), Recorder()
    with continue_trace(f"00-{'1' * 32}-{'2' * 16}-01", foreign.record, "POST /v1/reset"):
        pass
    tracer.forward(foreign.spans(), trace_ids(UID)[0], service="dgym-sidecar")
    assert not finished(tracer, memory)


def test_trace_ids_are_random_for_the_sampler(make):
    tracer = make(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5")
    sampled = sum(tracer.traceparent(str(uuid.UUID(int=number, version=4))).endswith("-01") for number in range(400))
    assert 140 < sampled < 260


def test_an_episode_that_is_not_sampled_has_no_spans_anywhere(make, memory):
    tracer = make(OTEL_TRACES_SAMPLER="always_off")
    header = tracer.traceparent(UID)
    assert header.endswith("-00")
    with tracer.attempt(UID, "attempt 1", traceparent=header) as attempt, span("prepare"):
        assert attempt is None
        assert current_traceparent() == ""
    tracer.record_past(UID, [("episode", 1, 2)], {})
    assert not finished(tracer, memory)


def test_agent_pods_follow_the_sampling_decision_of_the_operator(make, memory):
    header = make().traceparent(UID)
    tracer = make(OTEL_TRACES_SAMPLER="always_off")
    with tracer.attempt(UID, "attempt 1", traceparent=header):
        pass
    assert set(finished(tracer, memory)) == {"attempt 1"}


def test_names_in_the_environment_take_precedence(make, memory):
    tracer = make(OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
    with tracer.episode(UID, "episode", conversation="c"):
        pass
    resource = finished(tracer, memory)["episode"].resource
    assert resource.attributes["service.name"] == "mine"
    assert resource.attributes["deployment.environment"] == "test"


class Stuck(SpanExporter):
    """An exporter whose collector does not answer until ``answering`` is set."""

    def __init__(self):
        self.answering = threading.Event()
        self.sent = 0

    def export(self, spans):
        self.answering.wait(60)
        self.sent += len(spans)
        return SpanExportResult.SUCCESS


def test_a_collector_that_does_not_answer_does_not_block_and_memory_is_bounded(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    collector = Stuck()
    tracer = Tracer(SdkExporter("dgym-test", collector))
    for _ in range(100):
        with tracer.episode(UID, "episode", conversation="c"):
            pass
    assert not collector.sent
    collector.answering.set()
    tracer.close()
    assert 8 <= collector.sent <= 16


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SERVICE_NAME": "mine"},
    ],
)
def test_traces_are_off_unless_asked_for(variables):
    assert start_tracer("dgym", variables) is OFF


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "it must be otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "dgym supports only http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100000"}, "max_export_batch_size"),
    ],
)
def test_a_wrong_variable_is_a_warning(variables, problem, monkeypatch, caplog):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "dgym.tracing"):
        assert start_tracer("dgym") is OFF
    assert problem in caplog.text


def test_without_the_extra_traces_are_off_with_a_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "dgym.tracing._export", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert start_tracer("dgym") is OFF
    assert "pip install 'dgym[otel]'" in caplog.text


def test_opentelemetry_is_not_imported_while_traces_are_off():
    program = (
        "import sys; from dgym.tracing import start_tracer; start_tracer('dgym', {});"
        " import dgym.episodes.agent_pod._server, dgym_operator.app, dgym.sidecar._serving;"
        " sys.exit(any(name.partition('.')[0] in ('opentelemetry', 'requests') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=90).returncode == 0
