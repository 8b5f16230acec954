"""The command line: one cluster to test against: an existing one, kind, or processes on this machine."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hack.cluster.build import BINARIES, KSTATUS, PAUSE, PROMETHEUS, binaries_directory, build
from hack.cluster.kind import KindCluster
from hack.cluster.local import LocalCluster
from hack.cluster.machine import ClusterError, say

DOCKER_SECONDS = 30
IMPOSSIBLE = """\
no cluster can be had here. One of these is needed:
  - a cluster of yours: E2E_CLUSTER=existing and KUBECONFIG (images go to its registry, or E2E_LOAD_COMMAND loads them)
  - Docker running, and kind (or Go, which builds it)
  - Linux and root, for a cluster of processes on this machine"""


class ExistingCluster:
    """The cluster of KUBECONFIG, which this program neither starts nor removes."""

    name = "existing"
    audit_log = None

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._load_command = environment.get("E2E_LOAD_COMMAND", "")
        path = environment.get("KUBECONFIG", "")
        if not path:
            raise ClusterError("E2E_CLUSTER=existing needs KUBECONFIG, the path of that cluster's kubeconfig")
        if not Path(path).is_file():
            raise ClusterError(f"KUBECONFIG is {path}, which does not exist")
        self.kubeconfig = Path(path).absolute()

    def up(self) -> None:
        """Print which cluster is used."""
        say(f"using the existing cluster of {self.kubeconfig}")

    def down(self) -> None:
        """Do nothing."""
        say("an existing cluster is left as it is")

    def running(self) -> bool:
        """Return True without a check."""
        return True

    def status(self) -> str:
        """Return the path of the kubeconfig."""
        return str(self.kubeconfig)

    def load(self, names: Sequence[str]) -> None:
        """Run E2E_LOAD_COMMAND with the names of the images.

        Raises:
            ClusterError: The variable is not set, or the command failed.
        """
        if not self._load_command:
            raise ClusterError(
                "images cannot be loaded into an existing cluster: push them to a registry that its nodes pull from, "
                "or set E2E_LOAD_COMMAND, which is run with their names (such as `minikube image load`)"
            )
        done = subprocess.run([*shlex.split(self._load_command), *names], check=False)
        if done.returncode:
            raise ClusterError(f"`{self._load_command}` failed with exit code {done.returncode}")


class Cluster(Protocol):
    """The interface of every kind of cluster."""

    @property
    def name(self) -> str:
        """Kind of the cluster."""

    @property
    def kubeconfig(self) -> Path:
        """Path of the kubeconfig."""

    @property
    def audit_log(self) -> Path | None:
        """Path of the API server's audit log, or None if it cannot be read."""

    def up(self) -> None:
        """Start the cluster unless it runs already."""

    def down(self) -> None:
        """Remove the cluster."""

    def load(self, names: Sequence[str]) -> None:
        """Load images into its nodes."""

    def running(self) -> object:
        """Return a true value if the cluster runs."""

    def status(self) -> str:
        """Return a text about the state of the cluster."""


