"""Builds the parts of a release from a source tree, and their bills of materials (SBOMs) in CycloneDX JSON.

``check`` builds a release twice in different environments, compares the files, and runs the demo with the wheel.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hack.cluster.build import find_binary

_VERSION = SchemaVersion.V1_6
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)
_SECONDS = 300
_PYTHON = r"""
import importlib.metadata, json, sys
found = []
for each in importlib.metadata.distributions():
    about = each.metadata
    licence = about.get("License-Expression") or about.get("License") or ""
    if not licence or "\n" in licence:
        lines = about.get_all("Classifier") or ()
        licence = "; ".join(line.rpartition(" :: ")[2] for line in lines if line.startswith("License ::"))
    found.append({"name": about["Name"], "version": each.version, "licence": licence})
json.dump(found, sys.stdout)
"""
_DEBIAN = r"dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n'"
_EVERYWHERE = "for python in /opt/*/bin/python; do $python -c '{}'; echo; done"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A component: a Python distribution, a Debian package or an image."""

    name: str
    version: str
    kind: str = "library"
    purl: str = ""
    licence: str = ""


def packages_of_requirements(text: str) -> list[Part]:
    """Return the distributions of a locked requirements file."""
    return [_of_python(name, version) for name, version in _PINNED.findall(text)]


