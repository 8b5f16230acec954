"""Implementations of ``dgym benchmark health`` and ``verify``."""

import asyncio
import sys
from collections.abc import Sequence

import msgspec

from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    HEALTHY,
    ImageNames,
    RowError,
    TaskHealth,
    add_health,
    load_adapter,
    make_tasks,
    open_imported,
)
from dgym.cli.benchmark.cluster_health import Place, health_in_cluster
from dgym.cli.benchmark.rendering import Choice, Chosen, choose
from dgym.cli.output import FAILED, INTERRUPTED, add_row, echo, echo_json, in_one_line, show_table, table
from dgym.env import Opening, check_task
from dgym.errors import InfrastructureError, ManifestError
from dgym.session.verification import Assessment

_FLAKY = "flaky: "


def check_health(
    name: str, choice: Choice, *, repeats: int, sandbox: str, engine: str, python: str | None, output: str
) -> None:
    """Check the chosen tasks on this machine, remember and print their health; exit with 1 where one is not healthy."""
    chosen = choose(name, msgspec.structs.replace(choice, unhealthy=True))
    opening = msgspec.convert({"sandbox": sandbox, "engine": engine, "python": python}, Opening)
    _remember(chosen, asyncio.run(_check_all(chosen, opening, repeats)), output)


def check_health_in_cluster(
    name: str, choice: Choice, place: Place, *, repeats: int, start_timeout: int, output: str
) -> None:
    """The same in a cluster, where the health becomes a condition of each DebugTask as well."""
    chosen = choose(name, msgspec.structs.replace(choice, unhealthy=True))
    try:
        found = asyncio.run(health_in_cluster(chosen, place, repeats=repeats, start_timeout=start_timeout))
    except KeyboardInterrupt:
        echo("Interrupted; the episodes go on, and the same command waits for them again.", err=True)
        sys.exit(INTERRUPTED)
    _remember(chosen, found, output)


def _remember(chosen: Chosen, found: Sequence[TaskHealth], output: str) -> None:
    chosen.source.directory.mkdir(parents=True, exist_ok=True)
    add_health(chosen.source.health, found)
    if output == "json":
        echo_json(found)
    else:
        _show(found)
    if any(one.state != HEALTHY for one in found):
        sys.exit(FAILED)


async def _check_all(chosen: Chosen, opening: Opening, repeats: int) -> list[TaskHealth]:
    def progress(text: str) -> None:
        echo(text, err=True)

    found = []
    for task, instance in zip(chosen.tasks, chosen.instances, strict=True):
        try:
            found.append(_health(instance, await check_task(task, opening, repeats=repeats, progress=progress)))
        except InfrastructureError as error:
            found.append(TaskHealth(instance=instance, state="Broken", message=in_one_line(str(error))))
    return found


def _health(instance: str, assessment: Assessment) -> TaskHealth:
    if not assessment.problems:
        return TaskHealth(instance=instance, state="Healthy")
    flaky = all(problem.startswith(_FLAKY) for problem in assessment.problems)
    message = in_one_line("; ".join(assessment.problems))
    return TaskHealth(instance=instance, state="Flaky" if flaky else "Broken", message=message)


def _show(found: Sequence[TaskHealth]) -> None:
    drawn = table(("INSTANCE", "HEALTH", "MESSAGE"), breaking=("MESSAGE",))
    for one in found:
        add_row(drawn, (one.instance, one.state, one.message))
    show_table(drawn)


def verify_rows(name: str, split: str | None) -> None:
    """Print how many rows are as imported and become valid tasks.

    Raises:
        ManifestError: The file was changed, or a row makes no task.
    """
    if name in bundled():
        echo(f"{name}: {len(load_bundled(name))} instances come with dgym and are valid tasks")
        return
    found = open_imported(name, split)
    adapter = load_adapter(found.adapter)
    try:
        rows = [adapter.row(row, ImageNames()) for row in found.load()]
    except RowError as error:
        raise ManifestError(f"{found.file}: {error}") from None
    tasks = make_tasks(name, found.split, rows)
    echo(f"{name}, split {found.split}: {len(tasks)} instances are as imported and become valid tasks")
