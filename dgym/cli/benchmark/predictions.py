"""Implementation of ``dgym benchmark predictions``."""

import json
from pathlib import Path

from dgym.benchmarks.datasets import ImageNames, imported, load_adapter, make_tasks
from dgym.cli.output import echo
from dgym.errors import ManifestError
from dgym.results import Attempt
from dgym.results.report import read_run


def print_predictions(results: str, name: str | None) -> None:
    """Print a line for each episode that has a verdict.

    Raises:
        ManifestError: No result is of an imported benchmark.
    """
    instances = _instances(name)
    count = 0
    for record in read_run([Path(results)]).records:
        instance = instances.get(record.task)
        if instance is None or not record.reason.is_verdict:
            continue
        patch = Attempt(Path(record.path)).patch
        row = {
            "instance_id": instance,
            "model_name_or_path": record.model or record.agent,
            "model_patch": patch.read_text("utf-8", "surrogateescape") if patch.exists() else "",
        }
        echo(json.dumps(row))
        count += 1
    if count == 0:
        which = f"benchmark {name!r}" if name else "an imported benchmark"
        raise ManifestError(f"{results}: no result with a verdict is of {which}")


def _instances(name: str | None) -> dict[str, str]:
    """The ids of instances by the names of their tasks."""
    found = [one for one in imported() if name is None or one.name == name]
    if not found:
        raise ManifestError(f"no benchmark {name!r} was imported" if name else "no benchmark was imported")
    instances: dict[str, str] = {}
    for one in found:
        adapter = load_adapter(one.adapter)
        rows = [adapter.row(row, ImageNames()) for row in one.load()]
        tasks = make_tasks(one.name, one.split, rows)
        instances |= {task.metadata.name: row.instance for task, row in zip(tasks, rows, strict=True)}
    return instances
