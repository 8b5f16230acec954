"""Prometheus reads what the sidecar says."""

from prometheus_client.parser import text_string_to_metric_families

from dgym.sidecar.metrics import Metrics


def read(metrics):
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    return families, samples


def test_calls_are_counted_and_timed():
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.3, 1000.0):
        metrics.count("/v1/reset", "ok", seconds)
    metrics.count("/v1/reset", 'od"d\\\n', 0.0)
    families, samples = read(metrics)
    assert families["dgym_sidecar_call_seconds"].type == "histogram"
    assert samples["dgym_sidecar_calls_total", ("call", "/v1/reset"), ("code", "ok")] == 4
    assert samples["dgym_sidecar_calls_total", ("call", "/v1/reset"), ("code", 'od"d\\\n')] == 1
    buckets = [samples["dgym_sidecar_call_seconds_bucket", ("call", "/v1/reset"), ("le", le)] for le in
               ("0.005", "0.02", "0.1", "0.5", "2.0", "10.0", "60.0", "300.0", "+Inf")]  # fmt: skip
    assert buckets == [3, 3, 3, 4, 4, 4, 4, 4, 5]
    assert samples["dgym_sidecar_call_seconds_count", ("call", "/v1/reset")] == 5
    assert 1000 < samples["dgym_sidecar_call_seconds_sum", ("call", "/v1/reset")] < 1001


def test_what_is_now_is_said_as_it_is():
    metrics = Metrics()
    metrics.steps, metrics.ready = 7, True
    _, samples = read(metrics)
    assert samples["dgym_sidecar_steps",] == 7
    assert samples["dgym_sidecar_ready",] == 1
    assert samples["dgym_sidecar_process_resident_memory_bytes",] > 1e6
    assert samples["dgym_sidecar_process_cpu_seconds_total",] > 0
