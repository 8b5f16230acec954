"""Implementations of ``dgym benchmark list``, ``show`` and ``import``, and the source of a bundled benchmark."""

from collections import Counter
from typing import Any

from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import (
    STATES,
    Imported,
    adapter_names,
    import_rows,
    imported,
    load_adapter,
    open_imported,
    read_health,
)
from dgym.cli.output import add_row, echo, echo_json, show_table, table
from dgym.sandbox.local import cache_directory

_COMES_WITH_DGYM = "comes with dgym"


def open_bundled(name: str) -> Imported:
    """A benchmark that comes with dgym, as a source of tasks beside the imported ones."""
    return Imported(
        name=name,
        adapter="",
        split="test",
        source=_COMES_WITH_DGYM,
        source_sha256="",
        sha256="",
        rows=len(load_bundled(name)),
        directory=cache_directory() / "benchmarks" / name,
    )


def show_list(output: str) -> None:
    """Print the bundled benchmarks, the imported splits and the installed adapters."""
    found = [*map(open_bundled, bundled()), *imported()]
    adapters = [load_adapter(name) for name in adapter_names()]
    if output == "json":
        shown = [{"name": one.name, "split": one.split, "adapter": one.adapter, "rows": one.rows} for one in found]
        number = len(bundled())
        echo_json(
            {
                "bundled": shown[:number],
                "imported": shown[number:],
                "adapters": {one.name: one.summary for one in adapters},
            }
        )
        return
    drawn = table(("BENCHMARK", "SPLIT", "ADAPTER", "ROWS"), numbers=("ROWS",))
    for one in found:
        add_row(drawn, (one.name, one.split, one.adapter or _COMES_WITH_DGYM, f"{one.rows}"))
    show_table(drawn)
    if len(found) == len(bundled()):
        echo("\nnothing was imported: dgym benchmark import NAME --from PATH")
    echo("\nAdapters:")
    width = max(len(one.name) for one in adapters)
    for adapter in adapters:
        echo(f"  {adapter.name:<{width}}  {adapter.summary}")


def show_one(name: str, split: str | None, output: str) -> None:
    """Print what is known of a bundled benchmark or an imported split."""
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


def import_one(
    name: str, adapter: str, source: str, split: str, sha256: str | None, revision: str | None = None
) -> None:
    """Import the rows and print what they are."""

    def progress(text: str) -> None:
        echo(f"{name}: {text}", err=True)

    found = import_rows(name, adapter, source, split=split, sha256=sha256, revision=revision, progress=progress)
    echo(f"imported {found.rows} instances as {found.name}, split {found.split}\nSHA-256 {found.source_sha256}")
