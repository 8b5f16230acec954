"""``dgym replay``: recorded calls executed again, and the observations that differ."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from dgym.api import DebugTask
from dgym.cli.check import tasks_of
from dgym.cli.manifests import PREFIX, bundled_tasks, read_manifests
from dgym.cli.options import Inputs
from dgym.cli.output import FAILED, echo, echo_json
from dgym.episodes import Comparison, run_again, task_digest
from dgym.errors import ManifestError
from dgym.results import Trajectory, read_trajectory
from dgym.terminal import printable_line


def replay_all(
    trajectories: Sequence[str],
    manifest: str | None,
    local_paths: tuple[str, ...],
    *,
    trust: bool,
    sandbox: str,
    engine: str,
    python: str | None,
    output: str,
) -> None:
    """Replay one trajectory after the other and print the differences; exit with 1 where there are any."""
    recorded = {path: read_trajectory(Path(path)) for path in trajectories}
    if not trust:
        for path, trajectory in recorded.items():
            _require_nothing_foreign(path, trajectory, manifest)
    compared = {}
    for path, trajectory in recorded.items():
        task = _find_task(trajectory, manifest, local_paths)
        comparison = asyncio.run(run_again(trajectory, task, sandbox=sandbox, engine=engine, python=python))
        compared[path] = comparison
        if output == "table":
            _show(path, trajectory, comparison)
    if output == "json":
        echo_json(compared)
    if any(comparison.differences for comparison in compared.values()):
        sys.exit(FAILED)


def _require_nothing_foreign(path: str, trajectory: Trajectory, manifest: str | None) -> None:
    """Refuse a trajectory that chooses code to import or directories to read: its author may be hostile.

    Raises:
        ManifestError: It names a manifest, and the command line names none; or it names a tool by its module.
    """
    header = trajectory.header
    if manifest is None and not header.manifest.startswith(PREFIX):
        raise ManifestError(
            f"{path}: the recorded manifest is {header.manifest!r}; give --task MANIFEST, or --trust to use that one"
        )
    for tool in header.tools:
        name = tool.get("name") if isinstance(tool, dict) else tool
        if ":" in str(name):
            raise ManifestError(f"{path}: the recorded tools import {str(name)[:200]!r}; give --trust to import it")


def _find_task(trajectory: Trajectory, manifest: str | None, local_paths: tuple[str, ...]) -> DebugTask:
    """The task of the recorded name; a changed one is announced, because its observations will differ."""
    header = trajectory.header
    where = manifest or header.manifest
    for task in _tasks_in(where, local_paths):
        if task.metadata.name == header.task:
            if task_digest(task) != header.task_digest:
                text = f"Warning: task {header.task} has changed since {header.episode} was recorded"
                echo(printable_line(text), err=True)
            return task
    raise ManifestError(f"{where} holds no task {header.task!r}; give the manifest that does: --task MANIFEST")


def _tasks_in(where: str, local_paths: tuple[str, ...]) -> list[DebugTask]:
    if where.startswith(PREFIX):
        return bundled_tasks()
    tasks = tasks_of(read_manifests(Inputs(manifests=(where,), local_paths=local_paths)))
    return tasks or bundled_tasks()


def _show(path: str, trajectory: Trajectory, comparison: Comparison) -> None:
    torn = " (its last line is cut short and was left out)" if trajectory.torn else ""
    number = len({difference.seq for difference in comparison.differences})
    verdict = f"{number} differ" if number else "all the same"
    echo(printable_line(f"{path}: {trajectory.header.episode}: {comparison.steps} steps, {verdict}{torn}"))
    for difference in comparison.differences:
        echo(printable_line(f"  step {difference.seq} ({difference.tool}): {difference.field}"))
        for line in difference.text.split("\n"):
            echo(f"    {line}")
