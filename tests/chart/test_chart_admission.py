"""Tests of the chart's admission policies on a real API server: objects of the operator pass, others are refused."""

import uuid

import pytest
import yaml

from dgym.api import driver_secret_name
from dgym_operator.actions._networkpolicy import sandbox_policy
from dgym_operator.actions._secrets import secret_manifest
from dgym_operator.objects import MANAGED_BY
from tests.chart.admission import EPISODE, EPISODE_UID, POLICY_KINDS, changed, sandbox_pod

pytestmark = pytest.mark.attack("changed-pod")


def driver_secret(namespace):
    """The Secret of an external driver, as the operator creates it."""
    manifest = secret_manifest(driver_secret_name("fix-1", EPISODE_UID), namespace, {"url": b"http://a", "token": b"t"})
    manifest["metadata"]["labels"]["dgym.dev/episode"] = "fix"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "fix-1", "uid": EPISODE_UID, "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest | {"immutable": True}


def network_policy(namespace):
    """The NetworkPolicy of the sandboxes, as the operator applies it."""
    labels = {"app.kubernetes.io/component": "agent"}
    return sandbox_policy(namespace, operator_namespace=namespace, agent_pod_labels=labels)


# Pods


@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "baked"])
@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_every_shipped_pod_passes(operator, template, delivered):
    assert operator.pod(sandbox_pod(operator.namespace, template, delivered=delivered)) == ""


