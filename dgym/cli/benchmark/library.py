"""``dgym benchmark list``, ``show``, ``import`` and ``verify``: manage the benchmarks on this machine."""

from collections import Counter
from typing import Any

import click

from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    STATES,
    ImageNames,
    RowError,
    adapter_names,
    import_rows,
    imported,
    load_adapter,
    make_tasks,
    open_imported,
    read_health,
)
from dgym.cli.benchmark.choosing import COMES_WITH_DGYM, open_bundled, split_option
from dgym.cli.options import complete_paths, output_option
from dgym.cli.output import add_row, echo, echo_json, show_table, table
from dgym.errors import ManifestError


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
@click.option("--adapter", metavar="NAME", help="Adapter that reads the rows. [default: NAME itself]")
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
