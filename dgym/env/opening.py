"""From a task to what a session needs: a sandbox's specification and a tar of the repository."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from dgym.api import DebugTask, digest, load
from dgym.api.quantities import parse_quantity
from dgym.errors import ManifestError
from dgym.sandbox import Limits, SandboxSpec
from dgym.sandbox.environments import ensure_environment, resolve_python
from dgym.sandbox.local_files import cache_directory
from dgym.session.ending import SuiteCache
from dgym.workspace.sources import pack_source


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what a task's programs run on this machine."""

    sandbox: Literal["auto", "bubblewrap", "none"] = "auto"
    python: str | None = None
    progress: Callable[[str], None] | None = None

    async def sandbox_spec(self, task: DebugTask) -> SandboxSpec:
        """The specification of the task's sandbox; its ``requirements`` are installed if they are not yet.

        Raises:
            SetupFailed: The requirements could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment.
        """
        spec = task.spec
        if self.python is not None:
            python = resolve_python(self.python)
        else:
            python = await ensure_environment(spec.requirements, progress=self.progress)
        return SandboxSpec(
            workspace=spec.working_directory,
            environment={variable.name: variable.value for variable in spec.env},
            activate=spec.activate,
            interpreter=spec.interpreter,
            python=python,
            limits=_limits(task),
        )


def open_task(task: DebugTask | str | Path) -> DebugTask:
    """The task itself, or the only one of a manifest.

    Raises:
        ManifestError: The manifest is wrong or does not hold exactly one DebugTask.
    """
    if isinstance(task, DebugTask):
        return task
    tasks = [resource for resource in load(task) if isinstance(resource, DebugTask)]
    if len(tasks) != 1:
        raise ManifestError(f"{task}: has {len(tasks)} DebugTasks, not one; pass one of dgym.load() instead")
    return tasks[0]


async def open_source(task: DebugTask, directory: Path) -> Path | None:
    """A tar of the task's repository below ``directory`` (or in the cache); None when it has no source.

    Raises:
        SourceFailed: It could not be obtained.
    """
    if task.spec.source is None:
        return None
    return await pack_source(task.spec.source, base=directory, cache=cache_directory() / "sources")


def suite_cache(task: DebugTask, source: Path | None, python: str | None) -> SuiteCache:
    """Where the suite of this task's untouched repository is remembered.

    The key has the sources themselves, since a local path stays the same while its files change.
    """
    hashed = hashlib.sha256(msgspec.json.encode([digest(task, None), python]))
    if source is not None:
        with source.open("rb") as file:
            while chunk := file.read(1024**2):
                hashed.update(chunk)
    return SuiteCache(cache_directory() / "suites", hashed.hexdigest())


def _limits(task: DebugTask) -> Limits:
    memory = task.spec.resources.limits.get("memory")
    return Limits() if memory is None else Limits(memory_bytes=int(parse_quantity(memory)))
