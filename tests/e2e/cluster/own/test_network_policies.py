"""Tests of ``helm test``: it passes if the cluster's network enforces NetworkPolicies, and fails if it does not."""

import pytest

from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import ROOT, Failed, new_namespace, run, until

pytestmark = pytest.mark.attack("unenforced")

CLUSTER = str(ROOT / "hack" / "cluster" / "cluster")


@pytest.fixture(scope="module")
def release():
    """A release that serves a single namespace, in which its helm test runs."""
    with new_namespace("e2e-tested") as served, installed("tested", watch=served.namespace, agents=1) as release:
        yield release


@pytest.fixture
def unenforced():
    """Stop the enforcement of policies by the cluster's network during the test."""
    if not run(CLUSTER, "status", check=False).startswith("local:"):
        pytest.skip("only the network of a local cluster can be told not to enforce NetworkPolicies")
    run(CLUSTER, "stop", "policies")
    yield
    run(CLUSTER, "start", "policies")


def helm_test(release):
    return run("helm", "test", release.name, "-n", release.kubectl.namespace, "--logs", check=False, timeout=400)


def test_a_network_that_enforces_policies_passes(release):
    output = helm_test(release)
    assert "Resolved: " in output, output
    assert "does not enforce" not in output


def test_a_network_that_does_not_enforce_policies_fails(release, unenforced):
    output = helm_test(release)
    assert "a program of the sandbox has connected to this pod from" in output
    assert "the network of this cluster does not enforce NetworkPolicies" in output
    with pytest.raises(Failed):
        run("helm", "test", release.name, "-n", release.kubectl.namespace, timeout=400)


def test_helm_test_passes_again_once_policies_are_enforced_again(release):
    output = ""

    def passes():
        nonlocal output
        output = helm_test(release)
        return "Resolved: " in output

    # The network takes a moment to enforce the policies again.
    until(passes, what="helm test to pass again", seconds=300)
    assert "has connected" not in output
