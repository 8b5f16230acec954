"""``dgym benchmark health``: find out which tasks are healthy, flaky or broken, on this machine or in a cluster.

In a cluster, two EpisodeSets run the tasks. The result becomes a condition of each DebugTask. This command writes the
condition, because it depends on stored results, which the operator does not read.
"""

import asyncio
import hashlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.api import (
    AgentSpec,
    Condition,
    ConditionType,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    Loaded,
    ObjectMeta,
    TaskRef,
)
from dgym.benchmarks.datasets import HEALTHY, NOT_CHECKED, HealthRun, TaskHealth, add_health, assess_health
from dgym.cli.benchmark.choosing import Choice, Chosen, choose, takes_choice
from dgym.cli.cluster.connection import EpisodeView, Meta, ObjectView, SetView, connect, selector_of_children
from dgym.cli.cluster.results import open_results
from dgym.cli.options import ClusterPlace, output_option, repeat_option, takes_cluster_place, takes_opening
from dgym.cli.output import FAILED, INTERRUPTED, add_row, echo, echo_json, in_one_line, show_table, table
from dgym.cli.results import Fetched, fetch
from dgym.cli.submit import apply_all, finished, manifest_of, with_repositories_inline
from dgym.env import Opening, check_task
from dgym.errors import InfrastructureError, ManifestError
from dgym.kube import DEBUG_TASKS, EPISODE_SETS, EPISODES, Client
from dgym.session.scoring import Assessment

_FLAKY = "flaky: "
_SUBMIT = '{"tool": "submit", "arguments": {}}'
_AGENTS = {
    "empty": AgentSpec(name="replay", parameters={"trajectory": _SUBMIT}),
    "gold": AgentSpec(name="solution"),
}
_KEPT_SECONDS = 24 * 3600
_MESSAGE_CHARACTERS = 1024

Runs = dict[tuple[str, str], list[HealthRun]]
"""The runs of each task. The key is ``empty`` or ``gold`` and the name of the task."""


@click.command("health")
@click.argument("name")
@takes_choice
@repeat_option("Number of runs of each patch.")
@takes_opening("sandbox", "engine", "python")
@click.option("--cluster", is_flag=True, help="Run in a cluster, and write the condition Healthy of DebugTasks.")
@click.option(
    "--start-timeout",
    type=click.IntRange(1, 7 * 86400),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="Time limit in the cluster until a sandbox is ready, including the pull of its image.",
)
@takes_cluster_place()
@output_option
def health_command(
    name: str,
    repeat: int,
    opening: Opening,
    output: str,
    *,
    cluster: bool,
    start_timeout: int,
    place: ClusterPlace,
    **choice: Any,
) -> None:
    """Run the empty and the gold patch of each instance, and record which tasks are healthy, flaky or broken.

    render and run exclude flaky and broken tasks. With --cluster, DebugTasks are applied and get the condition Healthy.
    Their episodes are deleted afterwards.

    Exit status: 0 all are healthy, 1 some are not, 2 usage or data, 130 Ctrl-C.
    """
    if (place.context or place.namespace) and not cluster:
        raise click.UsageError("--context and --namespace choose a cluster; give --cluster as well")
    chosen = choose(name, Choice(**choice, unhealthy=True))
    if cluster:
        checks = _check_in_cluster(chosen, place, repeat, start_timeout)
    else:
        checks = _check_here(chosen, opening, repeat)
    try:
        found = asyncio.run(checks)
    except KeyboardInterrupt:
        if cluster:
            echo("Interrupted; the episodes continue, and the same command waits for them again.", err=True)
        sys.exit(INTERRUPTED)
    chosen.source.directory.mkdir(parents=True, exist_ok=True)
    add_health(chosen.source.health, found)
    if output == "json":
        echo_json(found)
    else:
        _show(found)
    if any(one.state != HEALTHY for one in found):
        sys.exit(FAILED)


async def _check_here(chosen: Chosen, opening: Opening, repeats: int) -> list[TaskHealth]:
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


