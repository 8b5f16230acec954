"""Tests of the configuration of the components, and of the binaries and the image that are built for them."""

import base64
import hashlib
import ipaddress
import json
import tarfile
import tomllib
from pathlib import Path

import pytest

from hack.cluster import components, machine
from hack.cluster.build import (
    BINARIES,
    HELM_VERSION,
    KUBERNETES_VERSION,
    MODULES,
    PAUSE,
    PROMETHEUS,
    binaries_directory,
    build,
    recipes,
)
from hack.cluster.components import storage_class, volume
from hack.cluster.controlplane import ApiServerFiles, api_server_command, etcd_command, kubeconfig
from hack.cluster.images import pause_archive
from hack.cluster.kind import NODE_IMAGE, configuration
from hack.cluster.machine import ClusterError


def test_containerd_reads_its_configuration() -> None:
    text = components.containerd(
        Path("/s/c.sock"), "native", Path("/usr/lib/cni"), Path("/s/cni"), Path("/s/registries")
    )
    document = tomllib.loads(text)
    cri = document["plugins"]["io.containerd.grpc.v1.cri"]
    assert document["grpc"]["address"] == "/s/c.sock"
    assert (cri["restrict_oom_score_adj"], cri["containerd"]["snapshotter"]) == (True, "native")
    assert cri["registry"] == {"config_path": "/s/registries"}
    assert cri["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": "/s/cni"}


def test_kubelet_never_removes_images_and_takes_old_control_groups() -> None:
    document = json.loads(components.kubelet(Path("/s"), Path("/s/c.sock"), Path("/s/pki")))
    assert document["imageGCHighThresholdPercent"] == 100
    assert set(document["evictionHard"].values()) == {"0%"}
    assert (document["failCgroupV1"], document["cgroupRoot"]) == (False, "/dgym-cluster")
    assert document["authentication"]["anonymous"] == {"enabled": False}


@pytest.mark.parametrize("filtered", [True, False])
def test_services_translate_sources_only_where_they_must(filtered: bool) -> None:
    document = json.loads(components.kube_proxy(Path("/k"), bridge_filtered=filtered))
    assert document["iptables"]["masqueradeAll"] is not filtered


def test_the_networks_do_not_overlap() -> None:
    link = ipaddress.ip_network(f"{machine.HOST}/{machine.LINK_PREFIX}", strict=False)
    pods, services = ipaddress.ip_network(machine.PODS), ipaddress.ip_network(machine.SERVICES)
    assert ipaddress.ip_address(machine.NODE) in link
    assert next(services.hosts()) == ipaddress.ip_address(machine.API_SERVICE)
    assert not any((link.overlaps(pods), link.overlaps(services), pods.overlaps(services)))
    assert json.loads(components.cni())["plugins"][0]["ipam"]["ranges"] == [[{"subnet": machine.PODS}]]


def test_the_api_server_checks_and_audits() -> None:
    files = ApiServerFiles(Path("/s"))
    command = api_server_command(
        Path("/b/kube-apiserver"),
        files,
        etcd_port=1,
        address="127.0.0.1",
        port=2,
        services="10.0.0.0/24",
        extra=["--x"],
    )
    assert "--authorization-mode=Node,RBAC" in command
    assert "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement" in command
    assert "--audit-log-path=/s/audit.log" in command
    assert command[-1] == "--x"
    assert "--listen-client-urls=http://127.0.0.1:1" in etcd_command(Path("/b/etcd"), Path("/s/etcd"), 1)


def test_a_kubeconfig_contains_the_certificate_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("authority")
    document = json.loads(kubeconfig("https://h:1", tmp_path / "ca.crt", {"token": "t"}))
    assert base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"]) == b"authority"


def test_kind_gets_the_same_admission_and_audit_from_a_pinned_image() -> None:
    node = configuration(Path("/c/audit"))["nodes"][0]
    patch = json.loads(node["kubeadmConfigPatches"][0])
    assert "OwnerReferencesPermissionEnforcement" in patch["apiServer"]["extraArgs"]["enable-admission-plugins"]
    assert node["extraMounts"][0]["hostPath"] == "/c/audit"
    assert "@sha256:" in NODE_IMAGE


def test_kubernetes_is_built_by_one_command_and_stamped() -> None:
    found = recipes((*BINARIES, PAUSE))
    assert sorted(name for what in found for name in what.names) == sorted((*BINARIES, PAUSE))
    kubernetes = next(what for what in found if "kubelet" in what.names)
    command, environment = kubernetes.command(Path("/o"))
    assert command[:3] == ["go", "build", "-trimpath"]
    assert f"gitVersion={KUBERNETES_VERSION}" in " ".join(command)
    assert "/o/" in command
    assert environment["CGO_ENABLED"] == "0"
    etcd, _ = next(what for what in found if what.names == ("etcd",)).command(Path("/o"))
    assert "/o/etcd" in etcd
    helm, environment = next(what for what in found if what.names == ("helm",)).command(Path("/o"))
    assert helm[-1].endswith(HELM_VERSION)
    assert environment["GOBIN"] == "/o"


def test_prometheus_is_built_with_the_discovery_of_kubernetes() -> None:
    (recipe,) = recipes(PROMETHEUS)
    command, _ = recipe.command(Path("/o"))
    assert "enable_kubernetes_sd" in " ".join(command)
    assert "/o/" in command
    for name in PROMETHEUS:
        assert f"prometheus/cmd/{name}" in command[-1] + command[-2]
        assert f"prometheus/cmd/{name}" in (MODULES / "prometheus" / "tools.go").read_text()


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH and an empty cache. Return the path at which a test writes its fake `go`."""
    program = tmp_path / "path" / "go"
    program.parent.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def test_binaries_are_built_once(fake_go: Path) -> None:
    fake_go.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho binary >"$2"; chmod +x "$2"\n')
    fake_go.chmod(0o755)
    directory = build(["etcd"])
    assert (directory / "etcd").read_text() == "binary\n"
    fake_go.write_text("#!/bin/sh\nexit 1\n")
    assert build(["etcd"]) == directory


@pytest.mark.thorough
def test_a_failed_build_shows_the_end_of_its_log_and_leaves_no_binary(fake_go: Path) -> None:
    fake_go.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho half >"$2"; echo no space >&2; exit 1\n')
    fake_go.chmod(0o755)
    with pytest.raises(ClusterError, match=r"building etcd failed(.|\n)*no space"):
        build(["etcd"])
    assert not list(binaries_directory().iterdir())


def test_without_go_the_message_names_the_program_to_build(fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_go.parent))
    with pytest.raises(ClusterError, match=r"kubelet must be built from source.*no `go` on PATH"):
        build(["kubelet"])


def test_the_image_that_holds_a_pod_has_the_digest_of_its_layer(tmp_path: Path) -> None:
    (tmp_path / "pause").write_bytes(b"program")
    pause_archive(tmp_path / "image.tar", "localhost/pause:1", tmp_path / "pause")
    with tarfile.open(tmp_path / "image.tar") as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    digest = hashlib.sha256(read["layer.tar"]).hexdigest()
    assert json.loads(read["config.json"])["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert json.loads(read["manifest.json"])[0]["RepoTags"] == ["localhost/pause:1"]


def test_claims_without_a_class_find_a_volume() -> None:
    assert storage_class()["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    spec = volume(3, Path("/v"), "dgym")["spec"]
    assert spec["storageClassName"] == storage_class()["metadata"]["name"]
    assert spec["local"]["path"] == "/v/local-03"
