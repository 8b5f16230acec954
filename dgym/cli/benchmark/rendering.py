"""Implementations of ``dgym benchmark render`` and ``run``."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dgym.agents import ModelAgent, load_agent
from dgym.api import (
    AgentOverrides,
    AgentSpec,
    DebugTask,
    EpisodeSet,
    Loaded,
    Resource,
    SourceSpec,
    expand,
    in_order_of_use,
)
from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    HEALTHY,
    Checkouts,
    ImageNames,
    Imported,
    Row,
    RowError,
    load_adapter,
    make_set,
    make_tasks,
    open_imported,
    read_health,
    select,
)
from dgym.cli.benchmark.arms import with_arms
from dgym.cli.benchmark.figures import estimate, in_short
from dgym.cli.benchmark.library import open_bundled
from dgym.cli.output import echo, in_one_line
from dgym.cli.run import make_plan, run_plan
from dgym.documents import dump
from dgym.episodes import RunOptions
from dgym.errors import ManifestError, PluginError

_Agent = TypeVar("_Agent", AgentSpec, AgentOverrides)
_ONLY_BY_A_CALL = {"evalOnReset": False, "evalOnRewrite": False}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances, their images, and the episodes of each, as the command line names them."""

    split: str | None = None
    filters: tuple[str, ...] = ()
    limit: int | None = None
    template: str | None = None
    registry: str | None = None
    repositories: str | None = None
    agent: str | None = None
    model: str | None = None
    arms: tuple[str, ...] = ()
    samples: int = 1
    unhealthy: bool = False


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a choice; ``whole``: they are those of all rows. ``instances``: their ids, in the same order.

    ``left_out``: how many tasks are left out, by their health.
    """

    source: Imported
    tasks: tuple[DebugTask, ...]
    instances: tuple[str, ...]
    whole: bool
    left_out: dict[str, int]


def choose(name: str, choice: Choice, checkouts: Path | None = None) -> Chosen:
    """The tasks of the chosen instances; ``checkouts``: where commits of local repositories are exported to.

    Raises:
        ManifestError: A name, an instance or a row is wrong.
    """
    if name in bundled():
        return _choose_bundled(name, choice)
    found = open_imported(name, choice.split)
    adapter = load_adapter(found.adapter)
    rows = found.load()
    chosen = select(rows, adapter.key, choice.filters, choice.limit)
    images = ImageNames(template=choice.template, registry=choice.registry)
    kept: list[Row] = []
    healthy, left_out = _healthy([str(row[adapter.key]) for row in chosen], found, choice)
    for row in chosen:
        if str(row[adapter.key]) not in healthy:
            continue
        try:
            kept.append(adapter.row(row, images))
        except RowError as error:
            raise ManifestError(f"{found.file}: {row[adapter.key]}: {error}") from None
    kept = in_order_of_use(kept, lambda row: row.image)
    where = checkouts or found.directory / "checkouts"
    checkout = None if choice.repositories is None else Checkouts(Path(choice.repositories), where)
    return Chosen(
        source=found,
        tasks=tuple(make_tasks(name, found.split, kept, checkout)),
        instances=tuple(row.instance for row in kept),
        whole=len(kept) == len(rows),
        left_out=left_out,
    )


def _choose_bundled(name: str, choice: Choice) -> Chosen:
    found = open_bundled(name)
    tasks = {task.metadata.name: task for task in load_bundled(name)}
    for option, value in (("--image", choice.template), ("--registry", choice.registry)):
        if value is not None:
            raise ManifestError(f"{option}: the tasks of {name} have no images of their own; leave it out")
    if choice.repositories is not None:
        raise ManifestError(f"--repositories: the tasks of {name} hold their files; leave it out")
    if choice.split not in (None, found.split):
        raise ManifestError(f"benchmark {name!r} has no split {choice.split!r}: {found.split}")
    rows = [{"instance": instance} for instance in tasks]
    chosen = [str(row["instance"]) for row in select(rows, "instance", choice.filters, choice.limit)]
    kept, left_out = _healthy(chosen, found, choice)
    return Chosen(
        source=found,
        tasks=tuple(tasks[instance] for instance in kept),
        instances=tuple(kept),
        whole=False,  # The label of the split is not on the tasks.
        left_out=left_out,
    )


def _healthy(instances: Sequence[str], found: Imported, choice: Choice) -> tuple[list[str], dict[str, int]]:
    """The instances that are not known as flaky or broken, and how many are left out by their health."""
    health = {} if choice.unhealthy else read_health(found.health)
    kept: list[str] = []
    left_out: Counter[str] = Counter()
    for instance in instances:
        known = health.get(instance)
        if known is None or known.state == HEALTHY:
            kept.append(instance)
            continue
        left_out[known.state] += 1
        echo(in_one_line(f"left out: {instance} ({known.state}: {known.message})"), err=True)
    if not kept:
        raise ManifestError(
            f"benchmark {found.name!r}: no instance is left, all are flaky or broken; --unhealthy takes them"
        )
    return kept, dict(left_out)


def render(name: str, choice: Choice, directory: str | None) -> None:
    """Write the manifests, to a directory that is new or empty, or to standard output."""
    target = None if directory is None else Path(directory)
    if target is not None and target.is_dir() and any(target.iterdir()):
        raise ManifestError(f"{target}: is not empty; name a new directory")
    chosen = choose(name, choice, None if target is None else target / "repositories")
    whole = episode_set(chosen, choice)
    if target is None:
        resources: list[Resource] = [*chosen.tasks, whole]
        echo("---\n".join(map(_text, resources)), nl=False)
        return
    echo(f"{in_short(estimate(expand(whole, chosen.tasks)))}; dgym benchmark estimate has more", err=True)
    target.mkdir(parents=True, exist_ok=True)
    for task in chosen.tasks:
        (target / f"{task.metadata.name}.yaml").write_text(_text(_relative(task, target)), "utf-8")
    (target / "episodeset.yaml").write_text(_text(whole), "utf-8")
    echo(f"wrote {len(chosen.tasks)} DebugTasks and EpisodeSet {whole.metadata.name} to {target}", err=True)


def run(name: str, choice: Choice, options: RunOptions, *, workers: int | None, force: bool, output: str) -> None:
    """Run the episodes on this machine and print their results."""
    if choice.agent is None and not choice.arms:
        raise ManifestError("no agent is named; give --agent NAME (solution applies the gold patch)")
    chosen = choose(name, choice)
    source = f"benchmark:{name}"
    resources: list[Resource] = [episode_set(chosen, choice), *chosen.tasks]
    loaded = [Loaded(resource, source, number) for number, resource in enumerate(resources, start=1)]
    plan = make_plan(loaded, options)
    run_plan(plan, workers, force=force, force_failed=False, debug=False, output=output, apply_patch=False)


def episode_set(chosen: Chosen, choice: Choice) -> EpisodeSet:
    """The set of the chosen tasks."""
    agent = None if choice.agent is None else AgentSpec(name=choice.agent, model=choice.model)
    source = chosen.source
    made = make_set(
        source.name.replace("_", "-"),
        source.split,
        chosen.tasks,
        whole=chosen.whole,
        agent=agent,
        samples=choice.samples,
        left_out=chosen.left_out,
    )
    made = with_arms(made, choice.arms)
    return _without_runs_of_the_suite(made) if any(task.spec.scoring.test_patch for task in chosen.tasks) else made


def _without_runs_of_the_suite(made: EpisodeSet) -> EpisodeSet:
    """The set whose agents run the tests only by a call, unless its parameters have it otherwise.

    The entrypoint of a task with a test patch runs the repository's whole suite, which may take longer than the
    episode.
    """
    common = made.spec.template.agent
    name = "" if common is None else common.name
    arms = tuple(
        arm
        if arm.agent.parameters is None and arm.agent.name in (None, name)
        else msgspec.structs.replace(arm, agent=_only_by_a_call(arm.agent, arm.agent.name or name))
        for arm in made.spec.arms
    )
    template = made.spec.template
    if common is not None:
        template = msgspec.structs.replace(template, agent=_only_by_a_call(common, name))
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, template=template, arms=arms))


def _only_by_a_call(agent: _Agent, name: str) -> _Agent:
    try:
        found = load_agent(name)
    except PluginError:
        return agent
    if not issubclass(found, ModelAgent):
        return agent
    return msgspec.structs.replace(agent, parameters={**_ONLY_BY_A_CALL, **(agent.parameters or {})})


def _text(resource: Resource) -> str:
    built = msgspec.to_builtins(resource)
    built.pop("status", None)
    return dump(built)


def _relative(task: DebugTask, target: Path) -> DebugTask:
    """The task with a local path as seen from its manifest."""
    source = task.spec.source
    if source is None or source.local_path is None:
        return task
    path = f"./{os.path.relpath(source.local_path, target)}"
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, source=SourceSpec(local_path=path)))
