import pytest

from dgym.kube import EPISODES, LEASES, NAMESPACES, PODS


def test_urls_of_collections_objects_and_parts() -> None:
    assert PODS.url() == "/api/v1/pods"
    assert PODS.url("ns") == "/api/v1/namespaces/ns/pods"
    assert PODS.url("ns", "a") == "/api/v1/namespaces/ns/pods/a"
    assert EPISODES.url("ns", "a", "status") == "/apis/dgym.dev/v1alpha1/namespaces/ns/episodes/a/status"
    assert LEASES.url("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    assert NAMESPACES.url(name="ns") == "/api/v1/namespaces/ns"


def test_a_name_cannot_lead_to_another_url() -> None:
    assert PODS.url("ns", "../secrets/x") == "/api/v1/namespaces/ns/pods/..%2Fsecrets%2Fx"


def test_an_object_of_a_namespaced_kind_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="namespace"):
        PODS.url(None, "a")


def test_a_manifest_has_api_version_and_kind() -> None:
    assert EPISODES.manifest(metadata={"name": "a"}) == {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "Episode",
        "metadata": {"name": "a"},
    }
    assert PODS.manifest()["apiVersion"] == "v1"
