"""Tests of the admission policies with pods of sandbox pools: an Episode may claim such a pod, but no other pod."""

import pytest

from tests.chart.admission import EPISODE, changed, sandbox_pod

pytestmark = pytest.mark.attack("changed-pod")

POOL = {**EPISODE, "kind": "SandboxPool", "name": "warm"}
MERGE = "application/merge-patch+json"


@pytest.fixture
def pods(operator, api_server):
    """Creates a pod with this owner. No policy matches the account. Returns the path for ``refusal``."""
    made = []

    def create(owner):
        name = f"pod-{len(made)}"
        pod = changed(sandbox_pod(operator.namespace), metadata__name=name, metadata__ownerReferences=[owner])
        if owner["kind"] == "SandboxPool":
            pod = changed(pod, **{"metadata__labels__dgym.dev/episode": None})
        made.append(api_server.request("POST", f"/api/v1/namespaces/{operator.namespace}/pods", pod))
        return f"/api/v1/namespaces/{{}}/pods/{name}"

    yield create
    for pod in made:
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{operator.namespace}/pods/{name}"
        api_server.request("DELETE", f"{path}?gracePeriodSeconds=0")


def claim(**changes):
    """The patch with which an Episode claims a pod."""
    labels = {"dgym.dev/episode": "fix", "dgym.dev/attempt": "1"}
    return {"metadata": {"ownerReferences": [EPISODE], "labels": labels, **changes}}


def test_a_pooled_pod_is_allowed_and_can_be_claimed(operator, pods):
    pooled = changed(sandbox_pod(operator.namespace), metadata__ownerReferences__0=POOL)
    assert operator.pod(changed(pooled, **{"metadata__labels__dgym.dev/episode": None})) == ""
    patch = {**claim(), "spec": {"activeDeadlineSeconds": 600}}
    assert operator.refusal(pods(POOL), patch, "PATCH", content_type=MERGE) == ""


@pytest.mark.parametrize(
    ("owner", "patch", "why"),
    [
        (EPISODE, claim(), "may only change a pod of a SandboxPool"),
        ({**EPISODE, "kind": "Job", "apiVersion": "batch/v1"}, claim(), "may only change a pod of a SandboxPool"),
        (POOL, {"metadata": {"labels": {"x": "y"}}}, "must have exactly one owner, an Episode"),
        (
            POOL,
            claim(labels={"app.kubernetes.io/component": "agent"}),
            "must have the labels by which the NetworkPolicy selects sandboxes",
        ),
    ],
    ids=["an episode's", "a Job's", "for the pool", "as an agent"],
)
def test_no_other_pod_is_changed(operator, pods, owner, patch, why):
    assert why in operator.refusal(pods(owner), patch, "PATCH", content_type=MERGE)


def test_a_claim_cannot_change_the_containers_of_a_pod(operator, pods, api_server):
    path = pods(POOL)
    pod = api_server.request("GET", path.format(operator.namespace))
    containers = [{**each, "image": "another"} for each in pod["spec"]["containers"]]
    patch = {**claim(), "spec": {"containers": containers}}
    assert "must not change its containers" in operator.refusal(path, patch, "PATCH", content_type=MERGE)
