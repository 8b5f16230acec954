"""``dgym benchmark render``, ``run`` and ``predictions``: use a benchmark.

They write it as manifests, run it on this machine, and print patches in the format of the official SWE-bench harness.
"""

import json
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.api import DebugTask, Loaded, Resource, SourceSpec, expand
from dgym.benchmarks.datasets import (
    ImageNames,
    Row,
    command_between_markers,
    imported,
    load_adapter,
    make_tasks,
    names_test_files,
)
from dgym.cli.benchmark.choosing import Choice, choose, episode_set, takes_choice, takes_episodes
from dgym.cli.benchmark.estimating import estimate, in_short
from dgym.cli.options import (
    complete_directories,
    llm_config_option,
    output_option,
    takes_opening,
)
from dgym.cli.output import echo
from dgym.cli.run import make_plan, run_plan
from dgym.documents import dump
from dgym.env import Opening
from dgym.episodes import RunOptions
from dgym.errors import ManifestError
from dgym.results import Attempt
from dgym.results.report import read_run


@click.command("render")
@click.argument("name")
@takes_choice
@takes_episodes
@click.option("--output", "directory", metavar="DIR", type=click.Path(file_okay=False), help="Directory for the files.")
def render_command(name: str, directory: str | None, **choice: Any) -> None:
    """Write a DebugTask for each instance and an EpisodeSet over them: to DIR, or to standard output.

    Use the files with kubectl apply --server-side -f DIR, dgym submit -f DIR or dgym run -f DIR.
    """
    instances = Choice(**choice)
    target = None if directory is None else Path(directory)
    if target is not None and target.is_dir() and any(target.iterdir()):
        raise ManifestError(f"{target}: is not empty; name a new directory")
    chosen = choose(name, instances, None if target is None else target / "repositories")
    whole = episode_set(chosen, instances)
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


@click.command("run")
@click.argument("name")
@takes_choice
@takes_episodes
@llm_config_option
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Episodes that run at the same time. [default: number of CPUs]",
)
@takes_opening("sandbox", "engine", "python")
@click.option("--results", default="results", show_default=True, metavar="DIR", shell_complete=complete_directories)
@click.option("--force", is_flag=True, help="Run finished episodes again too.")
@output_option
def run_command(
    name: str,
    llm_config: str | None,
    workers: int | None,
    opening: Opening,
    results: str,
    force: bool,
    output: str,
    **choice: Any,
) -> None:
    """Run the instances on this machine, as dgym run runs the files of dgym benchmark render.

    Exit status: 0 no episode failed, 1 some failed (SandboxLost, ModelError, ...), 2 usage or data, 130 Ctrl-C.
    """
    instances = Choice(**choice)
    if instances.agent is None and not instances.arms:
        raise ManifestError("an agent is missing; give --agent NAME (solution applies the gold patch)")
    options = RunOptions(opening=opening, results=results, llm_config=llm_config)
    chosen = choose(name, instances)
    source = f"benchmark:{name}"
    resources: list[Resource] = [episode_set(chosen, instances), *chosen.tasks]
    loaded = [Loaded(resource, source, number) for number, resource in enumerate(resources, start=1)]
    plan = make_plan(loaded, options)
    run_plan(plan, workers, force=force, force_failed=False, debug=False, output=output, apply_patch=False)


def _text(resource: Resource) -> str:
    built = msgspec.to_builtins(resource)
    built.pop("status", None)
    return dump(built)


def _relative(task: DebugTask, target: Path) -> DebugTask:
    """Return the task with a ``localPath`` relative to the directory of its manifest."""
    source = task.spec.source
    if source is None or source.local_path is None:
        return task
    path = f"./{os.path.relpath(source.local_path, target)}"
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, source=SourceSpec(local_path=path)))


@click.command("predictions")
@click.argument("results", metavar="RESULTS", type=click.Path(exists=True, file_okay=False))
@click.option("--benchmark", "name", metavar="NAME", help="Only instances of this benchmark.")
def predictions_command(results: str, name: str | None) -> None:
    """Print the patches of a results directory as JSON lines for the official harness of SWE-bench."""
    rows = _rows(name)
    count = marked = 0
    for record in read_run([Path(results)]).records:
        row = rows.get(record.task)
        if row is None or not record.reason.is_counted:
            continue
        attempt = Attempt(Path(record.path))
        named = _hidden_tests_named(attempt, row)
        prediction = {
            "instance_id": row.instance,
            "model_name_or_path": record.model or record.agent,
            "model_patch": attempt.read_patch().decode("utf-8", "surrogateescape"),
            "hidden_tests_named": named,
        }
        echo(json.dumps(prediction))
        count += 1
        marked += named
    if count == 0:
        which = f"benchmark {name!r}" if name else "an imported benchmark"
        raise ManifestError(f"{results}: all episodes of {which} failed")
    if marked:
        what = "episodes had an entrypoint that named hidden tests; their lines have hidden_tests_named: true"
        echo(f"{marked} of {count} {what}", err=True)


def _hidden_tests_named(attempt: Attempt, row: Row) -> bool:
    """Return True if the entrypoint that the agent got names files of the test patch.

    If the trajectory does not record an entrypoint, it was the command of the evaluation script.
    """
    if not row.test_patch:
        return False
    entrypoint = attempt.read_header().entrypoint
    script = row.evaluation.script if row.evaluation else ""
    return names_test_files(entrypoint or command_between_markers(script) or "", row.test_patch)


def _rows(name: str | None) -> dict[str, Row]:
    """Return the rows of the imported benchmarks by task name."""
    found = [one for one in imported() if name is None or one.name == name]
    if not found:
        raise ManifestError(f"no benchmark {name!r} was imported" if name else "a benchmark was not imported yet")
    named: dict[str, Row] = {}
    for one in found:
        adapter = load_adapter(one.adapter)
        rows = [adapter.row(row, ImageNames()) for row in one.load()]
        tasks = make_tasks(one.name, one.split, rows)
        named |= {task.metadata.name: row for task, row in zip(tasks, rows, strict=True)}
    return named
