"""Builds the parts of a release from a tree of sources."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from hack.cluster.paths import find_binary
from hack.release.sbom import Part, packages_of_image, packages_of_requirements, write_bom
from hack.release.tars import tree, write_layout, write_tar

IMAGES = ("sandbox-python", "sidecar", "operator", "agent")
SUMS = "SHA256SUMS"
_MINUTES = 60
_LEFT_OUT = {".helmignore"}
_REGISTRY = re.compile(r"^imageRegistry: .*$", re.MULTILINE)
_WANTED_BY_USERS = "requirements/cli.txt"


class ReleaseError(Exception):
    """The release cannot be built; the message says why and what to do."""


class Builder:
    """Builds into ``output`` from the sources in ``source``; ``epoch`` is the time of everything that is made."""

    def __init__(self, source: Path, output: Path, *, epoch: int, registry: str = "") -> None:
        self._source = source
        self._output = output
        self._epoch = epoch
        self._registry = registry
        self.version = version_of(source)

    def build(self, images: Sequence[str]) -> list[Path]:
        """Everything, and the checksums of it; the files that were made."""
        self._output.mkdir(parents=True, exist_ok=True)
        self._distributions()
        self.chart()
        self._images(images)
        files = sorted(self._output.iterdir())
        lines = [f"{_digest(path)}  {path.name}\n" for path in files]
        (self._output / SUMS).write_text("".join(lines), "utf-8")
        return [*files, self._output / SUMS]

    def _distributions(self) -> None:
        """Wheel and source distribution."""
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(self._output)]
        self._run(command, "the wheel and the source distribution cannot be built")
        wheel = self._output / f"dgym-{self.version}-py3-none-any.whl"
        if not wheel.exists():
            raise ReleaseError(f"hatchling built no {wheel.name}")
        parts = packages_of_requirements((self._source / _WANTED_BY_USERS).read_text("utf-8"))
        self._bom(wheel.name, "library", parts)

    def chart(self) -> Path:
        """The packaged chart; with a registry its images come from there."""
        root = self._source / "charts" / "dgym"
        about = yaml.safe_load((root / "Chart.yaml").read_text("utf-8"))
        if about["version"] != self.version or about["appVersion"] != self.version:
            raise ReleaseError(f"charts/dgym/Chart.yaml: version and appVersion must be {self.version}, as dgym's is")
        entries = {f"dgym/{name}": data for name, data in tree(root).items() if name not in _LEFT_OUT}
        if self._registry:
            values, count = _REGISTRY.subn(
                f"imageRegistry: {self._registry}", (root / "values.yaml").read_text("utf-8")
            )
            if count != 1:
                raise ReleaseError("charts/dgym/values.yaml: imageRegistry must be there once")
            entries["dgym/values.yaml"] = values.encode()
        packaged = self._output / f"dgym-{self.version}.tgz"
        # As helm writes it: files alone.
        files = {name: data for name, data in entries.items() if data is not None}
        write_tar(packaged, files, epoch=self._epoch, compressed=True)
        helm = find_binary("helm")
        if helm is None:
            raise ReleaseError("helm is not here to check the chart with; run make binaries, or install it")
        self._run([str(helm), "template", "dgym", str(packaged)], "helm does not take the packaged chart")
        images = [Part(name=f"dgym/{name}", version=self.version, kind="container") for name in IMAGES]
        self._bom(packaged.name, "application", images)
        return packaged

    def _images(self, names: Sequence[str]) -> None:
        if not names:
            return
        with tempfile.TemporaryDirectory(dir=self._output.parent, prefix="layouts-") as layouts:
            arguments = ["hack/images", "--archives", layouts, *names]
            self._run(arguments, "the images cannot be built", HOST_PYTHON=sys.executable)
            for name in names:
                archive = self._output / f"dgym-{name}-{self.version}.oci.tar"
                layout = Path(layouts, name)
                write_layout(archive, layout, epoch=self._epoch)
                shutil.rmtree(layout)
                parts = packages_of_image(f"localhost/dgym-release/{name}:{self.version}")
                self._bom(archive.name, "container", parts)

    def _bom(self, name: str, kind: str, parts: Sequence[Part]) -> None:
        path = self._output / f"{name}.cdx.json"
        subject = Part(name=name, version=self.version, kind=kind)
        write_bom(path, subject, parts, digest=_digest(self._output / name), epoch=self._epoch)

    def _run(self, command: Sequence[str], problem: str, **variables: str) -> None:
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(self._epoch), **variables}
        try:
            done = subprocess.run(
                command, cwd=self._source, env=environment, stdout=subprocess.PIPE, text=True, timeout=_MINUTES * 60
            )
        except subprocess.TimeoutExpired:
            raise ReleaseError(f"{problem}: {command[0]} has not ended after {_MINUTES} minutes") from None
        if done.returncode:
            raise ReleaseError(
                f"{problem}: {Path(command[0]).name} ended with {done.returncode}\n{done.stdout[-2000:]}"
            )


def version_of(source: Path) -> str:
    """dgym's version in a tree of sources."""
    found = re.search(r'^__version__ = "(.+)"$', (source / "dgym" / "__init__.py").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ReleaseError("dgym/__init__.py names no __version__")
    return found[1]


def export(repository: Path, directory: Path) -> int:
    """Write the committed sources into ``directory``; returns the time of the commit.

    Raises:
        ReleaseError: There are changes that no commit has.
    """
    git = ["git", "-C", str(repository)]
    changes = subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    if changes:
        raise ReleaseError(f"a release is made of a commit; commit or stash first:\n{changes[:2000]}")
    directory.mkdir(parents=True)
    archive = subprocess.run([*git, "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(directory)], check=True, input=archive)
    log = [*git, "log", "-1", "--format=%ct %H"]
    time, commit = subprocess.run(log, check=True, capture_output=True, text=True).stdout.split()
    (directory / "dgym" / "commit.txt").write_text(f"{commit}\n", "ascii")
    return int(time)


def read_sums(directory: Path) -> Mapping[str, str]:
    """The checksum of each file by its name."""
    lines = (directory / SUMS).read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
