"""Tests of the chart's values: each value is described and checked, and a wrong value is refused with a reason."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dgym"
FREE = ("podSecurityContext", "securityContext", "resources")


def test_definitions_and_table_are_those_of_structs_and_values():
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "chart.py", "--check"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}: run hack/chart.py {done.stderr}"


def test_chart_and_package_have_the_same_version():
    import dgym

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == dgym.__version__


def test_every_value_is_described():
    described = {
        line.split("`")[1] for line in (CHART / "README.md").read_text().splitlines() if line.startswith("| `")
    }
    missing = [
        path
        for path in _leaves(_values())
        if not any(path == each or path.startswith(f"{each}.") for each in described)
    ]
    assert not missing


def test_every_value_is_in_the_schema_and_every_property_of_the_schema_is_a_value():
    properties = set(_properties(json.loads((CHART / "values.schema.json").read_text())))
    assert properties - {"global"} == {*_sections(_values())}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("agents.replicas=2", "agents.replicas > 1: all agent pods write results, but a volume with accessModes"),
        (
            "agents.replicas=2,results.persistence.enabled=false",
            "agents.replicas > 1: without a shared store, agent pods",
        ),
        (
            "agents.autoscaling.enabled=true",
            "agents.autoscaling.maxReplicas > 1: all agent pods write results, but a volume",
        ),
        ("agents.autoscaling.enabled=true,agents.autoscaling.maxReplicas=0", "/agents/autoscaling/maxReplicas"),
        ("agents.autoscaling.type=vpa", "/agents/autoscaling/type"),
        ("agents.autoscaling.type=keda,agents.autoscaling.enabled=true,results.s3.bucket=abc", "address of Prometheus"),
        ("imagePullSecrets[0].nam=a", "/imagePullSecrets/0"),
        ("imageRegistry=https://registry.example", "/imageRegistry"),
        ("imageRegistry=registry.example:port/team", "/imageRegistry"),
        ("imageRegistry=[fd00::1]:5000", "/imageRegistry"),
        ("operator.image.repository=dgym/operator:1.0", "/operator/image/repository"),
        ("sandboxes.image.repository=dgym/Sandbox", "/sandboxes/image/repository"),
        ("operator.resources.limits.memory=512MB", "/operator/resources/limits/memory"),
        ("agents.resources.requests.cpu=-1", "/agents/resources/requests/cpu"),
        ("sandboxes.resources.sandbox.limits.memory=2GB", "/sandboxes/resources/sandbox/limits/memory"),
        ("sandboxes.resources.sandbox.limits.memory=null", "missing property 'memory'"),
        ("sandboxes.resources.verifier.limits.memory=1Gi", "additional properties 'limits' not allowed"),
        ("sandboxes.inherit.labels={a b}", "/sandboxes/inherit/labels/0"),
        ("results.persistence.size=10 GiB", "/results/persistence/size"),
        ("agents.extraVolumes[0].emptyDir=x", "/agents/extraVolumes/0"),
        ("operator.extraVolumeMounts[0].name=x", "/operator/extraVolumeMounts/0"),
        ("agents.livenessProbe.periodSeconds=0", "/agents/livenessProbe/periodSeconds"),
        ("agents.readinessProbe.httpGet.path=/", "additional properties 'httpGet' not allowed"),
        ("operator.revisionHistoryLimit=-1", "/operator/revisionHistoryLimit"),
        ("operator.image.tag=latest", "a tag that never moves"),
        ("agents.replica=2", "additional properties 'replica' not allowed"),
        ("agents.sourceHosts={https://github.com/x}", "/agents/sourceHosts/0"),
        ("operator.logLevel=LOUD", "/operator/logLevel"),
        ("sandboxes.networkPolicy=off", "/sandboxes/networkPolicy"),
        ("results.s3.endpoint=minio:9000", "/results/s3/endpoint"),
        ("proxy.http=proxy.example:3128", "/proxy/http"),
        ("proxy.https=proxy.example:3128", "/proxy/https"),
        ("agents.cacheSize=10GB", "/agents/cacheSize"),
        ("podTemplates.Bad_Name=x", "Bad_Name"),
        ("namespaces.defaults.weight=0", "/namespaces/defaults/weight"),
        ("namespaces.overrides.research.maxactive=2", "additional properties 'maxactive' not allowed"),
        ("namespaces.defaults.allowed.images=a", "/namespaces/defaults/allowed/images"),
        ("namespaces.defaults.limits.maxSteps=-1", "/namespaces/defaults/limits/maxSteps"),
        ("sandboxes.runtimeClassName=Kata", "/sandboxes/runtimeClassName"),
        ("namespaces.overrides.Research.weight=2", "Research"),
    ],
)
def test_a_wrong_value_is_refused_with_a_reason(helm, change, reason):
    done = helm.template("--set", change)
    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        "imageRegistry=registry.example:5000/team/",
        "imageRegistry=",
        "operator.image.repository=ghcr.io/team/dgym__operator",
        "operator.resources.limits.cpu=2",
        "operator.resources.limits.cpu=1.5",
        "agents.resources.limits.memory=2G",
        "agents.resources.limits.memory=2e9",
        "agents.resources.limits.example\\.com/device=1",
        "results.persistence.size=1Pi",
    ],
)
def test_values_that_kubernetes_and_registries_accept_are_valid(helm, change):
    assert helm.template("--set", change).returncode == 0


def test_secrets_of_the_registry_are_given_by_name_or_as_in_a_pod(render):
    release = render("default", "imagePullSecrets[0]=first", "imagePullSecrets[1].name=second")
    for pod in release.pods:
        if pod["spec"]["containers"][0]["image"].startswith("localhost/"):
            assert pod["spec"]["imagePullSecrets"] == [{"name": "first"}, {"name": "second"}]
    (container,) = release.one("Deployment", "dgym-operator")["spec"]["template"]["spec"]["containers"]
    (names,) = (each["value"] for each in container["env"] if each["name"] == "DGYM_OPERATOR_IMAGE_PULL_SECRETS")
    assert names == "first,second"


def test_two_sources_of_models_are_refused(helm):
    done = helm.template("--set", "agents.existingSecret=a,agents.llmConfig.gpt.model=gpt")
    assert "set only one of them" in done.stderr


def _values():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def _leaves(values, prefix=""):
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path


def _sections(values, prefix=""):
    """The paths of the values, down to the mappings that the schema takes from Kubernetes."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict) and key not in FREE and not key.endswith("Probe"):
            yield from _sections(value, f"{prefix}{key}.")


def _properties(schema, prefix=""):
    for key, value in schema.get("properties", {}).items():
        yield f"{prefix}{key}"
        yield from _properties(_resolved(value), f"{prefix}{key}.")


def _resolved(schema):
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in ("resources", "probe", "sandboxResources") or not name:
        return {} if name else schema
    return json.loads((CHART / "values.schema.json").read_text())["$defs"][name]
