"""Tests of the hook before a release is deleted: it removes only objects of the operator from a real API server."""

import base64
from random import Random

import pytest

from dgym.kube._client import Client
from dgym.kube._throttle import SystemClock
from dgym.kube._transport import load_access
from dgym_operator.actions._networkpolicy import sandbox_policy
from dgym_operator.cleanup import TEST_LABELS, Cleanup
from dgym_operator.objects import OPERATOR_LABELS, SANDBOX_LABELS
from dgym_operator.settings import Settings

CLAIMS = "apis/coordination.k8s.io/v1/leases"
AGENTS = {"app.kubernetes.io/component": "agent"}


class Place:
    """A namespace of the API server: creates objects and lists the remaining ones."""

    def __init__(self, server, name):
        self.server, self.name = server, name

    def make(self, collection, name, **body):
        return self.server.request("POST", f"{self._at(collection)}", {"metadata": {"name": name}, **body})

    def pod(self, name, labels):
        spec = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}
        self.server.request(
            "POST", self._at("api/v1/pods"), {"metadata": {"name": name, "labels": labels}, "spec": spec}
        )

    def policy(self, operator_namespace):
        body = sandbox_policy(self.name, operator_namespace=operator_namespace, agent_pod_labels=AGENTS)
        self.server.request("POST", self._at("apis/networking.k8s.io/v1/networkpolicies"), body)

    def names(self, collection):
        return {item["metadata"]["name"] for item in self.server.request("GET", self._at(collection))["items"]}

    def _at(self, collection):
        group, _, plural = collection.rpartition("/")
        return f"/{group}/namespaces/{self.name}/{plural}"


@pytest.fixture
def place(api_server):
    def made(name):
        with_suffix = f"{name}-{Random().randbytes(4).hex()}"  # unique: other tests create namespaces too
        api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": with_suffix}})
        return Place(api_server, with_suffix)

    return made


@pytest.fixture
def clean_up(api_server):
    async def run(deployment="dgym-operator", kubeconfig=api_server.kubeconfig, **settings):
        access = await load_access(kubeconfig)
        async with Client(access, clock=SystemClock(), random=Random(1)) as client:
            await Cleanup(client, Settings(**settings), SystemClock()).run(deployment)

    return run


def _install(system):
    secret = {"data": {"key": base64.b64encode(bytes(32)).decode()}}
    for name in ("dgym-key", "dgym-agent-keys", "model-keys"):
        system.make("api/v1/secrets", name, **secret)
    system.make("apis/coordination.k8s.io/v1/leases", "dgym-operator", spec={"holderIdentity": "x"})
    template = {"metadata": {"labels": OPERATOR_LABELS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    system.make(
        "apis/apps/v1/deployments", "dgym-operator",
        spec={"selector": {"matchLabels": OPERATOR_LABELS}, "template": template},
    )  # fmt: skip


async def test_only_objects_of_the_operator_are_removed(place, clean_up):
    system, team, other, former = place("system"), place("team"), place("other"), place("former")
    _install(system)
    system.pod("dgym-test", TEST_LABELS)
    system.pod("agent", {"app.kubernetes.io/name": "dgym", **AGENTS})
    for namespace, operator in ((team, system.name), (other, "another-system")):
        namespace.make(CLAIMS, "dgym-owner", spec={"holderIdentity": f"{operator}/dgym-operator"})
        namespace.policy(operator)
        namespace.pod("episode-1", SANDBOX_LABELS)
        namespace.pod("web", {"app": "web"})
    # The last episode of that namespace is deleted, and the operator has released the claim.
    former.make(CLAIMS, "dgym-owner", spec={"holderIdentity": ""})

    await clean_up(namespace=system.name)

    assert not former.names(CLAIMS)
    assert system.names("api/v1/secrets") == {"model-keys"}
    assert not system.names("apis/coordination.k8s.io/v1/leases")
    assert not system.names("apis/apps/v1/deployments")
    assert system.names("api/v1/pods") == {"agent"}
    assert team.names("api/v1/pods") == {"web"}
    assert not team.names("apis/networking.k8s.io/v1/networkpolicies")
    assert not team.names(CLAIMS)
    assert other.names(CLAIMS) == {"dgym-owner"}
    assert other.names("api/v1/pods") == {"episode-1", "web"}
    assert other.names("apis/networking.k8s.io/v1/networkpolicies") == {"dgym-sandbox"}


async def test_without_policies_sandboxes_of_served_namespaces_are_deleted(place, clean_up):
    system, team, other = place("system"), place("team"), place("other")
    for namespace in (team, other):
        namespace.pod("episode-1", SANDBOX_LABELS)

    await clean_up(namespace=system.name, watch_namespaces=team.name, network_policy="disabled")

    assert not team.names("api/v1/pods")
    assert other.names("api/v1/pods") == {"episode-1"}


async def test_the_cleanup_can_run_twice(place, clean_up):
    system = place("system")
    _install(system)
    await clean_up(namespace=system.name)
    await clean_up(namespace=system.name)
    assert system.names("api/v1/secrets") == {"model-keys"}


async def test_a_served_namespace_that_is_gone_is_passed_over(
    accounts, kubeconfig_of, clean_up, api_server, api_namespace, caplog
):
    accounts(api_namespace, "gone")
    here = Place(api_server, api_namespace)
    here.policy(api_namespace)
    watched = f"gone,{api_namespace}"
    await clean_up(namespace=api_namespace, watch_namespaces=watched, kubeconfig=kubeconfig_of("dgym-cleanup"))
    assert not here.names("apis/networking.k8s.io/v1/networkpolicies")
    assert "cannot be read and is left as it is" in caplog.text


async def test_the_hook_has_exactly_the_rights_that_it_uses(place, clean_up, render, api_server):
    rules = [
        rule
        for kind, name in (("ClusterRole", "dgym-system:dgym-cleanup"), ("Role", "dgym-cleanup"))
        for rule in render("default").one(kind, name)["rules"]
    ]
    granted = {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    system, team = place("system"), place("team")
    _install(system)
    team.policy(system.name)
    team.pod("episode-1", SANDBOX_LABELS)
    team.make(CLAIMS, "dgym-owner", spec={"holderIdentity": f"{system.name}/dgym-operator"})
    await clean_up(namespace=system.name)
    wrote = {
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in api_server.writes()
        if entry.get("userAgent", "").startswith("dgym-operator")
        and entry["objectRef"].get("namespace") in (system.name, team.name)
    }
    assert wrote
    assert wrote == {pair for pair in granted if pair[0] != "list"}
