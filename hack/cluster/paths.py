"""Which versions make up the cluster, and where its binaries and its state are kept."""

import os
import shutil
from pathlib import Path

KUBERNETES_VERSION = "v1.35.4"
HELM_VERSION = "v4.3.1"
KIND_VERSION = "v0.30.0"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl")
NODE = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
BINARIES = (*CONTROL_PLANE, *NODE, "helm")


def cache_directory() -> Path:
    """Binaries of this version of Kubernetes: never in the repository, so that every checkout shares them."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dgym" / "cluster" / KUBERNETES_VERSION


def binaries_directory() -> Path:
    """Where builds put their results."""
    return cache_directory() / "bin"


def state_directory() -> Path:
    """Everything the running cluster writes, its images included: on a disk, and short, for the paths of sockets."""
    return Path(os.environ.get("DGYM_CLUSTER_STATE") or "/var/lib/dgym-cluster")


def find_binary(name: str) -> Path | None:
    """The binary from KUBEBUILDER_ASSETS, the cache or PATH, in this order."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for directory in ([Path(assets)] if assets else []) + [binaries_directory()]:
        if os.access(directory / name, os.X_OK):
            return directory / name
    found = shutil.which(name)
    return Path(found) if found else None
