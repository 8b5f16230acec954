"""Builds the binaries of a cluster from the Go modules beside this file, once for a user and a version."""

import fcntl
import os
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
from hack.cluster.machine import ClusterError, say

MODULES = Path(__file__).parent
PAUSE = "pause"
PROGRESS_SECONDS = 15.0


@dataclass(frozen=True)
class Recipe:
    """How one binary is made: a package, and the module that pins everything below it."""

    name: str
    module: Path | None
    package: str
    flags: tuple[str, ...] = ()

    def command(self, output: Path) -> tuple[list[str], dict[str, str]]:
        """The command and what it needs in its environment; the binary appears in the output directory."""
        common = ["-trimpath", "-v", *self.flags]
        if self.module is None:
            return ["go", "install", *common, self.package], {"GOBIN": str(output)}
        return ["go", "build", *common, "-o", str(output / self.name), self.package], {}


def recipe(name: str) -> Recipe:
    """How a binary of this name is made."""
    stripped = "-ldflags=-s -w"
    if name == "etcd":
        return Recipe(name, MODULES / "etcd", "go.etcd.io/etcd/server/v3", (stripped,))
    if name == PAUSE:
        return Recipe(name, MODULES / "pause", ".", (stripped,))
    if name == "helm":
        return Recipe(name, None, f"helm.sh/helm/v4/cmd/helm@{paths.HELM_VERSION}", (stripped,))
    if name == "kind":
        return Recipe(name, None, f"sigs.k8s.io/kind@{paths.KIND_VERSION}", (stripped,))
    major, minor, _ = paths.KUBERNETES_VERSION.removeprefix("v").split(".")
    version = {"gitVersion": paths.KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    stamped = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in version.items())
    return Recipe(name, MODULES / "kubernetes", f"k8s.io/kubernetes/cmd/{name}", (f"{stripped} {stamped}",))


def build(names: Sequence[str], *, only_missing: bool = True) -> Path:
    """Build those that are not in the cache yet; return the directory that has them all."""
    directory = paths.binaries_directory()
    if only_missing and not _missing(names, directory):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with _only_one(directory.parent / "build.lock"):
        # Somebody else may have built them meanwhile.
        missing = _missing(names, directory) if only_missing else list(names)
        if missing and shutil.which("go") is None:
            raise ClusterError(
                f"{', '.join(missing)} must be built from source, and there is no `go` on PATH: "
                "install Go 1.22 or later (it fetches the version it needs by itself)"
            )
        for number, name in enumerate(missing, 1):
            _build_one(recipe(name), directory, f"{number}/{len(missing)}")
    return directory


def _missing(names: Sequence[str], directory: Path) -> list[str]:
    return [name for name in names if not os.access(directory / name, os.X_OK)]


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_one(what: Recipe, directory: Path, number: str) -> None:
    """A binary appears under its name when it is whole, and not before."""
    say(f"building {what.name} ({number}) …")
    started = time.monotonic()
    log = directory.parent / f"build-{what.name}.log"
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory.parent) as temporary:
        command, extra = what.command(Path(temporary))
        environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=mod" if what.module is None else "-mod=readonly",
        }
        environment |= extra
        with log.open("wb") as output, _progress(what.name, log):
            done = subprocess.run(
                command, cwd=what.module or temporary, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, check=False,
            )  # fmt: skip
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise ClusterError(f"building {what.name} failed; the end of {log}:\n{tail}")
        (Path(temporary) / what.name).replace(directory / what.name)
    say(f"built {what.name} in {time.monotonic() - started:.0f} s")


@contextmanager
def _progress(name: str, log: Path) -> Iterator[None]:
    """Minutes pass: say now and then how many packages are compiled."""
    done = threading.Event()

    def report() -> None:
        started = time.monotonic()
        while not done.wait(PROGRESS_SECONDS):
            with log.open("rb") as lines:
                count = sum(1 for line in lines if not line.startswith(b"go: "))
            say(f"{name}: {count} packages compiled, {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
