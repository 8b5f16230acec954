"""``dgym benchmark list``, ``show``, ``import``, ``verify``, ``render``, ``run`` and ``predictions``.

They manage the benchmarks on this machine, write one as manifests, run it, and print patches in the format of the
official SWE-bench harness.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.api import DebugTask, Loaded, Resource, SourceSpec, expand
from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    STATES,
    ImageNames,
    Row,
    RowError,
    adapter_names,
    import_rows,
    imported,
    load_adapter,
    make_tasks,
    names_test_files,
    open_imported,
    read_health,
)
from dgym.cli.benchmark.choosing import (
    COMES_WITH_DGYM,
    Choice,
    choose,
    episode_set,
    open_bundled,
    split_option,
    takes_choice,
    takes_episodes,
)
from dgym.cli.benchmark.estimating import estimate, in_short
from dgym.cli.options import (
    complete_directories,
    complete_paths,
    llm_config_option,
    output_option,
    takes_opening,
    workers_option,
)
from dgym.cli.output import add_row, echo, echo_json, show_table, table
from dgym.cli.run import make_plan, run_plan
from dgym.documents import dump
from dgym.env import Opening
from dgym.episodes import RunOptions
from dgym.errors import ManifestError
from dgym.results import Attempt
from dgym.results.report import read_run


@click.command("list")
@output_option
def list_command(output: str) -> None:
    """List the benchmarks that come with dgym or were imported, and the adapters for importing others."""
    own = [open_bundled(name) for name in bundled()]
    found = [*own, *imported()]
    adapters = [load_adapter(name) for name in adapter_names()]
    if output == "json":
        shown = [{"name": one.name, "split": one.split, "adapter": one.adapter, "rows": one.rows} for one in found]
        summaries = {one.name: one.summary for one in adapters}
        echo_json({"bundled": shown[: len(own)], "imported": shown[len(own) :], "adapters": summaries})
        return
    drawn = table(("BENCHMARK", "SPLIT", "ADAPTER", "ROWS"), numbers=("ROWS",))
    for one in found:
        add_row(drawn, (one.name, one.split, one.adapter or COMES_WITH_DGYM, f"{one.rows}"))
    show_table(drawn)
    if len(found) == len(own):
        echo("\nnothing was imported: dgym benchmark import NAME --from PATH")
    echo("\nAdapters:")
    width = max(len(one.name) for one in adapters)
    for adapter in adapters:
        echo(f"  {adapter.name:<{width}}  {adapter.summary}")


@click.command("show")
@click.argument("name")
@split_option
@output_option
def show_command(name: str, split: str | None, output: str) -> None:
    """Show a benchmark: its source, its instances, and their health."""
    if name in bundled():
        found, key = open_bundled(name), "instance"
        rows: list[dict[str, Any]] = [{key: task.metadata.name} for task in load_bundled(name)]
    else:
        found = open_imported(name, split)
        key, rows = load_adapter(found.adapter).key, found.load()
    health = read_health(found.health)
    if output == "json":
        instances: list[Any] = [
            {"instance": row[key], "health": health[row[key]].state if row[key] in health else ""} for row in rows
        ]
        facts = {"name": found.name, "split": found.split, "adapter": found.adapter, "source": found.source}
        echo_json({**facts, "sha256": found.source_sha256, "instances": instances})
        return
    if found.adapter:
        echo(f"{found.name}, split {found.split}: {found.rows} instances by the adapter {found.adapter}")
        echo(f"from {found.source}\nSHA-256 {found.source_sha256}")
    else:
        echo(f"{found.name}: {found.rows} instances, {found.source}")
    states = Counter(one.state for one in health.values())
    unknown = found.rows - sum(states.values())
    counts = [f"{states[state]} {state.lower()}" for state in STATES] + [f"{unknown} not checked"]
    echo(f"health: {', '.join(counts)}")
    drawn = table(("INSTANCE", "REPOSITORY", "HEALTH"))
    for row in rows:
        known = health.get(row[key])
        add_row(drawn, (row[key], str(row.get("repo", "")), known.state if known else ""))
    show_table(drawn)


@click.command("import")
@click.argument("name")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="PATH|URL",
    shell_complete=complete_paths,
    help="JSON lines, a JSON list or parquet; for some adapters a directory, an archive or, with --revision, git.",
)
@click.option("--adapter", metavar="NAME", help="Adapter that reads the rows. [default: the adapter NAME]")
@click.option("--split", default="test", show_default=True, metavar="NAME", help="The split of the rows.")
@click.option("--sha256", metavar="DIGEST", help="The SHA-256 that the source must have.")
@click.option("--revision", metavar="COMMIT", help="The commit, if the source is the URL of a git repository.")
def import_command(
    name: str, source: str, adapter: str | None, split: str, sha256: str | None, revision: str | None
) -> None:
    """Read every row, check that it can become a task, and keep the rows in the cache directory as NAME.

    If a row is invalid, its file, row and field are reported, and nothing is imported. An interrupted download
    continues where it stopped.
    """

    def progress(text: str) -> None:
        echo(f"{name}: {text}", err=True)

    found = import_rows(name, adapter or name, source, split=split, sha256=sha256, revision=revision, progress=progress)
    echo(f"imported {found.rows} instances as {found.name}, split {found.split}\nSHA-256 {found.source_sha256}")


@click.command("verify")
@click.argument("name")
@split_option
def verify_command(name: str, split: str | None) -> None:
    """Check that the rows are those that were imported, and that each still becomes a valid task. Nothing is run."""
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
@workers_option
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
        named = names_test_files(attempt.read_header().entrypoint, row.test_patch)
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
