import json

import msgspec
import pytest

from dgym.api import AgentSpec, DebugTask, DebugTaskSpec, Episode, ObjectMeta
from dgym_operator.actions._refusals import find_refusal_by_policy, inherited, with_step_limit
from dgym_operator.chart_values import Limits
from dgym_operator.settings import Settings

pytestmark = pytest.mark.attack("author")

DEFAULTS = {
    "allowed": {"images": ["registry.example/team/*"], "models": ["small-*"], "podTemplates": ["baseline"]},
    "limits": {"priority": 10, "maxSteps": 100, "tokenBudget": 5000, "activeDeadlineSeconds": 7200},
}
TRUSTED = {
    "allowed": {
        "annotations": ["example.com/*"],
        "labels": ["kueue.x-k8s.io/queue-name"],
        "tolerations": ["gpu", "*"],
        "runtimeClassNames": ["kata"],
        "images": ["*"],
    },
    "limits": {"maxSteps": None},
}


def settings(defaults=None, **fields):
    policies = {"defaults": DEFAULTS if defaults is None else defaults, "overrides": {"trusted": TRUSTED}}
    given = {"namespace_policies": json.dumps(policies), "sandbox_image": "dgym/sandbox-python:1", **fields}
    return Settings(**given)


def refusal(spec=None, task=None, namespace="team", installation=None, **more):
    task = msgspec.convert(task or {}, DebugTaskSpec)
    manifest = {
        "metadata": {"name": "fix", "namespace": namespace},
        "spec": {"taskRef": {"name": "bug"}, **(spec or {}), **more},
    }
    metadata = ObjectMeta(name="bug", namespace=namespace)
    return find_refusal_by_policy(
        msgspec.convert(manifest, Episode), DebugTask(metadata=metadata, spec=task), installation or settings()
    )


def test_specs_that_are_allowed_by_default():
    anything = settings({})
    agent = {"name": "debug_agent", "model": "huge", "maxSteps": 9999, "tokenBudget": 10**9}
    overrides = {"nodeSelector": {"pool": "fast"}, "resources": {"limits": {"memory": "4Gi"}}}
    spec = {"agent": agent, "priority": 10**9, "podOverrides": overrides, "podTemplate": "own"}
    assert refusal(spec, {"image": "anything"}, installation=anything) is None
    assert refusal({"agent": {"name": "solution"}}) is None
    assert refusal({}, {"image": "dgym/sandbox-python:1"}) is None
    assert refusal({}, {"podTemplate": "restricted"}) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"annotations": {"a/b": "c"}},
            "spec.podOverrides.annotations: 'a/b' is not allowed in namespace team; remove it",
        ),
        ({"labels": {"team": "a"}}, "spec.podOverrides.labels: 'team'"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, "spec.podOverrides.tolerations: 'gpu'"),
        ({"tolerations": [{"operator": "Exists"}]}, "spec.podOverrides.tolerations: ''"),
        ({"runtimeClassName": "runc"}, "spec.podOverrides.runtimeClassName: 'runc'"),
    ],
)
def test_overrides_that_affect_the_cluster_are_refused_by_default(overrides, message):
    found = refusal(podOverrides=overrides, installation=settings({}))
    assert found.startswith(message)
    (name,) = overrides
    field = {"runtimeClassName": "runtimeClassNames"}.get(name, name)
    assert f"let the administrator add it to namespaces.defaults.allowed.{field} in the chart's values" in found


def test_an_override_allows_a_namespace_more_and_inherits_the_rest():
    overrides = {
        "annotations": {"example.com/note": "x"},
        "labels": {"kueue.x-k8s.io/queue-name": "team"},
        "tolerations": [{"key": "gpu"}, {"operator": "Exists"}],
        "runtimeClassName": "kata",
    }
    agent = {"name": "debug_agent", "model": "small-1", "maxSteps": 9999, "tokenBudget": 5000}
    spec = {"agent": agent, "podOverrides": overrides}
    assert refusal(spec, {"image": "anything"}, namespace="trusted") is None
    found = refusal({"agent": {**agent, "model": "large"}}, namespace="trusted")
    assert found.startswith("spec.agent.model: 'large' is not allowed in namespace trusted")
    assert "namespaces.overrides.trusted.allowed.models" in found


