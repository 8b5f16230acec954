"""Tests of a release: objects that it leaves behind, roles, notes and hooks."""

import pytest


def test_crds_and_results_are_kept_by_default(render):
    kept = {"helm.sh/resource-policy": "keep"}
    for crd in render("default").of("CustomResourceDefinition"):
        assert crd["metadata"]["annotations"] == kept
    for crd in render("trial").of("CustomResourceDefinition"):
        assert "annotations" not in crd["metadata"]
    assert render("default").one("PersistentVolumeClaim", "dgym-results")["metadata"]["annotations"] == kept
    claim = render("shared-volume").one("PersistentVolumeClaim", "episodes-results")
    assert not claim["metadata"]["annotations"]


def test_a_namespaced_release_has_no_cluster_scoped_objects(render):
    release = render("namespaced")
    assert all("namespace" in each["metadata"] for each in release.objects)
    served = {role["metadata"]["namespace"] for role in release.of("Role")}
    assert served == {"team-a", "team-b", "dgym-system"}


def test_requests_of_the_operator_have_their_own_priority_level(render):
    release = render("default")
    (level,) = release.of("PriorityLevelConfiguration")
    account = {"name": "dgym-operator", "namespace": "dgym-system"}
    levels = {}
    for schema in release.of("FlowSchema"):
        (rule,) = schema["spec"]["rules"]
        assert [subject["serviceAccount"] for subject in rule["subjects"]] == [account]
        levels[schema["metadata"]["name"]] = schema["spec"]["priorityLevelConfiguration"]["name"]
    name = level["metadata"]["name"]
    assert levels == {name: name, f"{name}-leases": "leader-election"}
    assert not render("default", "operator.api.fairness=false").of("FlowSchema")


