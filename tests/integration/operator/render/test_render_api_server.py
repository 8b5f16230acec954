"""Tests that a real API server accepts the rendered pods, with Pod Security."""

import urllib.error
import uuid

import msgspec
import pytest

from dgym.api import PodOverrides, Resources, Toleration
from dgym_operator.render import Renderer

OVERRIDES = PodOverrides(
    resources=Resources(requests={"cpu": "1", "memory": "3Gi"}, limits={"ephemeral-storage": "1Gi"}),
    node_selector={"pool": "sandboxes"},
    tolerations=(
        Toleration(key="dedicated", value="dgym", effect="NoSchedule"),
        Toleration(key="node.kubernetes.io/unreachable", operator="Exists", effect="NoExecute", toleration_seconds=9),
    ),
    labels={"team": "research"},
    annotations={"example.com/note": 'a "quoted"\nnote {{ 7 }} \N{GRINNING FACE}'},
)


@pytest.fixture(scope="module")
def secured(api_server):
    """A function that returns a namespace that enforces the given Pod Security level."""
    names = {}

    def namespace(level):
        if level not in names:
            names[level] = f"render-{level}-{uuid.uuid4().hex[:8]}"
            labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
            body = {"metadata": {"name": names[level], "labels": labels}}
            api_server.request("POST", "/api/v1/namespaces", body)
        return names[level]

    return namespace


@pytest.fixture
def create(api_server):
    """Return the pod that would be stored. The server checks field names strictly, as for the controller's requests."""

    def create(pod):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All&fieldValidation=Strict"
        try:
            return api_server.request("POST", path, pod)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{error.code}: {error.read().decode()}")

    return create


@pytest.mark.parametrize("overrides", [PodOverrides(), OVERRIDES], ids=["plain", "overrides"])
@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "baked"])
@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_pods_are_accepted_where_their_level_is_enforced(create, secured, make_context, template, delivered, overrides):
    context = make_context(namespace=secured(template), delivered=delivered, overrides=overrides)
    pod = Renderer().render(template, context)
    stored = create(pod)
    assert covers(stored, pod), "the server keeps what it is given"


def test_baseline_is_not_restricted(api_server, secured, make_context):
    pod = Renderer().render("baseline", make_context(namespace=secured("restricted")))
    with pytest.raises(urllib.error.HTTPError) as caught:
        api_server.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All", pod)
    assert caught.value.code == 403
    assert "violates PodSecurity" in caught.value.read().decode()


def test_hostile_text_is_refused_or_stored_as_text(api_server, secured, make_context):
    hostile = 'x", "securityContext": {"privileged": true}, "y": "\nhostNetwork: true\n{{ 7 * 7 }}$(TMPDIR)'
    task = {"image": "localhost/x:1", "interpreter": hostile, "working_directory": "/work/" + hostile.replace(":", "")}
    context = make_context(namespace=secured("restricted"), task=task, delivered=False)
    stored = api_server.request(
        "POST", f"/api/v1/namespaces/{context.namespace}/pods?dryRun=All", Renderer().render("restricted", context)
    )
    sandbox = next(each for each in stored["spec"]["containers"] if each["name"] == "sandbox")
    assert sandbox["command"][0] == hostile.replace("$", "$$")
    assert "privileged" not in sandbox["securityContext"]
    assert not stored["spec"].get("hostNetwork")


def covers(stored, given):
    """True if ``stored`` contains every field of ``given``. ``stored`` may also have defaults."""
    if isinstance(given, dict):
        return all(covers(stored.get(key, type(value)()), value) for key, value in given.items())
    if isinstance(given, list):
        # The API server may append volumes and tolerations.
        return len(stored) >= len(given) and all(map(covers, stored, given))
    return stored == given or msgspec.json.encode(stored) == msgspec.json.encode(given)
