"""Tests of the rules, dashboards and annotations that the chart makes for Prometheus and Grafana."""

import json
import re

import pytest
import yaml

from dgym.wire import EndReason
from tests.chart.conftest import CHART

RULES = CHART / "files" / "monitoring" / "rules.yaml"
SCRAPE = CHART / "files" / "monitoring" / "scrape.yaml"


def test_monitoring_objects_and_annotations_are_not_rendered_by_default(render):
    release = render("default")
    assert not release.of("PrometheusRule")
    assert not [each for each in release.of("ConfigMap") if "dashboard" in each["metadata"]["name"]]
    assert not [key for pod in release.pods for key in pod["metadata"].get("annotations", {}) if "prometheus" in key]


def test_the_rules_are_those_of_the_plain_file(render):
    plain = RULES.read_text("utf-8")
    made = render("default", "metrics.rules.enabled=true").one("PrometheusRule", "dgym")
    assert made["spec"] == yaml.safe_load(plain)
    production = render("production").one("PrometheusRule", "dgym")
    assert production["metadata"]["labels"]["release"] == "prometheus"
    address = "runbook_url: https://runbooks.example/dgym/docs/runbooks/"
    assert production["spec"] == yaml.safe_load(plain.replace("runbook_url: docs/runbooks/", address))


def test_a_dashboard_is_a_config_map_that_the_sidecar_of_grafana_selects(render):
    found = [each for each in render("production").of("ConfigMap") if "-dashboard-" in each["metadata"]["name"]]
    files = sorted((CHART / "files" / "dashboards").glob("*.json"))
    assert [each["metadata"]["name"] for each in found] == [f"dgym-dashboard-{path.stem}" for path in files]
    for each, path in zip(found, files, strict=True):
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "dgym"}
        assert {name: json.loads(text) for name, text in each["data"].items()} == {
            f"dgym-{path.name}": json.loads(path.read_text("utf-8"))
        }


@pytest.mark.parametrize(("name", "port"), [("dgym-operator", 8080), ("dgym-agents", 8081)])
def test_the_scrape_job_finds_the_annotated_pods(render, name, port):
    """The first three rules of the job select targets. The test applies them as Prometheus does."""
    pod = render("default", "metrics.annotations=true").one("Deployment", name)["spec"]["template"]
    annotations, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
    assert annotations["prometheus.io/port"] == str(port)
    (container,) = pod["spec"]["containers"]
    (published,) = (each for each in container["ports"] if each["name"] == "http")
    assert published["containerPort"] == port
    meta = {f"__meta_kubernetes_pod_annotation_{_escaped(key)}": value for key, value in annotations.items()}
    meta |= {f"__meta_kubernetes_pod_label_{_escaped(key)}": value for key, value in labels.items()}
    meta |= {"__meta_kubernetes_pod_container_port_name": "http"}
    (job,) = yaml.safe_load(SCRAPE.read_text("utf-8"))["scrape_configs"]
    keeps = [each for each in job["relabel_configs"] if each.get("action") == "keep"]
    assert len(keeps) == 3
    for rule in keeps:
        values = ";".join(meta[source] for source in rule["source_labels"])
        assert re.fullmatch(rule["regex"], values), rule


def _escaped(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def test_rules_exclude_exactly_the_counted_reasons_from_failures():
    (reasons,) = re.findall(r'reason!~"([^"]+)"', RULES.read_text("utf-8"))
    assert reasons.split("|") == [reason.value for reason in EndReason if reason.is_counted]