def docker_answers() -> bool:
    """Return True if a Docker engine answers. The client alone is not enough."""
    if shutil.which("docker") is None:
        return False
    try:
        return (
            subprocess.run(["docker", "info"], capture_output=True, timeout=DOCKER_SECONDS, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def kind_possible() -> bool:
    """Return True if kind is installed or can be built, and Docker answers."""
    return bool(shutil.which("kind") or shutil.which("go")) and docker_answers()


def local_possible() -> bool:
    """Return True if a cluster can run as processes on this machine: on Linux, as root."""
    return sys.platform == "linux" and os.geteuid() == 0


def choose(
    environment: Mapping[str, str],
    kind: Callable[[], bool] = kind_possible,
    local: Callable[[], bool] = local_possible,
) -> Cluster:
    """Return the cluster of E2E_CLUSTER.

    Without it, the order is: a local cluster that runs already, kind, a new local cluster.

    Raises:
        ClusterError: E2E_CLUSTER is wrong, or this machine cannot run a cluster.
    """
    wanted = environment.get("E2E_CLUSTER", "")
    if wanted == "existing":
        return ExistingCluster(environment)
    if wanted not in {"", "kind", "local"}:
        raise ClusterError(f"E2E_CLUSTER is existing, kind or local, not {wanted!r}")
    # A local cluster that runs already comes first, because Docker may have started after it.
    if wanted == "local" or (not wanted and local() and LocalCluster().running()):
        return LocalCluster()
    if wanted == "kind" or kind():
        return KindCluster()
    if local():
        return LocalCluster()
    raise ClusterError(IMPOSSIBLE)


def ours(environment: Mapping[str, str], docker: Callable[[], bool] = docker_answers) -> list[Cluster]:
    """Return the clusters that this program may have started. With E2E_CLUSTER=existing, it is that cluster."""
    if environment.get("E2E_CLUSTER") == "existing":
        return [ExistingCluster(environment)]
    found: list[Cluster] = []
    if local_possible():
        found.append(LocalCluster())
    if KindCluster().kubeconfig.exists() and docker():
        found.append(KindCluster())
    return found


ALL = (*BINARIES, PAUSE, KSTATUS, *PROMETHEUS)
EPILOG = """\
E2E_CLUSTER chooses the cluster: existing (with KUBECONFIG), kind or local. The default is kind where Docker answers,
else local: one node on this machine (Linux, root), from binaries that are built once into the user's cache.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="hack/cluster/cluster", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="start it, unless it runs; prints the path of its kubeconfig")
    commands.add_parser("down", help="remove it; an existing one is left as it is")
    load = commands.add_parser("load", help="bring images of podman or docker to its nodes")
    load.add_argument("image", nargs="+")
    for command, text in (
        ("stop", "kill a component of a local cluster, such as kubelet"),
        ("start", "start it again"),
    ):
        commands.add_parser(command, help=text).add_argument("component")
    commands.add_parser("status", help="print which cluster it is and whether it runs; exit code 3 if it does not")
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig")
    commands.add_parser(
        "audit-log", help="print the path of the log of writes to its API server, and of service accounts' reads"
    )
    builder = commands.add_parser("build", help="build binaries that are not in the cache; all without a name")
    builder.add_argument("binary", nargs="*", metavar="BINARY", help=", ".join((*ALL, "kind")))
    commands.add_parser("path", help="print the directory of the binaries, kubectl and helm among them")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit status."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.command == "build":
        if unknown := set(options.binary) - {*ALL, "kind"}:
            raise ClusterError(f"not one of ours: {', '.join(sorted(unknown))}")
        print(build(options.binary or ALL))
    elif options.command == "path":
        print(binaries_directory())
    elif options.command == "down":
        for cluster in ours(os.environ):
            cluster.down()
    else:
        return _ask(choose(os.environ), options)
    return 0


def _ask(cluster: Cluster, options: argparse.Namespace) -> int:
    if options.command == "up":
        cluster.up()
        print(cluster.kubeconfig)
    elif options.command == "load":
        cluster.load(options.image)
    elif options.command in {"stop", "start"}:
        if not isinstance(cluster, LocalCluster):
            raise ClusterError(
                f"components of a cluster of kind {cluster.name} cannot be stopped; E2E_CLUSTER=local can"
            )
        (cluster.stop if options.command == "stop" else cluster.start)(options.component)
    elif options.command == "status":
        print(f"{cluster.name}: {cluster.status()}")
        return 0 if cluster.running() else 3
    elif options.command == "kubeconfig":
        print(cluster.kubeconfig)
    elif cluster.audit_log is None:
        raise ClusterError("the audit log of an existing cluster is its administrators'")
    else:
        print(cluster.audit_log)
    return 0
