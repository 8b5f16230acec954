"""``dgym lock``: the requirements of tasks as exact versions with hashes, written into their manifests."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgym.api import DebugTask, DebugTaskSpec, Episode, Loaded, load_documents, split_hashes
from dgym.cli.check import end_of_field, indent_of
from dgym.cli.manifests import place_of
from dgym.cli.output import echo, write_text
from dgym.documents import dump, read_yaml
from dgym.errors import FieldPath, ManifestError
from dgym.sandbox.local import Pinned, pin_requirements
from dgym.terminal import printable_line


def is_locked(spec: DebugTaskSpec) -> bool:
    """Whether every requirement has hashes; also if there are none."""
    return all(split_hashes(line)[1] for line in spec.declared_environment().requirements)


def lock_files(files: Sequence[str]) -> None:
    """Write exact versions with hashes into the manifests.

    Raises:
        ManifestError: A manifest is wrong, has no requirements, or cannot be changed line by line.
        SetupFailed: The requirements cannot be resolved.
    """
    for file in files:
        tasks = [item for item in load_documents(Path(file), allow_local_paths=["/"]) if _requirements(item)]
        if not tasks:
            raise ManifestError(f"{file}: no task in it has requirements; there is nothing to lock")
        text = Path(file).read_text("utf-8")
        counts = []
        for item in tasks:
            pinned, python = _resolve(item)
            text = with_requirements(text, item.document, pinned.lines, python)
            counts.append(f"{item.resource.metadata.name}: {len(pinned.lines)} requirements with hashes")
        write_text(Path(file), text, force=True)
        for line in counts:
            echo(printable_line(f"{line}, in {file}"))


def _task_spec(item: Loaded) -> DebugTaskSpec | None:
    if isinstance(item.resource, DebugTask):
        return item.resource.spec
    return item.resource.spec.task if isinstance(item.resource, Episode) else None


def _requirements(item: Loaded) -> tuple[str, ...]:
    spec = _task_spec(item)
    return () if spec is None else spec.declared_environment().requirements


def _resolve(item: Loaded) -> tuple[Pinned, str]:
    """The pins of a task's requirements, and the Python that they are for."""
    spec = _task_spec(item)
    assert spec is not None
    python = spec.declared_environment().python
    wanted = [split_hashes(line)[0] for line in _requirements(item)]
    pinned = asyncio.run(pin_requirements([wanted], python_version=python))
    if pinned.left_out:
        line, why = pinned.left_out[0]
        raise ManifestError(f"{place_of(item)}: the requirement {line!r} cannot be locked: {why}; change or remove it")
    if not pinned.hashes:
        raise ManifestError(f"{place_of(item)}: the package index gives no hashes; use one that does, or install uv")
    return pinned, python or f"{sys.version_info[0]}.{sys.version_info[1]}"


def with_requirements(text: str, number: int, requirements: Sequence[str], python: str) -> str:
    """The manifest ``text`` with these requirements in its document of this number; comments stay.

    The Python that they are for is added where ``environment`` names none.

    Raises:
        ManifestError: The document has a form that cannot be changed line by line.
    """
    document = next(document for document in read_yaml(text) if document.number == number)
    at_task: FieldPath = ("spec", "task") if document.value["kind"] == "Episode" else ("spec",)
    task = _value_at(document.value, at_task)
    environment = dict(task.get("environment") or {})
    is_short = "requirements" in task
    where = (*at_task, "requirements") if is_short else (*at_task, "environment", "requirements")
    line = document.lines.get(where)
    lines = text.split("\n")
    if line is None or lines[line - 1].lstrip().partition(":")[0].strip("\"'") != "requirements":
        raise ManifestError(_BY_HAND)
    start, end = line - 1, end_of_field(lines, line - 1)
    new = ["requirements:", *_comments(lines[start + 1 : end]), *requirement_lines(requirements)]
    if not environment or (not is_short and "python" not in environment):
        environment["python"] = python
        named = f'python: "{python}"'
        new = ["environment:", f"  {named}", *new] if is_short else [named, *new]
    if is_short:
        expected = {**task, "requirements": list(requirements), "environment": environment}
    else:
        expected = {**task, "environment": {**environment, "requirements": list(requirements)}}
    margin = " " * indent_of(lines[start])
    lines[start:end] = [f"{margin}{each}" for each in new]
    changed = "\n".join(lines)
    again = next((document for document in read_yaml(changed) if document.number == number), document)
    if again.problems or _value_at(again.value, at_task) != expected:
        raise ManifestError(_BY_HAND)
    return changed


def _value_at(value: Any, path: FieldPath) -> dict[str, Any]:
    """The mapping at the path; empty where there is none."""
    for name in path:
        value = (value or {}).get(name)
    return value or {}


def _comments(items: Sequence[str]) -> list[str]:
    """The comments of a list; that of an item has the item before it."""
    found = []
    for item in (each.strip() for each in items):
        if item.startswith("#"):
            found.append(f"  {item}")
        elif " #" in item:
            found.append(f"  # {item.removeprefix('- ')}")
    return found


_BY_HAND = (
    "the requirements cannot be changed line by line; write them in YAML's block form, as a list below"
    " `requirements:` with one to a line"
)


def requirement_lines(requirements: Sequence[str]) -> list[str]:
    """The items of a YAML list; one with several hashes is folded, with a hash to a line."""
    made = []
    for item in requirements:
        plain, hashes = split_hashes(item)
        if len(hashes) > 1:
            made.append("  - >-")
            made += [f"    {word}" for word in (plain, *(f"--hash=sha256:{each}" for each in sorted(hashes)))]
        else:
            made.append(f"  - {dump(item, flow=True).rstrip()}")
    return made
