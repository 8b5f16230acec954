"""Test of the uninstallation of a release while it runs an episode."""

from tests.e2e.cluster.episodes import begin
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import new_namespace, run


def test_an_uninstallation_in_the_middle():
    """Only the CRDs are left, and both namespaces can be deleted."""
    with new_namespace("e2e-abandoned") as kubectl:
        with installed("abandoned", watch=kubectl.namespace, agents=1):
            name = begin(kubectl, steps=200)
        left = run("kubectl", "get", "clusterroles,clusterrolebindings", "-o", "name")
        assert "abandoned" not in left
        assert kubectl.items("networkpolicies") == []
        assert kubectl.get("episode", name) is not None
        assert not kubectl.items("pods")
    assert not run("kubectl", "get", "namespace", kubectl.namespace, "--ignore-not-found").strip()
