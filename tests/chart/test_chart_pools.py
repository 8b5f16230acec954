"""Tests of several pools of agent pods: the settings of each pool, and the values that the chart refuses."""

import json

import pytest

POOL = "agents.pools[0].name=a,agents.pools[0].namespaces={{team}}"


@pytest.fixture
def pools(render):
    """The agent pods by the name of their pool."""
    pods = {pod["metadata"]["labels"].get("dgym.dev/pool"): pod for pod in render("pools").pods}
    return {name: pod for name, pod in pods.items() if name}


def environment(pod):
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def test_each_pool_has_its_own_deployment_secrets_models_and_results(render, pools):
    release = render("pools")
    assert sorted(each["metadata"]["name"] for each in release.of("Deployment")) == [
        "dgym-agents-alpha",
        "dgym-agents-others",
        "dgym-operator",
    ]
    of_pool = {}
    for name, pod in pools.items():
        of_pool[name] = {each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each}
    assert of_pool == {
        "alpha": {"dgym-agent-keys-alpha", "models-of-alpha"},
        "others": {"dgym-agent-keys-others", "dgym-models-others"},
    }
    assert environment(pools["alpha"])["DGYM_AGENT_RESULTS"] == "/var/lib/dgym/results"
    assert environment(pools["others"])["DGYM_AGENT_RESULTS"] == "s3://results/others"
    accounts = {pod["spec"]["serviceAccountName"] for pod in pools.values()}
    assert accounts == {"dgym-agents-alpha", "dgym-agents-others"}


def test_operator_and_agent_pods_get_the_namespaces_of_each_pool(render, pools):
    (container,) = render("pools").one("Deployment", "dgym-operator")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert json.loads(variables["DGYM_OPERATOR_AGENT_POOLS"]) == [
        {"name": "alpha", "namespaces": ["alpha"]},
        {"name": "others", "namespaces": ["beta", "gamma"]},
    ]
    assert environment(pools["others"])["DGYM_AGENT_NAMESPACES"] == "beta,gamma"


def test_the_models_of_one_pool_open_no_port_to_another(render):
    def ports(name):
        policy = render("pools").one("NetworkPolicy", name)
        return {each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]}

    assert 9999 in ports("dgym-agents-others")
    assert 9999 not in ports("dgym-agents-alpha")


def test_a_pool_mounts_only_its_own_models_if_it_configures_any(render):
    models = "agents.llmConfig.m.model=x"
    for own, secret in (
        ("existingSecret=own", "own"),
        ("llmConfig.o.model=y", "dgym-models-a"),
        ("slots=3", "dgym-models-a"),
    ):
        release = render("default", models, POOL.format(), f"agents.pools[0].{own}")
        (pod,) = (each for each in release.pods if "dgym.dev/pool" in each["metadata"]["labels"])
        (mounted,) = (each["secret"]["secretName"] for each in pod["spec"]["volumes"] if each["name"] == "models")
        assert mounted == secret
        if own.startswith("llmConfig"):
            assert "model: x" not in release.one("Secret", secret)["stringData"]["llm.yaml"]


def test_without_pools_the_deployment_keeps_its_name_and_selector(render):
    agents = render("default").one("Deployment", "dgym-agents")
    assert agents["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "dgym",
        "app.kubernetes.io/instance": "dgym",
        "app.kubernetes.io/component": "agent",
    }


def test_an_account_that_is_named_for_all_is_made_once_for_each_pool(render):
    release = render("pools", "agents.serviceAccount.name=mine")
    names = [each["metadata"]["name"] for each in release.of("ServiceAccount")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            "agents.pools[1].name=b,agents.pools[1].namespaces={{team}}",
            "namespace team is in the pools a and b; a namespace can be in one pool only: remove it from one",
        ),
        (
            "agents.pools[1].name=a,agents.pools[1].namespaces={{other}}",
            "two pools have the name a; give each pool its own name",
        ),
        ("agents.pools[1].name=b", "/agents/pools/1"),
        ("agents.pools[0].name=A", "/agents/pools/0/name"),
        ("agents.pools[0].slot=1", "/agents/pools/0"),
        ("watchNamespaces={{other}}", "namespace team of pool a is not one of watchNamespaces"),
        ("agents.pools[0].replicas=2", "agents.replicas > 1"),
    ],
)
def test_wrong_pools_are_refused_with_a_reason(helm, changes, reason):
    done = helm.template("--set", POOL.format(), "--set", changes.format())
    assert done.returncode != 0
    assert reason in done.stderr
