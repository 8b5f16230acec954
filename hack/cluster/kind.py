"""A kind cluster in Docker, with its own name and kubeconfig."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.cluster.build import build, cache_directory
from hack.cluster.controlplane import AUDIT_POLICY
from hack.cluster.machine import ClusterError, run, say

CLUSTER_NAME = "dgym-e2e"
# The digest is from the release notes of kind v0.30.0. Tags of node images move.
NODE_IMAGE = "kindest/node:v1.34.0@sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"
CREATE_SECONDS = 600
AUDIT_DIRECTORY = "/var/log/dgym-audit"


def configuration(audit: Path) -> dict[str, Any]:
    """Return a configuration: one node, the admission plugins of the local cluster, and an audit log in ``audit``."""
    patch = {
        "kind": "ClusterConfiguration",
        "apiServer": {
            "extraArgs": {
                "enable-admission-plugins": "NodeRestriction,OwnerReferencesPermissionEnforcement",
                "audit-policy-file": f"{AUDIT_DIRECTORY}/policy.json",
                "audit-log-path": f"{AUDIT_DIRECTORY}/audit.log",
            },
            "extraVolumes": [
                {
                    "name": "audit",
                    "hostPath": AUDIT_DIRECTORY,
                    "mountPath": AUDIT_DIRECTORY,
                    "readOnly": False,
                    "pathType": "DirectoryOrCreate",
                }
            ],
        },
    }
    node = {
        "role": "control-plane",
        "kubeadmConfigPatches": [json.dumps(patch)],
        "extraMounts": [{"hostPath": str(audit), "containerPath": AUDIT_DIRECTORY}],
    }
    return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": [node]}


class KindCluster:
    """The user's kind cluster with the name ``dgym-e2e``."""

    name = "kind"

    def __init__(self) -> None:
        self._directory = cache_directory().parent / "kind"

    @property
    def kubeconfig(self) -> Path:
        """Path of a separate kubeconfig, so that the user's current context does not change."""
        return self._directory / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """Path of the log of all writes since the start. The API server writes it as root."""
        return self._directory / "audit" / "audit.log"

    def _kind(self, *arguments: str | Path, timeout: float = 120) -> str:
        binary = shutil.which("kind") or build(("kind",)) / "kind"
        return run(binary, *arguments, timeout=timeout)

    def running(self) -> bool:
        """Return True if kind lists the cluster."""
        return CLUSTER_NAME in self._kind("get", "clusters").split()

    def up(self) -> None:
        """Create the cluster unless it exists."""
        (self._directory / "audit").mkdir(parents=True, exist_ok=True)
        if self.running():
            say("runs already")
            self._kind("export", "kubeconfig", "--name", CLUSTER_NAME, "--kubeconfig", self.kubeconfig)
            return
        (self._directory / "audit" / "policy.json").write_text(json.dumps(AUDIT_POLICY))
        config = self._directory / "config.json"
        config.write_text(json.dumps(configuration(self._directory / "audit")))
        say(f"kind creates {CLUSTER_NAME} from {NODE_IMAGE} …")
        options = ("--name", CLUSTER_NAME, "--image", NODE_IMAGE, "--config", config, "--wait", "180s")
        self._kind("create", "cluster", *options, "--kubeconfig", self.kubeconfig, timeout=CREATE_SECONDS)

    def down(self) -> None:
        """Delete the cluster and its directory."""
        self._kind("delete", "cluster", "--name", CLUSTER_NAME, "--kubeconfig", self.kubeconfig)
        shutil.rmtree(self._directory)

    def status(self) -> str:
        """Return ``running`` or ``not running``."""
        return "running" if self.running() else "not running"

    def load(self, names: Sequence[str]) -> None:
        """Load images of Docker into the node, or images of podman with an archive."""
        if _docker_has(names):
            self._kind("load", "docker-image", *names, "--name", CLUSTER_NAME, timeout=CREATE_SECONDS)
        elif shutil.which("podman"):
            archive = self._directory / f"images-{os.getpid()}.tar"
            try:
                run("podman", "save", "--multi-image-archive", "-o", archive, *names, timeout=CREATE_SECONDS)
                self._kind("load", "image-archive", archive, "--name", CLUSTER_NAME, timeout=CREATE_SECONDS)
            finally:
                archive.unlink(missing_ok=True)
        else:
            raise ClusterError(f"docker has not all of {', '.join(names)}: build them with `hack/images` first")


def _docker_has(names: Sequence[str]) -> bool:
    commands = (["docker", "image", "inspect", name] for name in names)
    return all(
        subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0 for command in commands
    )
