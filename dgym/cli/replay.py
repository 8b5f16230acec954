"""``dgym replay``: execute recorded calls again, and show the observations that differ."""

import asyncio
import sys
from pathlib import Path

import click

from dgym.api import DebugTask
from dgym.benchmarks import bundled_tasks
from dgym.cli.check import tasks_of
from dgym.cli.manifests import PREFIX, read_manifests
from dgym.cli.options import (
    Inputs,
    complete_paths,
    local_paths_option,
    output_option,
    takes_opening,
)
from dgym.cli.output import FAILED, echo, echo_json
from dgym.env import Opening
from dgym.episodes import ReplayComparison, run_again, task_digest
from dgym.errors import ManifestError
from dgym.results import TimedStep, Trajectory, read_trajectory
from dgym.terminal import printable_line


@click.command("replay")
@click.argument("trajectories", nargs=-1, required=True, metavar="TRAJECTORY...", shell_complete=complete_paths)
@click.option(
    "--task",
    "manifest",
    metavar="MANIFEST",
    shell_complete=complete_paths,
    help="The manifest with the task. [default: a bundled manifest, or with --trust the recorded manifest]",
)
@local_paths_option
@click.option("--trust", is_flag=True, help="Read the manifest and import the tools that the trajectories name.")
@takes_opening("sandbox", "engine", "python")
@output_option
def replay_command(
    trajectories: tuple[str, ...],
    manifest: str | None,
    local_paths: tuple[str, ...],
    trust: bool,
    opening: Opening,
    output: str,
) -> None:
    """Run recorded trajectories again and compare the observations.

    The recorded calls are made in a new session of the same task. Observations are compared without addresses, process
    ids, durations and temporary paths. A trajectory may name a manifest, and tools by their module. Use --trust only
    for your own trajectories: it reads the manifest, and imports the tools. Exit status: 0 all are the same, 1
    something differs.
    """
    recorded = {path: read_trajectory(Path(path)) for path in trajectories}
    if not trust:
        for path, trajectory in recorded.items():
            _require_nothing_foreign(path, trajectory, manifest)
    compared = {}
    for path, trajectory in recorded.items():
        task = _find_task(trajectory, manifest, local_paths)
        comparison = asyncio.run(run_again(trajectory, task, opening))
        compared[path] = comparison
        if output == "table":
            _show(path, trajectory, comparison)
    if output == "json":
        echo_json(compared)
    if any(comparison.differences for comparison in compared.values()):
        sys.exit(FAILED)


def _require_nothing_foreign(path: str, trajectory: Trajectory[TimedStep], manifest: str | None) -> None:
    """Refuse a trajectory that chooses code to import or directories to read, because its author may be hostile.

    Raises:
        ManifestError: The trajectory names a manifest and the command line does not, or it names a tool by its module.
    """
    header = trajectory.header
    if manifest is None and not header.manifest.startswith(PREFIX):
        raise ManifestError(
            f"{path}: the recorded manifest is {header.manifest!r}; give --task MANIFEST, or --trust to use the"
            " recorded manifest"
        )
    for tool in header.tools:
        name = tool.get("name") if isinstance(tool, dict) else tool
        if ":" in str(name):
            raise ManifestError(f"{path}: the recorded tools import {str(name)[:200]!r}; give --trust to import it")


def _find_task(trajectory: Trajectory[TimedStep], manifest: str | None, local_paths: tuple[str, ...]) -> DebugTask:
    """Return the task of the recorded name. Warn if it has changed, because the observations will differ."""
    header = trajectory.header
    where = manifest or header.manifest
    for task in _tasks_in(where, local_paths):
        if task.metadata.name == header.task:
            if task_digest(task) != header.task_digest:
                text = f"Warning: task {header.task} has changed since {header.episode} was recorded"
                echo(printable_line(text), err=True)
            return task
    raise ManifestError(
        f"{where} does not contain task {header.task!r}; give the manifest that contains it: --task MANIFEST"
    )


def _tasks_in(where: str, local_paths: tuple[str, ...]) -> list[DebugTask]:
    if where.startswith(PREFIX):
        return bundled_tasks()
    tasks = tasks_of(read_manifests(Inputs(manifests=(where,), local_paths=local_paths)))
    return tasks or bundled_tasks()


def _show(path: str, trajectory: Trajectory[TimedStep], comparison: ReplayComparison) -> None:
    torn = " (its last line is truncated and was ignored)" if trajectory.torn else ""
    number = len({difference.seq for difference in comparison.differences})
    summary = f"{number} differ" if number else "all the same"
    echo(printable_line(f"{path}: {trajectory.header.episode}: {comparison.steps} steps, {summary}{torn}"))
    for difference in comparison.differences:
        echo(printable_line(f"  step {difference.seq} ({difference.tool}): {difference.field}"))
        for line in difference.text.split("\n"):
            echo(f"    {line}")
