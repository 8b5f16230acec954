"""The command line: one cluster to test against, whatever this machine can run."""

import argparse
import os
import sys
from collections.abc import Sequence

from hack.cluster import paths
from hack.cluster.build import KSTATUS, PAUSE, PROMETHEUS, build
from hack.cluster.choose import Cluster, choose, ours
from hack.cluster.local import LocalCluster
from hack.cluster.machine import ClusterError

ALL = (*paths.BINARIES, PAUSE, KSTATUS, *PROMETHEUS)
EPILOG = """\
Which cluster: E2E_CLUSTER=existing (with KUBECONFIG), kind or local; without it, kind where Docker answers,
else local: one node on this machine (Linux, root), from binaries that are built once into the user's cache.
"""


def parser() -> argparse.ArgumentParser:
    """Every command and its arguments."""
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
    commands.add_parser("status", help="say which one it is and whether it runs; exit code 3 if it does not")
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig")
    commands.add_parser(
        "audit-log", help="print the path of the log of writes to its API server, and of service accounts' reads"
    )
    builder = commands.add_parser("build", help="build binaries that are not in the cache; all without a name")
    builder.add_argument("binary", nargs="*", metavar="BINARY", help=", ".join((*ALL, "kind")))
    commands.add_parser("path", help="print the directory of the binaries, kubectl and helm among them")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
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
        print(paths.binaries_directory())
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
