"""Tests of the environment that the chart sets: the processes accept every variable."""

import pytest

from dgym_operator.chart_values import DefaultResources
from dgym_operator.settings import PREFIX, Settings

GIB = 1024**3


@pytest.mark.parametrize("values", ["default", "production", "namespaced", "trial"])
def test_the_operator_accepts_the_variables_of_the_chart(render, monkeypatch, values):
    environment = _environment(render(values), "operator")
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert {name for name in environment if name.startswith("DGYM_")} <= known
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert values == "production" or Settings().default_resources == DefaultResources()
    assert Settings().network_policy == ("disabled" if values == "trial" else "required")


def test_the_operator_reads_every_setting_from_the_chart(render, monkeypatch):
    for name, value in _environment(render("production"), "operator").items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.sandbox_image == "registry.example/team/dgym/sandbox-python:0.1.0"
    assert settings.sidecar_image == "registry.example/team/dgym/sidecar:0.1.0"
    assert settings.image_pull_secrets == ("registry",)
    assert settings.pod_templates_directory is not None
    policies = settings.namespace_policies
    assert [policies.of(name).weight for name in ("research", "own", "other")] == [3, 1, 1]
    assert [policies.of(name).max_active for name in ("research", "own", "other")] == [200, None, 100]
    research, other = policies.of("research"), policies.of("other")
    assert (research.allowed.images, other.allowed.images) == (None, ("registry.example/team/*",))
    assert research.allowed.labels == other.allowed.labels == ("kueue.x-k8s.io/queue-name",)
    assert (research.limits.priority, research.limits.token_budget) == (5, 2_000_000)
    assert settings.runtime_class_name == "gvisor"
    assert settings.max_concurrent_pulls is None
    assert settings.image_mirrors == {"docker.io": "mirror.example:5000/docker"}
    assert settings.default_resources.sandbox.limits == {"memory": "4Gi", "ephemeral-storage": "10Gi"}
    assert settings.default_resources.sidecar.requests == {"cpu": "50m", "memory": "64Mi"}
    assert settings.default_resources.verifier == DefaultResources().verifier
    assert (settings.inherited_labels, settings.inherited_annotations) == (
        ("example.com/cost-centre",),
        ("example.com/*",),
    )
    assert settings.agent_port == 8081
    assert settings.log_level == "DEBUG"


def test_the_operator_finds_its_agents_and_no_others(render):
    release = render("default", release="dgym-2")
    selector = _environment(release, "operator")["DGYM_OPERATOR_AGENT_SELECTOR"]
    wanted = dict(part.split("=") for part in selector.split(","))
    matching = [pod for pod in release.pods if wanted.items() <= pod["metadata"]["labels"].items()]
    assert [pod["spec"]["containers"][0]["name"] for pod in matching] == ["agent"]
    assert wanted["app.kubernetes.io/instance"] == "dgym-2"


def test_agent_pods_have_a_setting_for_every_variable_of_the_chart(render):
    from dgym.episodes.agent_pod import AgentPodSettings

    known = {f"DGYM_AGENT_{name.upper()}" for name in AgentPodSettings.model_fields}
    for values in ("default", "production", "trial", "shared-volume"):
        assert {name for name in _environment(render(values), "agent") if name.startswith("DGYM_")} <= known


def test_trace_variables_are_not_set_without_a_collector(render):
    for component in ("operator", "agent"):
        assert not [name for name in _environment(render("default"), component) if name.startswith("OTEL_")]


@pytest.mark.parametrize("component", ["operator", "agent"])
def test_the_headers_of_the_collector_come_from_a_secret(render, component):
    release = render("production")
    variables = {each["name"]: each for each in _container(release, component)["env"]}
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == "http://collector.monitoring:4318"
    assert variables["OTEL_SERVICE_NAME"]["value"] == f"dgym-{component}"
    assert variables["OTEL_TRACES_SAMPLER_ARG"]["value"] == "0.1"
    secret = {"secretKeyRef": {"name": "collector", "key": "headers"}}
    assert variables["OTEL_EXPORTER_OTLP_HEADERS"] == {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": secret}


def test_agent_pods_get_the_location_of_the_results_store(render):
    assert _environment(render("default"), "agent")["DGYM_AGENT_RESULTS"] == "/var/lib/dgym/results"
    environment = _environment(render("production"), "agent")
    assert environment["DGYM_AGENT_RESULTS"] == "s3://results/dgym"
    assert environment["AWS_ENDPOINT_URL"] == "http://minio.storage:9000"
    assert environment["AWS_ALLOW_HTTP"] == "true"


def test_the_cache_leaves_room_for_packing_before_the_node_evicts_the_pod(render):
    limit = int(_environment(render("default"), "agent")["DGYM_AGENT_CACHE_LIMIT_BYTES"])
    assert limit == 16 * GIB, "half of agents.cacheSize"


def test_agents_trust_the_given_authorities_and_go_through_the_proxy(render):
    environment = _environment(render("production"), "agent")
    assert environment["SSL_CERT_FILE"] == environment["GIT_SSL_CAINFO"] == "/etc/dgym/ca-bundle/ca.crt"
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://proxy.example:3128"


def test_models_in_the_values_are_a_secret_and_restart_agents(render):
    first, second = render("shared-volume"), render("shared-volume", "agents.llmConfig=other:\\n")
    assert "endpoint: http://localhost:8000/v1" in first.one("Secret", "episodes-models")["stringData"]["llm.yaml"]
    assert _annotations(first)["checksum/models"] != _annotations(second)["checksum/models"]
    assert not render("trial").of("Secret")


def _container(release, name):
    (found,) = (each for pod in release.pods for each in pod["spec"]["containers"] if each["name"] == name)
    return found


def _environment(release, container):
    return {each["name"]: each["value"] for each in _container(release, container)["env"] if "value" in each}


def _annotations(release):
    (found,) = (pod for pod in release.pods if pod["spec"]["containers"][0]["name"] == "agent")
    return found["metadata"]["annotations"]