@pytest.mark.parametrize("image", ["registry.example/team", "evil/registry.example/team/x", "registry.example/teams/x"])
def test_a_pattern_must_match_the_whole_name(image):
    assert refusal({}, {"image": "registry.example/team/a/b:1"}) is None
    assert refusal({}, {"image": image}).startswith(f"DebugTask bug: spec.image: {image!r} is not allowed")


def test_a_dot_is_a_dot_and_lines_do_not_end_a_name():
    assert refusal({}, {"image": "registryxexample/team/x"}) is not None
    multiline = settings({"allowed": {"models": ["a*"]}})
    assert refusal({"agent": {"name": "debug_agent", "model": "b"}}, installation=multiline) is not None


def test_a_queue_may_be_any_of_the_namespace_unless_some_are_named():
    assert refusal({"queueName": "any"}) is None
    named = settings({"allowed": {"queueNames": ["research-*"]}})
    assert refusal({"queueName": "research-low"}, installation=named) is None
    found = refusal({"queueName": "production"}, installation=named)
    assert found.startswith("spec.queueName: 'production' is not allowed in namespace team")


def test_templates_of_the_episode_and_of_its_task_are_checked():
    assert refusal({"podTemplate": "baseline"}) is None
    assert refusal({"podTemplate": "privileged"}).startswith("spec.podTemplate: 'privileged'")
    assert refusal({}, {"podTemplate": "privileged"}).startswith("DebugTask bug: spec.podTemplate: 'privileged'")


def test_the_runtime_class_of_the_installation_is_always_allowed():
    gvisor = settings({}, runtime_class_name="gvisor")
    assert refusal(podOverrides={"runtimeClassName": "gvisor"}, installation=gvisor) is None
    assert refusal(podOverrides={"runtimeClassName": "runc"}, installation=gvisor) is not None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priority": 11}, "spec.priority: is 11, and may be 10 at most in namespace team; give a lower number"),
        ({"activeDeadlineSeconds": 7201}, "spec.activeDeadlineSeconds: is 7201, and may be 7200 at most"),
        ({"agent": {"name": "solution", "maxSteps": 101}}, "spec.agent.maxSteps: is 101, and may be 100 at most"),
        (
            {"agent": {"name": "debug_agent", "model": "small-1", "tokenBudget": 5001}},
            "spec.agent.tokenBudget: is 5001, and may be 5000 at most",
        ),
        (
            {"agent": {"name": "debug_agent", "model": "small-1"}},
            "spec.agent.tokenBudget: is missing, and may be 5000 at most",
        ),
    ],
)
def test_numbers_have_limits(spec, message):
    found = refusal(spec)
    assert found.startswith(message)
    assert "let the administrator raise namespaces.defaults.limits." in found


@pytest.mark.parametrize(
    ("given", "limit", "effective"), [(None, 20, 20), (None, None, 50), (None, 100, 50), (30, 20, 30), (10, 20, 10)]
)
def test_the_default_number_of_steps_is_lowered_to_the_limit(given, limit, effective):
    agent = AgentSpec(name="solution") if given is None else AgentSpec(name="solution", max_steps=given)
    assert with_step_limit(agent, Limits(max_steps=limit)).max_steps == effective


def test_an_episode_that_names_no_steps_is_not_refused_for_the_default():
    few = settings({"limits": {"maxSteps": 20}})
    assert refusal({"agent": {"name": "solution"}}, installation=few) is None
    assert "spec.agent.maxSteps: is 30" in refusal({"agent": {"name": "solution", "maxSteps": 30}}, installation=few)


def test_pods_inherit_what_is_listed_and_never_what_rights_depend_on():
    given = {
        "example.com/cost-centre": "42",
        "team": "a",
        "dgym.dev/driver": "true",
        "kueue.x-k8s.io/queue-name": "fast",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined",
    }
    assert inherited(given, ["*"]) == {"example.com/cost-centre": "42", "team": "a"}
    assert inherited(given, ["example.com/*"]) == {"example.com/cost-centre": "42"}
    assert inherited(given, ["*"], taken={"team": "b"}) == {"example.com/cost-centre": "42"}
    assert inherited(given, []) == {}
