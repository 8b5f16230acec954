"""``dgym lock``: write exact versions and hashes of requirements into the manifests of tasks."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dgym.api import DebugTask, DebugTaskSpec, Episode, Loaded, load_documents, split_hashes
from dgym.cli.manifests import place_of
from dgym.cli.options import complete_paths
from dgym.cli.output import echo, write_text
from dgym.cli.proposal import requirement_lines
from dgym.documents import end_of_field, indent_of, read_yaml
from dgym.errors import FieldPath, ManifestError
from dgym.sandbox.local import Pinned, pin_requirements
from dgym.terminal import printable_line


def is_locked(spec: DebugTaskSpec) -> bool:
    """Return True if every requirement has hashes, or if the task has no requirements."""
    return all(split_hashes(line)[1] for line in spec.declared_environment().requirements)


@click.command("lock")
@click.argument("manifests", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_paths)
def lock_command(manifests: tuple[str, ...]) -> None:
    """Write exact versions and hashes of the requirements into manifests of tasks.

    TASK is a manifest of DebugTasks or Episodes. The package index resolves environment.requirements (or requirements)
    for environment.python, or for the Python that runs dgym. Nothing is installed. The new list contains every
    distribution with the hashes of its wheels, for Linux and macOS. Installations do not accept other wheels. Comments
    are kept.
    """
    for file in manifests:
        tasks = [item for item in load_documents(Path(file), allow_local_paths=["/"]) if _requirements(item)]
        if not tasks:
            raise ManifestError(f"{file}: none of its tasks has requirements, so nothing was locked")
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
    """Return the exact versions of a task's requirements, and the version of Python for which they were resolved."""
    spec = _task_spec(item)
    assert spec is not None
    python = spec.declared_environment().python
    wanted = [split_hashes(line)[0] for line in _requirements(item)]
    pinned = asyncio.run(pin_requirements([wanted], python_version=python))
    if pinned.left_out:
        line, why = pinned.left_out[0]
        raise ManifestError(f"{place_of(item)}: the requirement {line!r} cannot be locked: {why}; change or remove it")
    if not pinned.hashes:
        raise ManifestError(
            f"{place_of(item)}: the package index does not provide hashes; use another index, or install uv"
        )
    return pinned, python or f"{sys.version_info[0]}.{sys.version_info[1]}"


def with_requirements(text: str, number: int, requirements: Sequence[str], python: str) -> str:
    """Return the manifest ``text`` with these requirements in document ``number``. Comments stay.

    ``environment.python`` is added if it is missing.

    Raises:
        ManifestError: The document cannot be changed line by line.
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
    """Return the mapping at the path. It is empty if the path does not exist."""
    for name in path:
        value = (value or {}).get(name)
    return value or {}


def _comments(items: Sequence[str]) -> list[str]:
    """Return the comments of a list. The comment of an item starts with the text of the item."""
    found = []
    for item in (each.strip() for each in items):
        if item.startswith("#"):
            found.append(f"  {item}")
        elif " #" in item:
            found.append(f"  # {item.removeprefix('- ')}")
    return found


_BY_HAND = (
    "the requirements cannot be changed line by line; write them in YAML's block form, as a list below"
    " `requirements:`, each on its own line"
)
