"""Tests of the catalogues of metrics: processes export the declared metrics, and the page lists them."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dgym.agents import Exchange
from dgym.episodes.agent_pod import CATALOGUE as AGENTS
from dgym.episodes.agent_pod import Metrics as AgentMetrics
from dgym.episodes.agent_pod._telemetry import Gauges
from dgym.llm import TokenUsage
from dgym.metric_types import MOST_BUCKETS, Catalogue, HistogramMetric, NamespaceLabel, sampling_lag
from dgym.wire import Observation, Step
from dgym.wire.messages import ToolCall
from dgym_operator.app import CATALOGUE as OPERATOR
from dgym_operator.app import Metrics, Snapshot
from dgym_operator.app._namespaces import State
from hack.monitoring.__main__ import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def agent_metrics():
    metrics = AgentMetrics()
    gauges = Gauges(slots=8, used=1, draining=False, states={})
    metrics.add_gauges(lambda: gauges, lambda: iter([("gpt", "rate limited", 2)]))
    return metrics


def exported(metrics):
    families = text_string_to_metric_families(metrics.text().decode())
    found = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.startswith("dgym_") and not name.endswith("_created"):
            found[name] = (family.type, labels, family.documentation)
    return found


@pytest.mark.parametrize(
    ("catalogue", "metrics"), [(OPERATOR, Metrics(Snapshot)), (AGENTS, agent_metrics())], ids=["operator", "agents"]
)
def test_a_process_exports_what_its_catalogue_declares(catalogue, metrics):
    found = exported(metrics)
    assert found.keys() == catalogue.metrics.keys()
    for name, (kind, labels, text) in found.items():
        metric = catalogue.metrics[name]
        assert (kind, text) == (metric.kind, metric.text)
        assert labels <= set(metric.labels)
        for values in metric.known():
            assert labels == set(metric.labels), f"{name} does not begin with {values}"


def test_the_catalogues_keep_the_rules():
    assert not OPERATOR.metrics.keys() & AGENTS.metrics.keys()
    for metric in (*OPERATOR.metrics.values(), *AGENTS.metrics.values()):
        assert not {"episode", "pod", "user", "error", "message", "instance", "job"} & set(metric.labels)
        assert metric.text.endswith(".")
        if isinstance(metric, HistogramMetric):
            assert list(metric.buckets) == sorted(metric.buckets)
            assert len(metric.buckets) < MOST_BUCKETS
            assert metric.name.endswith("_seconds")


def test_the_page_is_written_from_the_catalogues():
    assert PAGE.read_text("utf-8") == page()


def test_the_states_of_namespaces_are_known():
    assert OPERATOR.metrics["dgym_operator_namespaces"].labels["state"] == tuple(state.value for state in State)


def test_a_declaration_that_breaks_the_rules_is_refused():
    catalogue = Catalogue()
    catalogue.gauge("dgym_one", "One.")
    for declare in (
        lambda: catalogue.gauge("dgym_one", "Once more."),
        lambda: catalogue.gauge("other_one", "Not ours."),
        lambda: catalogue.counter("dgym_things", "No total."),
        lambda: catalogue.histogram("dgym_seconds", "Too many.", tuple(range(MOST_BUCKETS))),
    ):
        with pytest.raises(ValueError, match=r"dgym_|other_one"):
            declare()


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_unknown_tools_are_counted_as_other():
    metrics = agent_metrics()
    for number in range(50):
        call = ToolCall(tool=f"invented-{number}")
        metrics.step_recorded(Step(seq=number + 1, call=call, observation=Observation(text="", ok=False)))
    metrics.step_recorded(
        Step(seq=51, call=ToolCall(tool="bash"), observation=Observation(text="", duration_seconds=0.3))
    )
    assert sample(metrics, "dgym_agent_tool_calls_total", tool="other", result="error") == 50
    assert sample(metrics, "dgym_agent_tool_calls_total", tool="bash", result="ok") == 1
    assert sample(metrics, "dgym_agent_tool_call_seconds_sum", tool="bash") == 0.3
    assert sample(metrics, "dgym_agent_steps_total") == 51
    assert b"invented" not in metrics.text()


def test_the_reset_does_not_count_as_a_step():
    metrics = agent_metrics()
    metrics.step_recorded(Step(seq=0, call=None, observation=Observation(text="")))
    assert sample(metrics, "dgym_agent_steps_total") == 0


def test_a_reply_counts_by_model():
    metrics = agent_metrics()
    usage = TokenUsage(input_tokens=100, output_tokens=7, price="0.25")
    reply = Exchange(sent=(), usage=usage, seconds_model=1.5, seconds_queue=3.0, tries=3)
    metrics.model_replied("team", "gpt", reply)
    assert sample(metrics, "dgym_agent_model_tokens_total", episode_namespace="", model="gpt", direction="input") == 100
    assert sample(metrics, "dgym_agent_model_cost_total", episode_namespace="", model="gpt") == 0.25
    assert sample(metrics, "dgym_agent_model_retries_total", model="gpt") == 2
    assert sample(metrics, "dgym_agent_model_wait_seconds_total", model="gpt") == 3.0
    assert sample(metrics, "dgym_agent_model_failures_total", model="gpt", fault="rate limited") == 2


@pytest.mark.parametrize(
    ("mode", "labels"),
    [("auto", ["n0", "n49", "_other"]), ("true", ["n0", "n49", "n50"]), ("false", ["", "", ""])],
)
def test_metrics_of_agent_pods_are_labelled_by_namespace_according_to_the_mode(mode, labels):
    metrics = AgentMetrics(mode)
    reply = Exchange(sent=(), usage=TokenUsage(input_tokens=10, output_tokens=1, price="0.5"))
    namespaces = [f"n{number}" for number in range(51)]
    for name in namespaces:
        metrics.observe_stage(name, "play", 2.0)
        metrics.model_replied(name, "gpt", reply)
        metrics.ended(name, "Resolved")
    for label in dict.fromkeys(labels):
        share = 51 if mode == "false" else 1
        shown = {"episode_namespace": label}
        assert sample(metrics, "dgym_agent_stage_seconds_count", **shown, stage="play") == share
        assert sample(metrics, "dgym_agent_stage_seconds_count", **shown, stage="store") == 0
        assert sample(metrics, "dgym_agent_model_tokens_total", **shown, model="gpt", direction="input") == 10 * share
        assert sample(metrics, "dgym_agent_model_cost_total", **shown, model="gpt") == 0.5 * share
        assert sample(metrics, "dgym_agent_episodes_ended_total", **shown, reason="Resolved") == share


def test_namespaces_are_bounded_even_where_all_are_wanted():
    label = NamespaceLabel("true")
    assert {label(f"n{number}") for number in range(1500)} == {f"n{number}" for number in range(1000)} | {"_other"}
    assert (label("n3"), label("n1400")) == ("n3", "_other")


async def test_the_lag_of_the_event_loop_is_sampled():
    catalogue = Catalogue()
    registry = CollectorRegistry()
    histogram = catalogue.histogram("dgym_lag_seconds", "Lag.", (0.1, 1.0)).register(registry)
    async with sampling_lag(histogram, interval_seconds=0.0):
        while not registry.get_sample_value("dgym_lag_seconds_count"):
            await asyncio.sleep(0)
    assert registry.get_sample_value("dgym_lag_seconds_sum") >= 0
