"""Builds the binaries of a cluster from the Go modules beside this file, and finds them.

Each user has one cache for each version of Kubernetes."""

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.machine import ClusterError, exclusive, say

KUBERNETES_VERSION = "v1.35.4"
HELM_VERSION = "v4.3.1"
KIND_VERSION = "v0.30.0"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl")
NODE = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
BINARIES = (*CONTROL_PLANE, *NODE, "helm")


def cache_directory() -> Path:
    """Return the cache of this version of Kubernetes. It is outside of the repository, so that checkouts share it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dgym" / "cluster" / KUBERNETES_VERSION


def binaries_directory() -> Path:
    """Return the directory of built binaries."""
    return cache_directory() / "bin"


def state_directory() -> Path:
    """Return the directory of the running cluster's files and images.

    The default path is on a disk, for images, and short, because the length of socket paths is limited.
    """
    return Path(os.environ.get("DGYM_CLUSTER_STATE") or "/var/lib/dgym-cluster")


def find_binary(name: str) -> Path | None:
    """Return the binary from KUBEBUILDER_ASSETS, the cache or PATH, in this order, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for directory in ([Path(assets)] if assets else []) + [binaries_directory()]:
        if os.access(directory / name, os.X_OK):
            return directory / name
    found = shutil.which(name)
    return Path(found) if found else None


MODULES = Path(__file__).parent
PAUSE = "pause"
KSTATUS = "kstatus"
PROMETHEUS = ("prometheus", "promtool")
# Only the discovery of Kubernetes targets is built, because all kinds take twice the time.
DISCOVERY = "-tags=remove_all_sd,enable_kubernetes_sd"
STRIPPED = "-ldflags=-s -w"
PROGRESS_SECONDS = 15.0
ATTEMPTS = 3
RETRY_SECONDS = (2.0, 10.0)
"""Minimum and maximum pause before another attempt. A build may fail because a module could not be downloaded."""


@dataclass(frozen=True)
class Recipe:
    """A command that builds binaries: their packages, and the module that pins their dependencies."""

    names: tuple[str, ...]
    module: Path | None
    packages: tuple[str, ...]
    flags: tuple[str, ...] = (STRIPPED,)

    def command(self, output: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command and its environment variables. It writes the binaries to ``output``."""
        common = ["-trimpath", "-v", *self.flags]
        environment = {"CGO_ENABLED": "0", "GOFLAGS": ""}
        if self.module is None:
            return ["go", "install", *common, *self.packages], {**environment, "GOBIN": str(output)}
        # A single package may have another name than its binary. Packages that are built together do not.
        target = f"{output}/" if len(self.names) > 1 else str(output / self.names[0])
        return ["go", "build", *common, "-o", target, *self.packages], environment


def recipes(names: Sequence[str]) -> list[Recipe]:
    """Return the recipes of these binaries. One command builds all of Kubernetes, so that linking runs in parallel."""
    single = {
        PAUSE: Recipe((PAUSE,), MODULES / "pause", (".",)),
        KSTATUS: Recipe((KSTATUS,), MODULES / "kstatus", (".",)),
        "etcd": Recipe(("etcd",), MODULES / "etcd", ("go.etcd.io/etcd/server/v3",)),
        "helm": Recipe(("helm",), None, (f"helm.sh/helm/v4/cmd/helm@{HELM_VERSION}",)),
        "kind": Recipe(("kind",), None, (f"sigs.k8s.io/kind@{KIND_VERSION}",)),
    }
    found = [what for name, what in single.items() if name in names]
    if prometheus := tuple(name for name in names if name in PROMETHEUS):
        packages = tuple(f"github.com/prometheus/prometheus/cmd/{name}" for name in prometheus)
        found.append(Recipe(prometheus, MODULES / "prometheus", packages, (STRIPPED, DISCOVERY)))
    if kubernetes := tuple(name for name in names if name not in single and name not in PROMETHEUS):
        major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
        version = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
        stamped = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in version.items())
        packages = tuple(f"k8s.io/kubernetes/cmd/{name}" for name in kubernetes)
        found.append(Recipe(kubernetes, MODULES / "kubernetes", packages, (f"{STRIPPED} {stamped}",)))
    return found


def build(names: Sequence[str]) -> Path:
    """Build the binaries that are not in the cache.

    Returns:
        The directory with all of them.

    Raises:
        ClusterError: Go is not installed, or a build failed.
    """
    directory = binaries_directory()
    if not _missing(names, directory):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory.parent / "build.lock", "another build"):
        # Another process may have built them while this one waited for the lock.
        missing = _missing(names, directory)
        if missing and shutil.which("go") is None:
            raise ClusterError(
                f"{', '.join(missing)} must be built from source, and there is no `go` on PATH: "
                "install Go 1.22 or later (it fetches the version it needs by itself)"
            )
        for what in recipes(missing):
            _build(what, directory)
    return directory


def _missing(names: Sequence[str], directory: Path) -> list[str]:
    return [name for name in names if not os.access(directory / name, os.X_OK)]


def _build(what: Recipe, directory: Path) -> None:
    """Run a recipe. Binaries are renamed into ``directory``, so that no incomplete one is used."""
    label = ", ".join(what.names)
    say(f"building {label} …")
    started = time.monotonic()
    log = directory.parent / f"build-{what.names[0]}.log"
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory.parent) as temporary:
        command, extra = what.command(Path(temporary))
        for attempt in range(1, ATTEMPTS + 1):
            with log.open("wb") as output, _progress(log):
                done = subprocess.run(
                    command, cwd=what.module or temporary, env={**os.environ, **extra}, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=output, check=False,
                )  # fmt: skip
            if not done.returncode:
                break
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            if attempt == ATTEMPTS:
                raise ClusterError(f"building {label} failed {ATTEMPTS} times; the end of {log}:\n{tail}")
            say(f"building {label} failed and is tried again:\n{tail}")
            time.sleep(random.uniform(*RETRY_SECONDS))  # noqa: S311 - jitter
        for name in what.names:
            (Path(temporary) / name).replace(directory / name)
    say(f"built {label} in {time.monotonic() - started:.0f} s")


@contextmanager
def _progress(log: Path) -> Iterator[None]:
    """Print every 15 seconds how many packages are compiled, because a build takes minutes."""
    done = threading.Event()

    def report() -> None:
        started = time.monotonic()
        while not done.wait(PROGRESS_SECONDS):
            with log.open("rb") as lines:
                count = sum(1 for line in lines if not line.startswith(b"go: "))
            say(f"  {count} packages compiled, {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