PRIVILEGED = {"privileged": True, "allowPrivilegeEscalation": True, "capabilities": {"drop": ["ALL"]}}
SECRET_VARIABLE = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "dgym-key", "key": "key"}}}
TOKEN = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
POD_CHANGES = {
    "no owner": ({"metadata__ownerReferences": None}, "must have exactly one owner, an Episode"),
    "another owner": (
        {"metadata__ownerReferences__0": {**EPISODE, "kind": "Job", "apiVersion": "batch/v1"}},
        "must have exactly one owner, an Episode",
    ),
    "two owners": (
        {"metadata__ownerReferences__1": {**EPISODE, "controller": False}},
        "must have exactly one owner, an Episode",
    ),
    "no label that the NetworkPolicy selects": ({"metadata__labels__app.kubernetes.io/component": "x"}, "the labels"),
    "the label of drivers": ({"metadata__labels__dgym.dev/driver": ""}, "not the label of a driver"),
    "the node's network": ({"spec__hostNetwork": True}, "must not share namespaces with its node"),
    "the node's processes": ({"spec__hostPID": True}, "must not share namespaces with its node"),
    "the node's IPC": ({"spec__hostIPC": True}, "must not share namespaces with its node"),
    "shared processes": ({"spec__shareProcessNamespace": True}, "its containers must not share processes"),
    "an account's token": ({"spec__automountServiceAccountToken": True}, "automountServiceAccountToken: false"),
    "a projected token": (
        {"spec__serviceAccountName": "default", "spec__volumes__0": {**TOKEN, "name": "runner"}},
        "may only have volumes of these types",
    ),
    "a directory of the node": (
        {"spec__volumes__0": {"name": "runner", "hostPath": {"path": "/"}}},
        "may only have volumes of these types: emptyDir",
    ),
    "a Secret as a volume": (
        {"spec__volumes__0": {"name": "runner", "secret": {"secretName": "dgym-key"}}},
        "may only have volumes of these types",
    ),
    "a Secret in the environment": ({"spec__containers__0__env__0": SECRET_VARIABLE}, "must not refer to a Secret"),
    "all of a Secret in the environment": (
        {"spec__initContainers__0__envFrom": [{"secretRef": {"name": "dgym-key"}}]},
        "must not refer to a Secret",
    ),
    "a privileged container": ({"spec__containers__1__securityContext": PRIVILEGED}, "must not be privileged"),
    "a privileged init container": ({"spec__initContainers__0__securityContext": PRIVILEGED}, "must not be privileged"),
    "a container without security context": ({"spec__containers__2__securityContext": None}, "must not be privileged"),
    "privileges by programs of root": (
        {"spec__containers__0__securityContext__allowPrivilegeEscalation": None},
        "allowPrivilegeEscalation: false",
    ),
    "a capability": (
        {"spec__containers__0__securityContext__capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
        "must drop ALL capabilities and must not add any",
    ),
    "the image's capabilities": (
        {"spec__containers__0__securityContext__capabilities": {}},
        "must drop ALL capabilities and must not add any",
    ),
    "no seccomp": ({"spec__securityContext__seccompProfile": None}, "RuntimeDefault or Localhost"),
    "no seccomp in one container": (
        {"spec__containers__0__securityContext__seccompProfile": {"type": "Unconfined"}},
        "its containers must not be unconfined",
    ),
    "a sysctl": (
        {"spec__securityContext__sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
        "must not set sysctls",
    ),
    "an annotation that confines less": (
        # The API server also copies the annotation into the field.
        {"metadata__annotations": {"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"}},
        "its containers must not be unconfined",
    ),
    "a port of the node": (
        {"spec__containers__0__ports__0": {"containerPort": 8080, "hostPort": 8080}},
        "must not use ports or block devices",
    ),
    "a node of its choice": ({"spec__nodeName": "node"}, "must be placed by the scheduler"),
    "no end": ({"spec__activeDeadlineSeconds": None}, "activeDeadlineSeconds"),
    "another restart policy": ({"spec__restartPolicy": "Always"}, "restartPolicy: Never"),
}


@pytest.mark.parametrize("change", POD_CHANGES)
def test_a_pod_with_more_rights_is_refused(operator, change):
    places, expected = POD_CHANGES[change]
    delivered = not any("initContainers" in place for place in places)
    refusal = operator.pod(changed(sandbox_pod(operator.namespace, delivered=delivered), **places))
    assert "ValidatingAdmissionPolicy" in refusal
    assert expected in refusal


def test_the_policy_does_not_apply_to_other_users(operator, api_server):
    pod = changed(sandbox_pod(operator.namespace), metadata__ownerReferences=None, spec__nodeName="node")
    api_server.request("POST", f"/api/v1/namespaces/{operator.namespace}/pods?dryRun=All", pod)


def test_the_policy_enforces_volumes_runtime_class_and_user_namespaces_of_the_values(install, api_server):
    runtime = f"runtime-{uuid.uuid4().hex[:10]}"
    api_server.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": runtime}, "handler": "x"})
    volumes = "operator.admissionPolicy.volumes={emptyDir,persistentVolumeClaim,projected}"
    operator = install(volumes, "sandboxes.userNamespaces=true", f"sandboxes.runtimeClassName={runtime}")
    required = {"user_namespaces": True, "runtime_class_name": runtime}
    pod = sandbox_pod(operator.namespace, **required)
    assert operator.pod(pod) == ""
    assert "must have hostUsers: false" in operator.pod(sandbox_pod(operator.namespace, runtime_class_name=runtime))
    assert "must have a RuntimeClass" in operator.pod(sandbox_pod(operator.namespace, user_namespaces=True))

    another = f"spec__volumes__{len(pod['spec']['volumes'])}"
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    assert operator.pod(changed(pod, **{another: claim})) == ""
    with_token = {"spec__serviceAccountName": "default", another: TOKEN}
    assert "must not have a service account token" in operator.pod(changed(pod, **with_token))


# Secrets, NetworkPolicies, ConfigMaps, Leases


def test_secrets_other_than_the_operators_are_refused(operator):
    good = driver_secret(operator.namespace)
    assert operator.secret(good) == ""
    for name in ("dgym-key", "dgym-agent-keys"):
        assert operator.secret(secret_manifest(name, operator.namespace, {"key": b"x" * 32})) == ""
    account = {"kubernetes.io/service-account.name": "default"}
    changes = {
        "an account's token": {"type": "kubernetes.io/service-account-token", "metadata__annotations": account},
        "no owner": {"metadata__ownerReferences": None},
        "another name": {"metadata__name": "sh.helm.release.v1.dgym.v1"},
        "another field": {"data__key": "eA=="},
        "one that can be changed": {"immutable": None},
        "no episode": {"metadata__labels__dgym.dev/episode": ""},
    }
    for name, places in changes.items():
        assert "ValidatingAdmissionPolicy" in operator.secret(changed(good, **places)), name


def test_network_policies_other_than_the_sandboxes_are_refused(operator):
    good = network_policy(operator.namespace)
    assert operator.policy(good) == ""
    anybody = {"from": [{"podSelector": {}}], "ports": [{"port": 8080}]}
    changes = {
        "another name": {"metadata__name": "allow-all"},
        "other pods": {"spec__podSelector": {}},
        "more pods": {"spec__podSelector": {"matchLabels": {"app.kubernetes.io/name": "dgym"}}},
        "no egress policy": {"spec__policyTypes": ["Ingress"], "spec__egress": []},
        "a way out": {"spec__egress": [{}]},
        "from everywhere": {"spec__ingress": [{"ports": [{"port": 8080}]}]},
        "from every pod": {"spec__ingress": [anybody]},
        "from addresses": {"spec__ingress": [{**anybody, "from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]},
        "to every port": {"spec__ingress__0__ports": []},
    }
    for name, places in changes.items():
        assert "ValidatingAdmissionPolicy" in operator.policy(changed(good, **places)), name


def test_server_side_apply_of_a_network_policy_is_checked_too(operator, api_server):
    place = f"/apis/networking.k8s.io/v1/namespaces/{operator.namespace}/networkpolicies"
    api_server.request("POST", place, network_policy(operator.namespace))
    widened = changed(network_policy(operator.namespace), spec__egress=[{}])
    refused = operator.refusal(
        "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/dgym-sandbox",
        widened,
        "PATCH",
        content_type="application/merge-patch+json",
    )
    assert "must not allow egress from sandboxes" in refused


def test_config_maps_and_leases_other_than_the_operators_are_refused(operator):
    maps, leases = "/api/v1/namespaces/{}/configmaps", "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
    owner = {**EPISODE, "kind": "EpisodeSet"}
    tasks = {"metadata": {"name": "tasks", "ownerReferences": [owner], "labels": dict(MANAGED_BY)}, "immutable": True}
    assert operator.refusal(maps, tasks) == ""
    for places in ({"metadata__ownerReferences": None}, {"immutable": None}):
        assert "must be immutable and owned by an EpisodeSet" in operator.refusal(maps, changed(tasks, **places))
    for name, taken in (("dgym-owner", True), ("dgym-operator", True), ("kube-scheduler", False)):
        assert (operator.refusal(leases, {"metadata": {"name": name}}) == "") is taken


# The chart


def test_policies_are_rendered_only_if_the_value_enables_them(render):
    assert not any(render("default", "operator.admissionPolicy.enabled=false").of(kind) for kind in POLICY_KINDS)
    assert len(render("default").of(POLICY_KINDS[0])) == len(render("default").of(POLICY_KINDS[1])) == 5


def test_policies_of_two_releases_have_different_names(helm, render):
    def names(namespace):
        answer = helm.template("--namespace", namespace)
        assert answer.returncode == 0, answer.stderr
        made = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
        return {each["metadata"]["name"] for each in made if each["kind"] in POLICY_KINDS}

    assert names("one").isdisjoint(names("two"))
