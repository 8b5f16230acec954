"""Decides which cluster serves: an existing one, kind, or one made of processes on this machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hack.cluster.existing import ExistingCluster
from hack.cluster.kind import KindCluster
from hack.cluster.local import LocalCluster
from hack.cluster.machine import ClusterError

DOCKER_SECONDS = 30
IMPOSSIBLE = """\
no cluster can be had here. One of these is needed:
  - a cluster of yours: E2E_CLUSTER=existing and KUBECONFIG (images go to its registry, or E2E_LOAD_COMMAND loads them)
  - Docker running, and kind (or Go, which builds it)
  - Linux and root, for a cluster of processes on this machine"""


class Cluster(Protocol):
    """What every kind of cluster can be asked for."""

    @property
    def name(self) -> str:
        """Which kind it is."""

    @property
    def kubeconfig(self) -> Path:
        """How to reach it."""

    @property
    def audit_log(self) -> Path | None:
        """Where its API server writes down every write."""

    def up(self) -> None:
        """Start it, unless it runs."""

    def down(self) -> None:
        """Remove it."""

    def load(self, names: Sequence[str]) -> None:
        """Bring images to its nodes."""

    def running(self) -> object:
        """True or something like it if it runs."""

    def status(self) -> str:
        """Say how it is."""


def docker_answers() -> bool:
    """Whether a Docker engine runs; a client alone starts nothing."""
    if shutil.which("docker") is None:
        return False
    try:
        return (
            subprocess.run(["docker", "info"], capture_output=True, timeout=DOCKER_SECONDS, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def kind_possible() -> bool:
    """Whether kind is there or can be built, and has an engine to run in."""
    return bool(shutil.which("kind") or shutil.which("go")) and docker_answers()


def local_possible() -> bool:
    """Whether processes of a cluster may run on this machine."""
    return sys.platform == "linux" and os.geteuid() == 0


def choose(
    environment: Mapping[str, str],
    kind: Callable[[], bool] = kind_possible,
    local: Callable[[], bool] = local_possible,
) -> Cluster:
    """The cluster that the environment names, or else the best this machine can have."""
    wanted = environment.get("E2E_CLUSTER", "")
    if wanted == "existing":
        return ExistingCluster(environment)
    if wanted not in {"", "kind", "local"}:
        raise ClusterError(f"E2E_CLUSTER is existing, kind or local, not {wanted!r}")
    # What runs already is asked first: Docker may come and go.
    if wanted == "local" or (not wanted and local() and LocalCluster().running()):
        return LocalCluster()
    if wanted == "kind" or kind():
        return KindCluster()
    if local():
        return LocalCluster()
    raise ClusterError(IMPOSSIBLE)


def ours(environment: Mapping[str, str], docker: Callable[[], bool] = docker_answers) -> list[Cluster]:
    """Every cluster that we started and may remove."""
    if environment.get("E2E_CLUSTER") == "existing":
        return [ExistingCluster(environment)]
    found: list[Cluster] = []
    if local_possible():
        found.append(LocalCluster())
    if KindCluster().kubeconfig.exists() and docker():
        found.append(KindCluster())
    return found
