"""Bills of materials in CycloneDX's JSON, checked against its schema before they are written."""

import json
import re
import subprocess
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

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
    """A part of something: a distribution of Python's, a package of Debian's, an image."""

    name: str
    version: str
    kind: str = "library"
    purl: str = ""
    licence: str = ""


def packages_of_requirements(text: str) -> list[Part]:
    """What a locked file of requirements names."""
    return [_of_python(name, version) for name, version in _PINNED.findall(text)]


def packages_of_image(image: str) -> list[Part]:
    """What is installed in an image: Debian's packages, and Python's below /opt."""
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
    """Write the bill of ``subject``, whose SHA-256 is ``digest``.

    Raises:
        ValueError: CycloneDX's own validator does not take it.
    """
    text = json.dumps(bom(subject, parts, digest=digest, epoch=epoch), indent=1, ensure_ascii=False) + "\n"
    if problem := JsonStrictValidator(_VERSION).validate_str(text):
        raise ValueError(f"{path.name} is no bill of materials: {problem}")
    path.write_text(text, "utf-8")


def bom(subject: Part, parts: Sequence[Part], *, digest: str, epoch: int) -> dict[str, Any]:
    """The document; the same parts give the same, whatever their order."""
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
