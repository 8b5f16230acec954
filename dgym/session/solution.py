"""Apply a task's gold patch to a workspace: how tasks are checked without a model."""

import stat

from dgym.api import DebugTask
from dgym.errors import ManifestError
from dgym.sandbox import Sandbox
from dgym.wire import Observation
from dgym.workspace.apply import apply_patch, patched_paths
from dgym.workspace.errors import PatchError
from dgym.workspace.files import FileVersion


def solution_paths(task: DebugTask) -> tuple[str, ...]:
    """The paths that the task's gold patch changes; none where there is no patch that can be read."""
    try:
        return tuple(patched_paths(task.spec.solution)) if task.spec.solution else ()
    except PatchError:
        return ()


async def apply_solution(sandbox: Sandbox, task: DebugTask) -> Observation:
    """Make the changes of ``spec.solution``; the observation names the files.

    Raises:
        ManifestError: The patch does not apply.
    """
    solution = task.spec.solution
    if not solution:
        return Observation(text="the task has no solution", ok=False)
    updates = await solution_versions(sandbox, task)
    for path, version in updates.items():
        await sandbox.remove([path])
        if version is not None:
            await sandbox.write_file(path, version.data, mode=version.mode)
    return Observation(text="applied the solution to " + ", ".join(sorted(updates)))


async def solution_versions(sandbox: Sandbox, task: DebugTask) -> dict[str, FileVersion | None]:
    """What the gold patch makes of the files in ``sandbox``; None: deleted.

    Raises:
        ManifestError: The patch does not apply.
    """
    try:
        return await _updates(sandbox, task.spec.solution or "")
    except PatchError as error:
        name = task.metadata.name
        raise ManifestError(f"task {name}: spec.solution does not apply to its source: {error}") from None


async def _updates(sandbox: Sandbox, solution: str) -> dict[str, FileVersion | None]:
    manifest = await sandbox.manifest()
    originals = {
        path: FileVersion(await sandbox.read_file(path), stat.S_IMODE(manifest[path].mode))
        for path in patched_paths(solution)
        if path in manifest and manifest[path].type == "file"
    }
    return apply_patch(solution, originals.get)
