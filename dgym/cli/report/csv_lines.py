"""Reports for spreadsheets and data frames: comma-separated values on standard output."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from dgym.results.report import Comparison, Price, Record, Run, Stages, TaskPair, cost_of

_NOT_COLUMNS = {"calls", "stages", "price"}


def print_episodes(run: Run, prices: Mapping[str, Price]) -> None:
    """A line for each episode; cells that are not known are empty."""
    fields = [field for field in Record.__struct_fields__ if field not in _NOT_COLUMNS]
    stages = [f"{name}_seconds" for name in Stages.__struct_fields__]
    lines = []
    for record in run.records:
        taken = msgspec.structs.astuple(record.stages) if record.stages is not None else [None] * len(stages)
        lines.append([*(getattr(record, field) for field in fields), *taken, cost_of([record], prices)])
    _print([*fields, *stages, "cost"], lines)


def print_pairs(comparison: Comparison) -> None:
    """A line for each task in both runs."""
    _print(TaskPair.__struct_fields__, [msgspec.structs.astuple(pair) for pair in comparison.pairs])


def _print(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    click.echo(text.getvalue(), nl=False)
