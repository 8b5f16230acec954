"""Builds the binaries of a cluster from the Go modules beside this file, once for a user and a version."""

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

from hack.cluster import paths
from hack.cluster.machine import ClusterError, exclusive, say

MODULES = Path(__file__).parent
PAUSE = "pause"
KSTATUS = "kstatus"
PROMETHEUS = ("prometheus", "promtool")
# Of the ways in which Prometheus discovers its targets only this one: all of them cost twice the time.
DISCOVERY = "-tags=remove_all_sd,enable_kubernetes_sd"
STRIPPED = "-ldflags=-s -w"
PROGRESS_SECONDS = 15.0
ATTEMPTS = 3
RETRY_SECONDS = (2.0, 10.0)
"""Least and longest pause before another attempt: what failed may be the fetching of a module."""


@dataclass(frozen=True)
class Recipe:
    """How binaries are made by one command: packages, and the module that pins everything below them."""

    names: tuple[str, ...]
    module: Path | None
    packages: tuple[str, ...]
    flags: tuple[str, ...] = (STRIPPED,)

    def command(self, output: Path) -> tuple[list[str], dict[str, str]]:
        """The command and what it needs in its environment; the binaries appear in the output directory."""
        common = ["-trimpath", "-v", *self.flags]
        environment = {"CGO_ENABLED": "0", "GOFLAGS": ""}
        if self.module is None:
            return ["go", "install", *common, *self.packages], {**environment, "GOBIN": str(output)}
        # A package is not always named as its binary is; several at once are.
        target = f"{output}/" if len(self.names) > 1 else str(output / self.names[0])
        return ["go", "build", *common, "-o", target, *self.packages], environment


def recipes(names: Sequence[str]) -> list[Recipe]:
    """How binaries of these names are made. All of Kubernetes at once: linking one does not keep others waiting."""
    single = {
        PAUSE: Recipe((PAUSE,), MODULES / "pause", (".",)),
        KSTATUS: Recipe((KSTATUS,), MODULES / "kstatus", (".",)),
        "etcd": Recipe(("etcd",), MODULES / "etcd", ("go.etcd.io/etcd/server/v3",)),
        "helm": Recipe(("helm",), None, (f"helm.sh/helm/v4/cmd/helm@{paths.HELM_VERSION}",)),
        "kind": Recipe(("kind",), None, (f"sigs.k8s.io/kind@{paths.KIND_VERSION}",)),
    }
    found = [what for name, what in single.items() if name in names]
    if prometheus := tuple(name for name in names if name in PROMETHEUS):
        packages = tuple(f"github.com/prometheus/prometheus/cmd/{name}" for name in prometheus)
        found.append(Recipe(prometheus, MODULES / "prometheus", packages, (STRIPPED, DISCOVERY)))
    if kubernetes := tuple(name for name in names if name not in single and name not in PROMETHEUS):
        major, minor, _ = paths.KUBERNETES_VERSION.removeprefix("v").split(".")
        version = {"gitVersion": paths.KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
        stamped = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in version.items())
        packages = tuple(f"k8s.io/kubernetes/cmd/{name}" for name in kubernetes)
        found.append(Recipe(kubernetes, MODULES / "kubernetes", packages, (f"{STRIPPED} {stamped}",)))
    return found


def build(names: Sequence[str]) -> Path:
    """Build those that are not in the cache yet; return the directory that has them all."""
    directory = paths.binaries_directory()
    if not _missing(names, directory):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory.parent / "build.lock", "another build"):
        # Somebody else may have built them meanwhile.
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
    """A binary appears under its name when it is whole, and not before."""
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
    """Minutes pass: say now and then how many packages are compiled."""
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
