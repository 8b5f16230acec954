"""Tests of the rendered objects: the API server accepts them, and they fit each other."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "dgym"
VALUES = sorted(path.stem for path in (Path(__file__).parent / "values").glob("*.yaml"))
FOREIGN = ("monitoring.coreos.com/", "apiextensions.k8s.io/")
"""API groups without a published schema. Other tests compare the definitions with the structs that they come from."""

every_values = pytest.mark.parametrize("values", VALUES)


@every_values
def test_helm_lint_passes(helm, values):
    done = helm("lint", "--strict", str(CHART), "--values", str(Path(__file__).parent / "values" / f"{values}.yaml"))
    assert done.returncode == 0, done.stdout


@every_values
def test_objects_fit_the_published_schemas(render, values):
    version = kubernetes_validate.latest_version()
    for made in render(values).objects:
        if not made["apiVersion"].startswith(FOREIGN):
            kubernetes_validate.validate(made, version, strict=True)


@every_values
def test_no_object_is_made_twice(render, values):
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in render(values).objects
    ]
    assert len(names) == len(set(names))


@every_values
def test_every_object_has_the_recommended_labels(render, values):
    for made in render(values).objects:
        labels = made["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "dgym"
        assert labels["app.kubernetes.io/instance"] == "dgym"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


@every_values
def test_selectors_select_the_pods_they_are_for(render, values):
    release = render(values)
    for kind in ("Deployment", "DaemonSet", "PodDisruptionBudget", "NetworkPolicy"):
        for made in release.of(kind):
            selector = made["spec"].get("podSelector") or made["spec"]["selector"]
            selected = [pod for pod in release.pods if _selects(selector["matchLabels"], pod["metadata"]["labels"])]
            assert len(selected) == 1, made["metadata"]["name"]


@every_values
def test_images_have_tags_that_never_move(render, values):
    for pod in render(values).pods:
        for container in pod["spec"]["containers"]:
            _, _, tag = container["image"].rpartition("/")[2].partition("@" if "@" in container["image"] else ":")
            assert tag not in ("", "latest")


@every_values
def test_only_pods_that_use_the_api_server_have_a_token(render, values):
    release = render(values)
    subjects = {subject["name"] for kind in ("RoleBinding", "ClusterRoleBinding") for each in release.of(kind)
                for subject in each["subjects"]}  # fmt: skip
    for agents in _agents(release):
        assert agents["spec"]["automountServiceAccountToken"] is False
        assert agents["spec"]["serviceAccountName"] not in subjects


@every_values
def test_pods_disable_environment_variables_of_services(render, values):
    for pod in render(values).pods:
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "test":
            assert pod["spec"]["enableServiceLinks"] is False


def test_every_mount_has_a_volume(render):
    for values in VALUES:
        for pod in render(values).pods:
            volumes = [volume["name"] for volume in pod["spec"].get("volumes", ())]
            containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
            mounts = {mount["name"] for each in containers for mount in each.get("volumeMounts", ())}
            assert sorted(volumes) == sorted(mounts)


@every_values
def test_agent_containers_do_not_mount_the_key_of_their_pool(render, values):
    for agents in _agents(render(values)):
        pod, suffix = agents["spec"], agents["metadata"]["labels"].get("dgym.dev/pool", "")
        secret = f"dgym-agent-keys-{suffix}".removesuffix("-")
        (volume,) = (each["name"] for each in pod["volumes"] if each.get("secret", {}).get("secretName") == secret)
        (agent,), (tokens,) = pod["containers"], pod["initContainers"]
        assert volume not in {mount["name"] for mount in agent["volumeMounts"]}
        assert volume in {mount["name"] for mount in tokens["volumeMounts"]}


def _agents(release):
    pods = [pod for pod in release.pods if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "agent"]
    assert pods
    return pods


def test_the_api_server_accepts_all_objects(render, api_server, api_namespace):
    # Monitors belong to another project. A plain API server does not have its definitions.
    objects = [
        {
            **each,
            "metadata": {
                **each["metadata"],
                **({"namespace": api_namespace} if "namespace" in each["metadata"] else {}),
            },
        }
        for each in render("production").objects
        if not each["apiVersion"].startswith(FOREIGN[0])
    ]
    # Server-side apply, because other tests may have created the definitions on this server.
    flags = ("--server-side", "--force-conflicts", "--dry-run=server")
    answer = api_server.kubectl("apply", *flags, "-f", "-", stdin=yaml.dump_all(objects))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("serverside-applied (server dry run)") == len(objects)
    assert "Warning" not in answer.stderr


@every_values
def test_pods_pass_the_restricted_standard(render, api_server, api_namespace, values):
    path = f"/api/v1/namespaces/{api_namespace}/pods?dryRun=All"
    for number, pod in enumerate(render(values).pods):
        body = {"metadata": {"name": f"p{number}", "labels": pod["metadata"]["labels"]}, "spec": dict(pod["spec"])}
        # The accounts and priority classes of a release do not exist here. The standard ignores both fields.
        body["spec"].pop("serviceAccountName", None)
        body["spec"].pop("priorityClassName", None)
        assert api_server.request("POST", path, body)["metadata"]["name"] == f"p{number}"


def _selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_images_of_tasks_are_pulled_ahead_without_rights(render):
    (made,) = render("production").of("DaemonSet")
    spec = made["spec"]["template"]["spec"]
    assert [each["image"].rpartition("/")[2] for each in spec["initContainers"]] == ["one:1", "two:1"]
    assert spec["automountServiceAccountToken"] is False
    assert (spec["nodeSelector"], spec["tolerations"][0]["key"]) == ({"pool": "sandboxes"}, "sandboxes")
    closed = render("production").one("NetworkPolicy", made["metadata"]["name"])["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & closed.keys()
    for each in (*spec["initContainers"], *spec["containers"]):
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert render("default").of("DaemonSet") == []


def test_agent_pods_are_scaled_by_the_slots_in_use(render):
    release = render("autoscaled")
    assert "replicas" not in release.one("Deployment", "dgym-agents")["spec"]
    spec = release.one("HorizontalPodAutoscaler", "dgym-agents")["spec"]
    assert (spec["scaleTargetRef"]["name"], spec["minReplicas"], spec["maxReplicas"]) == ("dgym-agents", 2, 8)
    (metric,) = spec["metrics"]
    assert metric["external"]["metric"] == {"name": "dgym_slots", "selector": {"matchLabels": {"state": "used"}}}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "15"}
    assert release.one("PodDisruptionBudget", "dgym-agents")
    assert not render("default").of("HorizontalPodAutoscaler")


def test_the_keda_trigger_queries_the_slots_in_use(render):
    address = "agents.autoscaling.prometheusAddress=http://prometheus.monitoring:9090"
    release = render("autoscaled", "agents.autoscaling.type=keda", address)
    assert not release.of("HorizontalPodAutoscaler")
    spec = release.one("ScaledObject", "dgym-agents")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus.monitoring:9090"
    assert 'dgym_slots{namespace="dgym-system",state="used"}' in trigger["metadata"]["query"]
    assert trigger["metadata"]["threshold"] == "15"


def test_one_metric_cannot_scale_several_pools(helm):
    done = helm.template(
        "--values", str(Path(__file__).parent / "values" / "pools.yaml"), "--set", "agents.autoscaling.enabled=true"
    )
    assert "dgym_slots counts the slots of all pools" in done.stderr


def test_probes_keep_what_is_not_changed(render):
    (operator,) = render("autoscaled").one("Deployment", "dgym-operator")["spec"]["template"]["spec"]["containers"]
    request = {"httpGet": {"path": "/healthz", "port": "http"}}
    assert operator["livenessProbe"] == {**request, "periodSeconds": 10, "timeoutSeconds": 20, "failureThreshold": 6}
    (agent,) = render("autoscaled").one("Deployment", "dgym-agents")["spec"]["template"]["spec"]["containers"]
    assert agent["startupProbe"]["failureThreshold"] == 300
    assert agent["readinessProbe"]["initialDelaySeconds"] == 3
    assert {"name": "mirror", "mountPath": "/etc/pip", "readOnly": True} in agent["volumeMounts"]


@pytest.mark.parametrize(
    ("values", "name", "kept"),
    [("autoscaled", "dgym-operator", 5), ("autoscaled", "dgym-agents", 0), ("default", "dgym-agents", 3)],
)
def test_old_replica_sets_are_bounded(render, values, name, kept):
    assert render(values).one("Deployment", name)["spec"]["revisionHistoryLimit"] == kept