async def _check_in_cluster(chosen: Chosen, place: ClusterPlace, repeats: int, start_timeout: int) -> list[TaskHealth]:
    """Run the empty and the gold patch of each task ``repeats`` times, and write the condition ``Healthy``.

    The EpisodeSets are deleted afterwards, but the DebugTasks stay. After an interruption, the same call waits for the
    same EpisodeSets again.

    Raises:
        DgymError: The cluster cannot be reached or refuses an object, or the user may not read results.
    """
    loaded = [Loaded(task, chosen.source.name, number) for number, task in enumerate(chosen.tasks, start=1)]
    tasks = [one.resource for one in with_repositories_inline(loaded)]
    sets = {kind: made for kind in _AGENTS if (made := _make_set(kind, chosen, repeats, start_timeout)) is not None}
    async with connect(place) as client:
        async with open_results(client, place.system_namespace):
            pass
        await apply_all(client, [manifest_of(task, client.namespace) for task in tasks], to_stderr=True)
        await apply_all(client, [manifest_of(one, client.namespace) for one in sets.values()], to_stderr=True)
        names = {kind: one.metadata.name for kind, one in sets.items()}
        keys = [(client.namespace, name) for name in names.values()]
        for key, last in (await finished(client, EPISODE_SETS, SetView, keys)).items():
            if last is None:
                raise ManifestError(f"{key[1]}: deleted from namespace {key[0]} before it was finished")
        with tempfile.TemporaryDirectory() as directory:
            chosen_names = [f"episodeset/{name}" for name in names.values()]
            fetched = await fetch(chosen_names, Path(directory), place)
        runs = await _runs(client, names, {one.episode: one for one in fetched})
        found = []
        for task, instance in zip(chosen.tasks, chosen.instances, strict=True):
            name = task.metadata.name
            health = assess_health(instance, runs["empty", name], runs["gold", name])
            await _write_condition(client, name, health)
            found.append(health)
        for name in names.values():
            await client.delete(EPISODE_SETS, name, decode=SetView, namespace=client.namespace)
    return found


def _make_set(kind: str, chosen: Chosen, repeats: int, start_timeout: int) -> EpisodeSet | None:
    """Return the EpisodeSet of one kind. It is None for ``gold`` if no task has a gold patch."""
    tasks = [task for task in chosen.tasks if kind != "gold" or task.spec.solution is not None]
    if not tasks:
        return None
    agent = _AGENTS[kind]
    spec = EpisodeSetSpec(
        tasks=tuple(TaskRef(name=task.metadata.name) for task in tasks),
        samples=repeats,
        template=EpisodeSpec(agent=agent, tools=("submit",), start_timeout_seconds=start_timeout),
        parallelism=100,
        ttl_seconds_after_finished=_KEPT_SECONDS,
    )
    digest = hashlib.sha256(msgspec.json.encode([spec, *tasks])).hexdigest()[:8]
    name = f"{chosen.source.name[:24].rstrip('-')}-health-{kind}-{digest}"
    return EpisodeSet(metadata=ObjectMeta(name=name), spec=spec)


class _ChildSpec(ObjectView, frozen=True, kw_only=True):
    task_ref: TaskRef


class _Child(EpisodeView, frozen=True, kw_only=True):
    spec: _ChildSpec


async def _runs(client: Client, names: dict[str, str], fetched: dict[str, Fetched]) -> Runs:
    """Return the runs of all sets, from stored results and, for failed episodes, from their status."""
    runs: Runs = defaultdict(list)
    for kind, name in names.items():
        selector = selector_of_children(name)
        for child in await client.list(EPISODES, decode=_Child, namespace=client.namespace, label_selector=selector):
            runs[kind, child.spec.task_ref.name].append(_run(child, fetched.get(child.metadata.name)))
    return runs


def _run(child: _Child, fetched: Fetched | None) -> HealthRun:
    if child.failed:
        return HealthRun(reason=child.status.reason, message=child.message)
    if fetched is None or fetched.result is None:
        return HealthRun(reason="InternalError", message="its result is not in the results store")
    return msgspec.convert(fetched.result, HealthRun, from_attributes=True)


class _TaskMeta(Meta, frozen=True, kw_only=True):
    generation: int = 0


class _TaskStatus(ObjectView, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()


class _Task(ObjectView, frozen=True, kw_only=True):
    metadata: _TaskMeta
    status: _TaskStatus = _TaskStatus()


async def _write_condition(client: Client, name: str, health: TaskHealth) -> None:
    where: dict[str, Any] = {"namespace": client.namespace}
    task = await client.get(DEBUG_TASKS, name, decode=_Task, **where)
    status = "True" if health.state == HEALTHY else "Unknown" if health.state == NOT_CHECKED else "False"
    before = next((one for one in task.status.conditions if one.type == ConditionType.HEALTHY), None)
    unchanged = before is not None and before.status == status
    condition = {
        "type": ConditionType.HEALTHY,
        "status": status,
        "reason": health.state,
        "message": health.message[:_MESSAGE_CHARACTERS],
        "lastTransitionTime": before.last_transition_time if before and unchanged else datetime.now(UTC),
        "observedGeneration": task.metadata.generation,
    }
    others = [one for one in task.status.conditions if one.type != ConditionType.HEALTHY]
    change = {"status": {"conditions": msgspec.to_builtins([*others, condition])}}
    await client.patch(DEBUG_TASKS, name, change, decode=bytes, subresource="status", field_manager="dgym", **where)