def test_hooks_are_not_in_a_served_namespace(render):
    # A hook in a deleted namespace would stop the uninstallation: Helm stored the hooks when the namespace existed.
    hooks = [each for each in render("namespaced").objects if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    deletion = [each for each in hooks if each["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"]
    assert {each["metadata"]["namespace"] for each in deletion} == {"dgym-system"}


@pytest.mark.parametrize("values", ["default", "namespaced"])
def test_no_role_has_a_wildcard_or_reads_secrets_of_others(render, values):
    release = render(values)
    for role in (*release.of("Role"), *release.of("ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            if "secrets" in rule["resources"]:
                own = role["metadata"].get("namespace") == "dgym-system"
                # The other Secrets are those of external drivers, which are created in every served namespace.
                assert own or (rule["verbs"] == ["create"] and role["metadata"]["name"].startswith("dgym"))
                assert rule["verbs"] == ["create"] or "resourceNames" in rule


def test_the_roles_of_a_namespace_are_those_of_the_cluster(render):
    (cluster,) = (
        role for role in render("default").of("ClusterRole") if role["metadata"]["name"].endswith("-operator")
    )
    for role in render("namespaced").of("Role"):
        if role["metadata"]["name"] == "dgym-operator-dgym-system":
            assert role["rules"] == cluster["rules"]


def test_a_second_release_in_the_namespace_is_refused_by_helm(render):
    # Both releases would use the same lease and Secrets. An object with the same name stops the second release.
    first, second = render("default"), render("default", release="other")
    same = [
        each["metadata"]["name"]
        for each in second.objects
        if "namespace" in each["metadata"] and each["metadata"].get("annotations", {}).get("helm.sh/hook") is None
        for of_first in first.of(each["kind"])
        if of_first["metadata"]["name"] == each["metadata"]["name"]
    ]
    assert same == ["dgym-results", "dgym-operator", "dgym-operator"]


def test_agent_pods_with_a_disk_of_one_node_use_the_strategy_recreate(render):
    assert render("default").one("Deployment", "dgym-agents")["spec"]["strategy"] == {"type": "Recreate"}
    assert "strategy" not in render("shared-volume").one("Deployment", "episodes-agents")["spec"]


def test_agents_have_time_to_drain(render):
    pod = render("default", "agents.drainSeconds=100").one("Deployment", "dgym-agents")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 100


def test_budgets_never_block_the_drain_of_a_node(render):
    assert not render("trial").of("PodDisruptionBudget")
    assert [each["metadata"]["name"] for each in render("production").of("PodDisruptionBudget")] == [
        "dgym-agents",
        "dgym-operator",
    ]


def test_the_view_and_edit_roles_are_aggregated(render):
    roles = {role["metadata"]["name"].rpartition("-")[2]: role for role in render("default").of("ClusterRole")}
    assert "rbac.authorization.k8s.io/aggregate-to-view" in roles["view"]["metadata"]["labels"]
    assert "rbac.authorization.k8s.io/aggregate-to-edit" in roles["edit"]["metadata"]["labels"]
    written = {verb for rule in roles["view"]["rules"] for verb in rule["verbs"]}
    assert written == {"get", "list", "watch"}


def test_the_view_role_reads_results_and_the_operator_may_review_access(render):
    release = render("production")
    roles = {role["metadata"]["name"].rpartition(":")[2]: role["rules"] for role in release.of("ClusterRole")}
    reading = {"apiGroups": ["dgym.dev"], "resources": ["episodes/results"], "verbs": ["get"]}
    assert reading in roles["dgym-view"]
    assert roles["dgym-results"] == [reading]
    asked = {
        (resource, verb) for rule in roles["dgym-reviews"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert asked == {("tokenreviews", "create"), ("subjectaccessreviews", "create")}
    reaching = release.one("Role", "dgym-results-readers")
    assert {(*rule["resources"], *rule["verbs"]) for rule in reaching["rules"]} == {
        ("pods", "list"),
        ("pods/portforward", "get", "create"),
    }
    assert [each["name"] for each in release.one("RoleBinding", "dgym-results-readers")["subjects"]] == ["team-a"]
    assert not [role for role in render("default").of("Role") if role["metadata"]["name"] == "dgym-results-readers"]


def test_without_roles_no_object_requires_a_role(render):
    # A hook without rights would fail. Then every uninstallation would fail.
    release = render("default", "rbac.create=false", "rbac.aggregate=false")
    kinds = {each["kind"] for each in release.objects}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert release.one("Pod", "dgym-test")["spec"]["serviceAccountName"] == "dgym-test"


def test_the_notes_name_the_next_command(helm):
    # Only an installation prints the notes; the client-side dry run stops before it changes anything.
    done = helm("install", "dgym", "charts/dgym", "--namespace", "team", "--dry-run=client")
    assert "helm test dgym --namespace team --logs" in done.stdout
    assert "No models are configured" in done.stdout


KEDA = (
    "agents.autoscaling.enabled=true,agents.autoscaling.type=keda,results.s3.bucket=abc,"
    "agents.autoscaling.prometheusAddress=http://prometheus"
)
SCRAPED = ("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true", "metrics.annotations=true")


@pytest.mark.parametrize("change", SCRAPED)
def test_the_notes_agree_with_the_network_policies_about_prometheus(helm, change):
    def notes(*changes):
        sets = [part for each in changes for part in ("--set", each)]
        return helm("install", "dgym", "charts/dgym", "--namespace", "team", "--dry-run=client", *sets).stdout

    warning = "refuse Prometheus: set networkPolicy.metricsNamespace"
    assert warning in notes(change)
    assert warning not in notes(change, "networkPolicy.metricsNamespace=monitoring")
    assert warning not in notes(change, "networkPolicy.enabled=false")
    assert warning not in notes()


@pytest.mark.parametrize(
    ("change", "kind", "owner"),
    [
        ("metrics.serviceMonitor.enabled=true", "monitoring.coreos.com/v1/ServiceMonitor", "the Prometheus operator"),
        ("metrics.podMonitor.enabled=true", "monitoring.coreos.com/v1/PodMonitor", "the Prometheus operator"),
        ("metrics.rules.enabled=true", "monitoring.coreos.com/v1/PrometheusRule", "the Prometheus operator"),
        (KEDA, "keda.sh/v1alpha1/ScaledObject", "KEDA"),
    ],
)
def test_a_kind_that_the_cluster_lacks_is_explained(helm, api_server, change, kind, owner):
    cluster = ("--kubeconfig", str(api_server.kubeconfig))
    done = helm(
        "install", "dgym", "charts/dgym", "--namespace", "default", "--dry-run=server", *cluster, "--set", change
    )
    assert f"needs the kind {kind}, which this cluster does not have. Install {owner} first" in done.stderr
    # Offline, the kinds of the cluster are not checked. With the kind in ``--api-versions``, nothing is missing.
    assert helm.template("--set", change).returncode == 0
    known = ("--api-versions", "apps/v1/Deployment", "--api-versions", kind)
    assert helm.template(*known, "--set", change).returncode == 0


def test_agent_pods_are_replaced_with_the_models_of_a_secret(helm, api_server, api_namespace):
    secrets = f"/api/v1/namespaces/{api_namespace}/secrets"

    def checksum(namespace=api_namespace):
        # Other tests may have created the definitions on this server.
        values = "agents.existingSecret=models,crds.enabled=false"
        flags = ("--dry-run=server", "--kubeconfig", str(api_server.kubeconfig), "--set", values)
        done = helm("install", "dgym", "charts/dgym", "--namespace", namespace, *flags)
        assert done.returncode == 0, done.stderr
        _, found, rest = done.stdout.partition("checksum/models: ")
        return rest.partition("\n")[0] if found else None

    assert checksum() is None
    api_server.request("POST", secrets, {"metadata": {"name": "models"}, "stringData": {"llm.yaml": "a: {model: a}"}})
    first = checksum()
    api_server.request(
        "PUT", f"{secrets}/models", {"metadata": {"name": "models"}, "stringData": {"llm.yaml": "b: {}"}}
    )
    assert first
    assert checksum() not in (first, None)


def test_a_test_that_was_interrupted_leaves_no_config_map(render):
    # `helm uninstall` removes objects that are not hooks, also after an interrupted test.
    for made in render("default").of("ConfigMap"):
        assert "helm.sh/hook" not in made["metadata"].get("annotations", {})
