"""Implementation of ``dgym benchmark predictions``."""

import json
from pathlib import Path

from dgym.benchmarks.datasets import (
    ImageNames,
    Row,
    command_between_markers,
    imported,
    load_adapter,
    make_tasks,
    names_test_files,
)
from dgym.cli.output import echo
from dgym.errors import ManifestError
from dgym.results import Attempt, read_trajectory
from dgym.results.report import read_run


def print_predictions(results: str, name: str | None) -> None:
    """Print a line for each episode that has a verdict; ``hidden_tests_named``: its entrypoint named hidden tests.

    Raises:
        ManifestError: No result is of an imported benchmark.
    """
    rows = _rows(name)
    count = marked = 0
    for record in read_run([Path(results)]).records:
        row = rows.get(record.task)
        if row is None or not record.reason.is_verdict:
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
        raise ManifestError(f"{results}: no result with a verdict is of {which}")
    if marked:
        what = "episodes had an entrypoint that named hidden tests; their lines have hidden_tests_named: true"
        echo(f"{marked} of {count} {what}", err=True)


def _hidden_tests_named(attempt: Attempt, row: Row) -> bool:
    """Whether the agent's entrypoint named files of the test patch.

    Where the trajectory has no entrypoint, it was the command of the evaluation script.
    """
    if not row.test_patch:
        return False
    try:
        entrypoint = read_trajectory(attempt.trajectory).header.entrypoint
    except ManifestError:
        entrypoint = ""
    script = row.evaluation.script if row.evaluation else ""
    return names_test_files(entrypoint or command_between_markers(script) or "", row.test_patch)


def _rows(name: str | None) -> dict[str, Row]:
    """The rows of the imported benchmarks by the names of their tasks."""
    found = [one for one in imported() if name is None or one.name == name]
    if not found:
        raise ManifestError(f"no benchmark {name!r} was imported" if name else "no benchmark was imported")
    named: dict[str, Row] = {}
    for one in found:
        adapter = load_adapter(one.adapter)
        rows = [adapter.row(row, ImageNames()) for row in one.load()]
        tasks = make_tasks(one.name, one.split, rows)
        named |= {task.metadata.name: row for task, row in zip(tasks, rows, strict=True)}
    return named
