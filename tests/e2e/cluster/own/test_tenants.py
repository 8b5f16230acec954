"""Tests of two tenants with separate pools of agent pods, and of a tenant's pod that imitates an episode's pod."""

import os

import pytest

from tests.e2e.cluster.episodes import episode, inline_source, task_spec
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.services import MODEL, SECURITY, address
from tests.e2e.cluster.support import new_namespace, run

POOLS = ("red", "blue")


@pytest.fixture(scope="module")
def tenants():
    """A namespace for each pool of agent pods."""
    with new_namespace("e2e-red") as red, new_namespace("e2e-blue") as blue:
        yield {"red": red, "blue": blue}


@pytest.fixture(scope="module")
def release(tenants):
    """A release with two pools of agent pods. Each has a separate model and volume."""
    pools = [
        {"name": name, "namespaces": [kubectl.namespace], "llmConfig": {f"model-of-{name}": _model()}}
        for name, kubectl in tenants.items()
    ]
    served = [kubectl.namespace for kubectl in tenants.values()]
    values = {"watchNamespaces": served, "agents": {"pools": pools}}
    with installed("tenants", watch=served[0], agents=1, values=values) as release:
        yield release


def _model():
    return {"model": "debugger", "endpoint": f"http://{address(MODEL)}/v1", "api_key": "${SCRIPTED_KEY}"}


def serving(release, kubectl, name):
    """The agent pod that serves or has served the episode, and the pool that it belongs to. Returns (pool, pod)."""
    uid = kubectl.status(name)["assignment"]["agentPodUID"]
    pods = release.kubectl.items("pods", "app.kubernetes.io/component=agent")
    (pod,) = (each for each in pods if each["metadata"]["uid"] == uid)
    return pod["metadata"]["labels"]["dgym.dev/pool"], pod


@pytest.mark.parametrize("pool", POOLS)
def test_agent_pods_of_a_pool_serve_only_its_namespace(release, tenants, pool, tmp_path):
    kubectl = tenants[pool]
    for number in range(3):
        kubectl.apply(episode(f"fix-{number}", task=task_spec(inline_source())))
    for number in range(3):
        assert kubectl.finished(f"fix-{number}")["reason"] == "Resolved"
        assert serving(release, kubectl, f"fix-{number}")[0] == pool
    run("dgym", "results", "fix-0", *release.client_flags(kubectl.namespace), "--directory", str(tmp_path))
    assert list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("pool", POOLS)
def test_a_model_of_another_pool_cannot_be_used(release, tenants, pool):
    other = next(each for each in POOLS if each != pool)
    agent = {"name": "debug_agent", "model": f"model-of-{other}", "maxSteps": 5}
    tenants[pool].apply(episode("stranger", agent=agent, task=task_spec(inline_source())))
    status = tenants[pool].finished("stranger")
    assert status["reason"] != "Resolved"
    assert f"model-of-{other}" in tenants[pool].explain("stranger")


@pytest.mark.parametrize("pool", POOLS)
def test_no_agent_mounts_a_secret_of_another_pool(release, pool):
    (pod,) = release.kubectl.items("pods", f"app.kubernetes.io/component=agent,dgym.dev/pool={pool}")
    secrets = {_secret_of(each) for each in pod["spec"]["volumes"]} - {""}
    assert secrets
    assert all(name.endswith(f"-{pool}") for name in secrets)
    # The agent's container does not mount the keys of its own pool either.
    mounted = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    (keys,) = (each["name"] for each in pod["spec"]["volumes"] if _secret_of(each) == f"dgym-agent-keys-{pool}")
    assert keys not in mounted


def _secret_of(volume):
    return volume.get("secret", {}).get("secretName", "")


def test_a_pod_of_the_right_name_is_not_adopted(release, tenants):
    kubectl = tenants["red"]
    # The Episode waits for its task, so that the tenant creates its pod first.
    kubectl.apply(episode("contested", taskRef={"name": "later"}))
    found = kubectl.get("episode", "contested")
    kubectl.apply(stranger("contested-1", found["metadata"]["uid"]))
    kubectl("wait", "--for=condition=Ready", "pod/contested-1", "--timeout=120s")
    task = {"apiVersion": "dgym.dev/v1alpha1", "kind": "DebugTask", "metadata": {"name": "later"}}
    kubectl.apply(task | {"spec": task_spec(inline_source())})
    status = kubectl.reason("contested", "PodNotCreated")
    assert f"kubectl delete pod contested-1 -n {kubectl.namespace}" in status["message"]
    assert "assignment" not in status

    kubectl("delete", "pod", "contested-1", "--grace-period=1")
    assert kubectl.finished("contested")["reason"] == "Resolved"


def stranger(name, episode_uid):
    """A tenant's imitation of an episode's pod, with the same name, labels and owner reference."""
    owner = {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "Episode",
        "name": "contested",
        "uid": episode_uid,
        "controller": True,
    }
    labels = {
        "app.kubernetes.io/name": "dgym",
        "app.kubernetes.io/component": "sandbox",
        "dgym.dev/episode": "contested",
        "dgym.dev/attempt": "1",
    }
    container = {
        "name": "sidecar",
        "image": _sandbox_image(),
        "command": ["python3", "-m", "http.server", "8080"],
        "securityContext": SECURITY,
    }
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": spec,
    }


def _sandbox_image():
    return os.environ["DGYM_E2E_SANDBOX_IMAGE"]
