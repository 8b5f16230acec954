"""Tests of the pods of the two shipped templates."""

import kubernetes_validate
import msgspec
import pytest

from dgym.api import PodOverrides, Resources, Toleration
from dgym.sidecar.settings import read_settings
from dgym.wire import calls
from dgym_operator.render._context import InvalidOverride, TemplateError
from dgym_operator.render._environment import SHIPPED
from dgym_operator.render._renderer import Renderer
from dgym_operator.settings import Settings

SHAPES = [
    pytest.param(template, delivered, id=f"{template}-{'delivered' if delivered else 'baked'}")
    for template in ("restricted", "baseline")
    for delivered in (True, False)
]
OVERRIDES = PodOverrides(
    resources=Resources(requests={"cpu": "2"}, limits={"memory": "4Gi", "nvidia.com/gpu": "1"}),
    node_selector={"pool": "sandboxes"},
    tolerations=(Toleration(key="dedicated", value="dgym", effect="NoSchedule"), Toleration(operator="Exists")),
    runtime_class_name="gvisor",
    labels={"team": "research"},
    annotations={"example.com/note": 'a "quoted"\nnote'},
)


def mounts(container):
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
@pytest.mark.parametrize("overrides", [PodOverrides(), OVERRIDES], ids=["plain", "overrides"])
def test_pods_follow_the_schema_of_kubernetes(renderer, make_context, template, delivered, overrides):
    pod = renderer.render(template, make_context(delivered=delivered, overrides=overrides))
    kubernetes_validate.validate(pod, "1.35", strict=True)


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_a_pod_has_three_containers_and_no_more_init_containers_than_it_needs(
    renderer, make_context, template, delivered
):
    spec = renderer.render(template, make_context(delivered=delivered))["spec"]
    assert [each["name"] for each in spec["containers"]] == ["sidecar", "sandbox", "verifier"]
    copied = template == "restricted" and not delivered
    assert [each["name"] for each in spec.get("initContainers", ())] == (["install", "copy"] if copied else [])


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_the_runner_is_installed_before_anything_runs_it(renderer, make_context, template, delivered):
    """An init container installs the runner if another init container runs it.

    Otherwise the ``postStart`` hook of the first container does. The kubelet waits for the hook.
    """
    spec = renderer.render(template, make_context(delivered=delivered))["spec"]
    install = ["python3", "-m", "dgym.sidecar.install", "/run/dgym/runner", "/run/dgym/etc"]
    hook = spec["containers"][0].get("lifecycle", {}).get("postStart", {}).get("exec", {}).get("command")
    first = spec.get("initContainers", [{}])[0].get("command")
    assert (hook is None) != (first is None)
    assert install in (hook, first)


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_every_mount_has_its_volume_and_every_volume_a_mount(renderer, make_context, template, delivered):
    spec = renderer.render(template, make_context(delivered=delivered))["spec"]
    mounted = {
        name for each in [*spec["containers"], *spec.get("initContainers", ())] for name in mounts(each).values()
    }
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert all(set(volume) == {"name", "emptyDir"} and volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"])


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_the_pod_has_no_token_service_links_or_host_namespaces(renderer, make_context, template, delivered):
    spec = renderer.render(template, make_context(delivered=delivered))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["shareProcessNamespace"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 5
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_each_runner_mounts_only_its_own_socket(renderer, make_context, container, template, delivered):
    pod = renderer.render(template, make_context(delivered=delivered))
    for name, other in (("sandbox", "verifier"), ("verifier", "sandbox")):
        seen = mounts(container(pod, name))
        assert seen[f"/run/dgym/{name}"] == f"{name}-socket"
        assert not {f"{other}-socket", f"{other}-tmp", f"{other}-shm", "state"} & set(seen.values())
        assert seen["/dev/shm"] == f"{name}-shm"
        socket = container(pod, name)["command"][-1]
        assert socket == f"/run/dgym/{name}/runner.sock"
    seen = mounts(container(pod, "sidecar"))
    assert (seen["/run/dgym/sandbox"], seen["/run/dgym/verifier"]) == ("sandbox-socket", "verifier-socket")
    assert "workspace" not in seen.values()


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_sandbox_and_verifier_share_no_file_that_the_runtime_makes_for_the_pod(
    renderer, make_context, container, template, delivered
):
    pod = renderer.render(template, make_context(delivered=delivered))
    for name in ("sandbox", "verifier"):
        copies = {
            each["mountPath"]: (each["subPath"], each["readOnly"])
            for each in container(pod, name)["volumeMounts"]
            if each["name"] == "etc"
        }
        assert copies == {f"/etc/{file}": (file, True) for file in ("hosts", "hostname", "resolv.conf")}
    installer = container(pod, "install" if "initContainers" in pod["spec"] else "sidecar")
    assert mounts(installer)["/run/dgym/etc"] == "etc"


@pytest.mark.parametrize(("template", "delivered"), SHAPES)
def test_only_the_installer_can_write_the_runner_and_the_names_of_hosts(renderer, make_context, template, delivered):
    spec = renderer.render(template, make_context(delivered=delivered))["spec"]
    installer = "install" if "initContainers" in spec else "sidecar"
    for each in [*spec["containers"], *spec.get("initContainers", ())]:
        for mount in each["volumeMounts"]:
            if mount["name"] in ("runner", "etc"):
                assert mount.get("readOnly", False) is (each["name"] != installer)


def test_sandbox_and_verifier_have_the_repository_at_the_same_path(renderer, make_context, container):
    for delivered in (True, False):
        pod = renderer.render("restricted", make_context(task={"working_directory": "/testbed"}, delivered=delivered))
        assert mounts(container(pod, "sandbox"))["/testbed"] == "workspace"
        assert mounts(container(pod, "verifier"))["/testbed"] == "verifier-workspace"
    seen = mounts(container(pod, "copy"))
    assert "/testbed" not in seen, "the image's own directory is what is copied"
    assert set(seen.values()) == {"runner", "workspace", "verifier-workspace"}


def test_baseline_leaves_a_repository_of_the_image_where_it_is(renderer, make_context, container):
    pod = renderer.render("baseline", make_context(delivered=False))
    assert "/workspace" not in mounts(container(pod, "sandbox"))
    assert not [volume for volume in pod["spec"]["volumes"] if "workspace" in volume["name"]]


def test_restricted_runs_everything_as_an_ordinary_user(renderer, make_context, container):
    pod = renderer.render("restricted", make_context(delivered=False))
    assert pod["spec"]["securityContext"] == {
        "fsGroup": 10000,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    users = {"sandbox": 10001, "verifier": 10001, "copy": 10001, "sidecar": 10002, "install": 10002}
    for name, user in users.items():
        context = container(pod, name)["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (user, 10000)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("directory", ["/workspace", "/tmp", "/tmp/repository"])
def test_restricted_mounts_a_separate_tmp_for_each_container(renderer, make_context, container, directory):
    pod = renderer.render("restricted", make_context(task={"working_directory": directory}))
    for name in ("sandbox", "verifier"):
        expected = f"{name}-tmp" if directory != "/tmp" else {"sandbox": "workspace"}.get(name, "verifier-workspace")
        assert mounts(container(pod, name))["/tmp"] == expected
        paths = [each["mountPath"] for each in container(pod, name)["volumeMounts"]]
        assert len(paths) == len(set(paths))


def test_the_installation_may_let_programs_write_their_image(renderer, make_context, container):
    settings = Settings(sandbox_image="sandbox:1", sidecar_image="sidecar:1", read_only_root_filesystem=False)
    pod = renderer.render("restricted", make_context(settings=settings, delivered=False))
    for name in ("sandbox", "verifier", "copy"):
        assert "readOnlyRootFilesystem" not in container(pod, name)["securityContext"]
    assert "/tmp" not in mounts(container(pod, "sandbox"))


@pytest.mark.parametrize("asked", [True, False])
def test_every_pod_has_a_user_namespace_where_the_installation_asks_for_it(renderer, make_context, templates, asked):
    settings = Settings(sandbox_image="sandbox:1", sidecar_image="sidecar:1", user_namespaces=asked)
    own = templates("own", '{% extends "restricted" %}{% block more %}\n  hostUsers: true\n{% endblock %}')
    for template in ("restricted", "baseline", "own"):
        spec = Renderer(directory=own).render(template, make_context(settings=settings))["spec"]
        assert spec.get("hostUsers", True) is not asked


@pytest.mark.parametrize("field", ["hostNetwork", "hostPID", "hostIPC"])
def test_no_template_shares_a_namespace_of_the_node(make_context, templates, field):
    own = templates("own", f'{{% extends "restricted" %}}{{% block more %}}\n  {field}: true\n{{% endblock %}}')
    with pytest.raises(
        TemplateError, match=f"spec.{field}: the sandbox would share this namespace with the node; remove it"
    ):
        Renderer(directory=own).render("own", make_context())


def test_baseline_keeps_the_users_of_images_and_drops_all_capabilities(renderer, make_context, container):
    pod = renderer.render("baseline", make_context())
    assert "runAsNonRoot" not in pod["spec"]["securityContext"]
    for name in ("sandbox", "verifier"):
        assert container(pod, name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert container(pod, "sidecar")["securityContext"]["runAsUser"] == 10002


def test_the_sidecar_reads_its_environment(renderer, make_context, container):
    pod = renderer.render("restricted", make_context(attempt=3))
    sidecar = container(pod, "sidecar")
    settings = read_settings({each["name"]: each["value"] for each in sidecar["env"]})
    assert (settings.prepare_sha256, settings.drive_sha256, settings.operate_sha256) == ("a" * 64, "b" * 64, "c" * 64)
    assert (settings.episode, settings.attempt) == ("team/fix-ledger", 3)
    assert settings.episode_uid == "5e0c7f0e-0000-4000-8000-000000000001"
    assert settings.port == sidecar["ports"][0]["containerPort"]
    for path, name in ((settings.sandbox_socket, "sandbox"), (settings.verifier_socket, "verifier")):
        assert str(path) == container(pod, name)["command"][-1]
        assert str(path.parent) in mounts(sidecar)
    assert mounts(sidecar)[str(settings.directory)] == "state"
    assert sidecar["terminationMessagePolicy"] == "File"


def test_readiness_is_checked_by_the_call_readyz_without_a_time_limit(renderer, make_context, container):
    sidecar = container(renderer.render("restricted", make_context()), "sidecar")
    for probe in ("startupProbe", "readinessProbe"):
        assert sidecar[probe]["httpGet"] == {"path": calls.READY, "port": sidecar["ports"][0]["name"]}
    week = 7 * 86400
    assert sidecar["startupProbe"]["failureThreshold"] >= week, "no limit below the longest startTimeoutSeconds"
    assert "livenessProbe" not in sidecar, "nothing restarts it, and its end is the attempt's"


def test_the_outcome_fits_into_the_share_of_each_container(renderer, make_context):
    spec = renderer.render("restricted", make_context(delivered=False))["spec"]
    share = 12 * 1024 // (len(spec["containers"]) + len(spec.get("initContainers", ())))
    assert share >= 1024


def test_the_task_and_the_installation_choose_images(renderer, make_context, container):
    settings = Settings(
        sandbox_image="default:1",
        sidecar_image="sidecar:2",
        image_pull_policy="Always",
        image_pull_secrets=("one", "two"),
        image_mirrors={"docker.io": "mirror.example"},
        log_level="DEBUG",
    )
    pod = renderer.render("restricted", make_context(task={"image": "mine:3"}, settings=settings, delivered=False))
    images = {name: container(pod, name)["image"] for name in ("sandbox", "verifier", "copy", "sidecar", "install")}
    assert images == {
        "sandbox": "mirror.example/library/mine:3",
        "verifier": "mirror.example/library/mine:3",
        "copy": "mirror.example/library/mine:3",
        "sidecar": "sidecar:2",
        "install": "sidecar:2",
    }
    assert {each["imagePullPolicy"] for each in pod["spec"]["containers"]} == {"Always"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    pod = renderer.render("restricted", make_context(settings=settings))
    assert container(pod, "sandbox")["image"] == "default:1"


def test_overrides_are_applied_to_the_pod(renderer, make_context, container):
    pod = renderer.render("restricted", make_context(overrides=OVERRIDES))
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "sandboxes"}
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["tolerations"][:2] == [
        {"key": "dedicated", "value": "dgym", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ]
    assert pod["metadata"]["labels"]["team"] == "research"
    assert pod["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/default-container": "sandbox",
        "example.com/note": 'a "quoted"\nnote',
    }
    assert container(pod, "sandbox")["resources"]["requests"]["cpu"] == "2"
    assert container(pod, "verifier")["resources"]["limits"] == container(pod, "sandbox")["resources"]["limits"]


def test_pods_tolerate_a_lost_node_for_60_seconds_by_default(renderer, make_context):
    def toleration_seconds(*tolerations):
        overrides = PodOverrides(tolerations=tolerations)
        given = renderer.render("restricted", make_context(overrides=overrides))["spec"]["tolerations"]
        return {each["key"]: each["tolerationSeconds"] for each in given if "tolerationSeconds" in each}

    both = {"node.kubernetes.io/not-ready": 60, "node.kubernetes.io/unreachable": 60}
    assert toleration_seconds() == both
    own = Toleration(
        key="node.kubernetes.io/unreachable", operator="Exists", effect="NoExecute", toleration_seconds=300
    )
    assert toleration_seconds(own) == both | {"node.kubernetes.io/unreachable": 300}


@pytest.mark.parametrize(
    ("overrides", "fragment"),
    [
        (PodOverrides(labels={"dgym.dev/driver": "x"}), "'dgym.dev/driver' is dgym's own"),
        (PodOverrides(labels={"app.kubernetes.io/component": "agent"}), "component' is dgym's own"),
        (
            PodOverrides(annotations={"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"}),
            "changes the pod's confinement",
        ),
    ],
)
def test_overrides_of_fields_that_dgym_sets_are_refused(renderer, make_context, overrides, fragment):
    with pytest.raises(InvalidOverride, match=fragment):
        renderer.render("restricted", make_context(overrides=overrides))


@pytest.mark.parametrize("path", ["/", "//", "/proc", "/run/dgym/runner", "/run//dgym", "/x/../etc", "/a:b"])
def test_working_directories_that_break_the_container_are_refused(renderer, make_context, path):
    with pytest.raises(InvalidOverride, match="workingDirectory"):
        renderer.render("restricted", make_context(task={"working_directory": path}))


def test_long_names_become_labels_that_differ(renderer, make_context):
    names = ["e" * 200 + end for end in ("-a", "-b")]
    values = [
        renderer.render("restricted", make_context(episode=name))["metadata"]["labels"]["dgym.dev/episode"]
        for name in names
    ]
    assert all(len(value) <= 63 for value in values)
    assert values[0] != values[1]


def test_the_sets_labels_are_kept(renderer, make_context):
    labels = renderer.render("restricted", make_context(labels={"dgym.dev/set": "nightly", "dgym.dev/index": "4"}))[
        "metadata"
    ]["labels"]
    assert labels == {
        "dgym.dev/set": "nightly",
        "dgym.dev/index": "4",
        "app.kubernetes.io/name": "dgym",
        "app.kubernetes.io/component": "sandbox",
        "dgym.dev/episode": "fix-ledger",
        "dgym.dev/attempt": "1",
    }


def test_solution_tests_and_instructions_are_not_in_the_pod(renderer, make_context):
    secret = "what-only-the-verifier-may-know"
    from dgym.api import EnvVar, InlineFile, Scoring

    task = {
        "scoring": Scoring(fail_to_pass=(secret,), hidden_files=(InlineFile(path="t.py", content=secret),)),
        "solution": secret,
        "env": (EnvVar(name="KEY", value=secret),),
        "instructions": secret,
        "setup_commands": (secret,),
    }
    pod = renderer.render("restricted", make_context(task=task, delivered=False))
    assert secret not in msgspec.json.encode(pod).decode()


def test_every_pod_has_the_runtime_class_of_the_installation(renderer, make_context, tmp_path):
    settings = Settings(sandbox_image="s", sidecar_image="s", runtime_class_name="kata")
    for template in ("restricted", "baseline"):
        assert renderer.render(template, make_context(settings=settings))["spec"]["runtimeClassName"] == "kata"
    text = (SHIPPED / "restricted.yaml.j2").read_text().replace("  runtimeClassName: {{ pod.runtimeClassName }}\n", "")
    (tmp_path / "plain.yaml.j2").write_text(text)
    (tmp_path / "own.yaml.j2").write_text(text.replace("spec:\n", "spec:\n  runtimeClassName: gvisor\n", 1))
    own = Renderer(directory=tmp_path)
    assert own.render("plain", make_context(settings=settings))["spec"]["runtimeClassName"] == "kata"
    assert own.render("own", make_context(settings=settings))["spec"]["runtimeClassName"] == "gvisor"
