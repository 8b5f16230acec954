"""Tests of the resources of a sandbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import PodOverrides, Resources, parse_quantity
from dgym_operator.chart_values import SANDBOX, VERIFIER, DefaultResources, decode_resources
from dgym_operator.render import sandbox_resources
from dgym_operator.render._context import verifier_resources as verifier_of

NOTHING = Resources()


def verifier_resources(sandbox):
    return verifier_of(sandbox, VERIFIER)


def merged(task=NOTHING, override=NOTHING):
    return sandbox_resources(task, PodOverrides(resources=override), SANDBOX)


def test_memory_and_disk_are_limited_by_default():
    assert merged() == SANDBOX
    assert {"memory", "ephemeral-storage"} <= SANDBOX.limits.keys()


def test_resources_of_the_episode_precede_those_of_the_task_and_the_defaults():
    task = Resources(requests={"cpu": "1"}, limits={"memory": "3Gi", "cpu": "4"})
    found = merged(task, Resources(limits={"memory": "8Gi"}))
    assert found.limits == {"memory": "8Gi", "cpu": "4", "ephemeral-storage": "10Gi"}
    assert found.requests == {"cpu": "1", "memory": "256Mi", "ephemeral-storage": "0"}


@pytest.mark.parametrize(
    ("override", "request_", "limit"),
    [
        (Resources(limits={"memory": "128Mi"}), "128Mi", "128Mi"),
        (Resources(requests={"memory": "4Gi"}), "4Gi", "4Gi"),
        (Resources(requests={"memory": "4Gi"}, limits={"memory": "1Gi"}), "4Gi", "1Gi"),
    ],
    ids=["a low limit lowers the request", "a high request raises the limit", "a contradiction is the author's"],
)
def test_an_override_of_request_or_limit_adjusts_the_other(override, request_, limit):
    found = merged(override=override)
    assert (found.requests["memory"], found.limits["memory"]) == (request_, limit)


def test_the_verifier_asks_for_little_and_may_take_as_much():
    sandbox = merged(Resources(limits={"cpu": "5m", "memory": "32Mi"}))
    verifier = verifier_resources(sandbox)
    assert verifier.limits == sandbox.limits
    assert verifier.requests == {"cpu": "5m", "memory": "32Mi", "ephemeral-storage": "0"}
    assert verifier_resources(merged()).requests["memory"] == "64Mi"


quantities = st.sampled_from(["5m", "100m", "1", "64Mi", "1Gi", "2G", "3e9", "7k"])
sides = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/device"]), quantities)


@given(task=sides, override=sides, limits=st.tuples(st.booleans(), st.booleans()))
def test_no_request_exceeds_its_limit(task, override, limits):
    """Each layer sets only requests or only limits, so that it cannot contradict itself."""
    layers = [
        Resources(limits=s) if limit else Resources(requests=s)
        for s, limit in zip((task, override), limits, strict=True)
    ]
    found = merged(*layers)
    for each in (found, verifier_resources(found)):
        for name in each.requests.keys() & each.limits.keys():
            assert parse_quantity(each.requests[name]) <= parse_quantity(each.limits[name])
    wanted = found.limits if limits[1] else found.requests
    assert override.items() <= wanted.items()


def test_the_administrators_defaults_take_the_place_of_dgyms():
    text = """{"sandbox": {"requests": {"cpu": 1}, "limits": {"memory": "4Gi", "ephemeral-storage": "1Gi"}},
               "verifier": {"requests": {"cpu": "1m"}}}"""
    found = decode_resources(text)
    assert sandbox_resources(NOTHING, PodOverrides(), found.sandbox) == found.sandbox
    assert verifier_of(found.sandbox, found.verifier).requests == {"cpu": "1m"}
    assert found.sidecar == DefaultResources().sidecar


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sandbox": {"limits": {"memory": "2GB"}}}', "give quantities such as 500m, 2 or 4Gi"),
        ('{"sandbox": {"limits": {"memory": "2Gi"}}}', "sandbox.limits.ephemeral-storage is missing"),
        ('{"sidecar": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}', "request of cpu is above its limit"),
        ('{"verifier": {"limits": {"cpu": "2"}}}', "has the limits of the sandbox"),
        ('{"runner": {}}', "runner"),
    ],
)
def test_wrong_defaults_are_refused_with_the_field(text, message):
    with pytest.raises(ValueError, match=r"sandboxes\.resources") as error:
        decode_resources(text)
    assert message in str(error.value)