def packages_of_image(image: str) -> list[Part]:
    """Return the packages in an image: Debian packages, and Python distributions below /opt."""
    script = f"{_DEBIAN}; echo ---; {_EVERYWHERE.format(_PYTHON)}"
    command = ["podman", "run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "sh", image, "-c", script]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout
    debian, _, python = text.partition("---\n")
    parts = [_of_debian(*line.split(" ")) for line in debian.splitlines()]
    for line in python.splitlines():
        found = msgspec.json.decode(line, type=list[dict[str, str]])
        parts += [_of_python(each["name"], each["version"], each["licence"]) for each in found]
    return parts


def write_bom(path: Path, subject: Part, parts: Sequence[Part], *, digest: str, epoch: int) -> None:
    """Write the bill of materials of ``subject``, whose SHA-256 is ``digest``.

    Raises:
        ValueError: The document does not match CycloneDX's schema.
    """
    text = json.dumps(bom(subject, parts, digest=digest, epoch=epoch), indent=1, ensure_ascii=False) + "\n"
    if problem := JsonStrictValidator(_VERSION).validate_str(text):
        raise ValueError(f"{path.name} is not a bill of materials: {problem}")
    path.write_text(text, "utf-8")


def bom(subject: Part, parts: Sequence[Part], *, digest: str, epoch: int) -> dict[str, Any]:
    """Return the document. It does not depend on the order of ``parts``."""
    known = sorted(set(parts), key=lambda part: (part.kind, part.name.lower(), part.version, part.purl))
    components = [_component(part, str(number)) for number, part in enumerate(known, start=1)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": _VERSION.to_version(),
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, f"{subject.name} {digest}").urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "component": {**_component(subject, "0"), "hashes": [{"alg": "SHA-256", "content": digest}]},
        },
        "components": components,
        "dependencies": [{"ref": "0", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _component(part: Part, reference: str) -> dict[str, Any]:
    component: dict[str, Any] = {"type": part.kind, "bom-ref": reference, "name": part.name, "version": part.version}
    if part.purl:
        component["purl"] = part.purl
    if part.licence:
        component["licenses"] = [{"license": {"name": part.licence}}]
    return component


def _of_python(name: str, version: str, licence: str = "") -> Part:
    normal = re.sub(r"[-_.]+", "-", name).lower()
    return Part(name=normal, version=version, purl=f"pkg:pypi/{normal}@{version}", licence=licence)


def _of_debian(name: str, version: str, architecture: str) -> Part:
    escaped = version.replace("+", "%2B").replace(":", "%3A")
    return Part(name=name, version=version, purl=f"pkg:deb/debian/{name}@{escaped}?arch={architecture}")


IMAGES = ("sandbox-python", "sidecar", "operator", "agent")
SUMS = "SHA256SUMS"
_MINUTES = 60
_LEFT_OUT = {".helmignore"}
_REGISTRY = re.compile(r"^imageRegistry: .*$", re.MULTILINE)
_WANTED_BY_USERS = "requirements/cli.txt"


def tree(root: Path) -> dict[str, bytes | None]:
    """Return every file below ``root`` with its content. The content of a directory is None."""
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def write_tar(path: Path, entries: Mapping[str, bytes | None], *, epoch: int, compressed: bool) -> None:
    """Write ``entries`` as a tar. ``epoch`` is the modification time of all members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(entries):
            tar.addfile(*_member(name, entries[name], epoch))
    path.write_bytes(gzip.compress(out.getvalue(), mtime=epoch) if compressed else out.getvalue())


def write_layout(path: Path, layout: Path, *, epoch: int) -> None:
    """Write a directory as an uncompressed tar. Files are streamed, because they may be large."""
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in _sorted(layout, layout.rglob("*")):
            member, _ = _member(file.relative_to(layout).as_posix(), None if file.is_dir() else b"", epoch)
            if file.is_dir():
                tar.addfile(member)
                continue
            member.size = file.stat().st_size
            with file.open("rb") as stream:
                tar.addfile(member, stream)


def _sorted(root: Path, paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _member(name: str, data: bytes | None, epoch: int) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    member = tarfile.TarInfo(name)
    member.mtime, member.uname, member.gname = epoch, "root", "root"
    if data is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        return member, None
    member.mode, member.size = 0o644, len(data)
    return member, io.BytesIO(data)


class ReleaseError(Exception):
    """The release cannot be built. The message has the reason and the remedy."""


class Builder:
    """Builds into ``output`` from the sources in ``source``. ``epoch`` is the modification time of all built files."""

    def __init__(self, source: Path, output: Path, *, epoch: int, registry: str = "") -> None:
        self._source = source
        self._output = output
        self._epoch = epoch
        self._registry = registry
        self.version = version_of(source)

    def build(self, images: Sequence[str]) -> list[Path]:
        """Build all parts and a file with their checksums. Return the files."""
        self._output.mkdir(parents=True, exist_ok=True)
        self._distributions()
        self.chart()
        self._images(images)
        files = sorted(self._output.iterdir())
        lines = [f"{_digest(path)}  {path.name}\n" for path in files]
        (self._output / SUMS).write_text("".join(lines), "utf-8")
        return [*files, self._output / SUMS]

    def _distributions(self) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(self._output)]
        self._run(command, "the wheel and the source distribution cannot be built")
        wheel = self._output / f"dgym-{self.version}-py3-none-any.whl"
        if not wheel.exists():
            raise ReleaseError(f"hatchling built no {wheel.name}")
        parts = packages_of_requirements((self._source / _WANTED_BY_USERS).read_text("utf-8"))
        self._bom(wheel.name, "library", parts)

    def chart(self) -> Path:
        """Build the packaged chart. With a registry, its images come from there."""
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
        # Like helm, the archive contains files and no directories.
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
    """Return dgym's version in a source tree."""
    found = re.search(r'^__version__ = "(.+)"$', (source / "dgym" / "__init__.py").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ReleaseError("dgym/__init__.py names no __version__")
    return found[1]


def export(repository: Path, directory: Path) -> int:
    """Write the committed sources into ``directory``. Return the time of the commit in seconds since the epoch.

    Raises:
        ReleaseError: The checkout has uncommitted changes.
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
    """Return the checksum of each file by its name."""
    lines = (directory / SUMS).read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_OTHER = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "C", "PYTHONHASHSEED": "7"}
_OLD = 86400 * 365
_CHECK_SECONDS = 600


def check(repository: Path, output: Path, images: Sequence[str], registry: str) -> None:
    """Build into ``output`` and again elsewhere, compare, then install the wheel and run the demo's tasks.

    Raises:
        ReleaseError: A build fails, the two builds differ, or the wheel does not work.
    """
    with tempfile.TemporaryDirectory(prefix="dgym-release-") as name:
        first, second = Path(name, "one"), Path(name, "another", "and", "deeper")
        Builder(first, output, epoch=export(repository, first), registry=registry).build(images)
        epoch = export(repository, second)
        _age(second)
        with _elsewhere():
            Builder(second, Path(name, "again"), epoch=epoch, registry=registry).build(images)
        if differing := differences(read_sums(output), read_sums(Path(name, "again"))):
            raise ReleaseError(f"built twice, these differ: {', '.join(differing)}")
        run_demo(output, repository / "requirements" / "cli.txt", Path(name, "clean"))


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names whose checksums differ or that are only on one side."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def run_demo(output: Path, requirements: Path, place: Path) -> None:
    """Install the wheel with its locked dependencies into a clean environment and run the demo's tasks from there."""
    place.mkdir()
    (wheel,) = output.glob("dgym-*.whl")
    python = str(place / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = ("run", "--bundled", "mini_nightmare", "--agent", "replay", "--results", "results", "--sandbox")
    for step in (
        [sys.executable, "-m", "venv", str(place / "venv")],
        [*install, "--require-hashes", "--requirement", str(requirements)],
        [*install, str(wheel)],
        [python, "-m", "pip", "check"],
        [str(place / "venv" / "bin" / "dgym"), *command, _sandbox()],
    ):
        # Neither the directory nor the environment of the checkout may be used.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(step, cwd=place, env=environment, capture_output=True, text=True, timeout=_CHECK_SECONDS)
        if done.returncode:
            raise ReleaseError(f"the wheel, installed on its own: {' '.join(step)}\n{done.stdout}{done.stderr}"[-4000:])
    if "10 resolved" not in done.stdout:
        raise ReleaseError(
            f"the wheel, installed on its own, does not resolve the demo's tasks:\n{done.stdout[-4000:]}"
        )


def _sandbox() -> str:
    """Return the value of ``--sandbox`` that the demo uses on this machine."""
    script = Path(__file__).parents[1] / "demo_sandbox.py"
    command = [sys.executable, str(script)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def _age(directory: Path) -> None:
    """Change the times of all files, and their modes to those of another umask."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            os.utime(path, (_OLD, _OLD))
            path.chmod(path.stat().st_mode & ~0o077)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Use another time zone, locale, hash seed and umask."""
    before, umask = dict(os.environ), os.umask(0o077)
    os.environ.update(_OTHER)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.umask(umask)
