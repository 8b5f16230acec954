"""The end of a run: a table and a summary for people, or the same as JSON."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.cli.output import add_row, console, echo_json, in_one_line, table
from dgym.episodes.job import Job
from dgym.results import Attempt, StoredResult
from dgym.wire import EndReason

ROWS = 100
"""Rows of the table at most; beyond that only episodes that need attention are listed."""

_STYLES = {EndReason.RESOLVED: "green", EndReason.CANCELLED: "dim"}


def counts(results: Sequence[StoredResult | None]) -> dict[str, int]:
    """How many are resolved, unresolved (any other verdict), failed (no verdict), and without a result."""
    tally = Counter(_class_of(result) for result in results)
    return {"total": len(results), **{name: tally[name] for name in ("resolved", "unresolved", "failed", "unfinished")}}


def print_json(jobs: Sequence[Job], results: Sequence[StoredResult | None], left_out: Sequence[str]) -> None:
    """All results without their patches, which are in the files they name."""
    episodes = [_entry(job, result) for job, result in zip(jobs, results, strict=True)]
    value = {"episodes": episodes, "summary": counts(results), "leftOut": list(left_out)}
    echo_json(value)


def print_table(jobs: Sequence[Job], results: Sequence[StoredResult | None], left_out: Sequence[str]) -> None:
    """The table, then a line with the counts."""
    numbers = ("Score", "Steps", "Rewrites", "Seconds")
    texts = ("Episode", "Task", "Agent", "Reason")
    drawn = table((*texts, *numbers), numbers=numbers, breaking=texts)
    pairs = list(zip(jobs, results, strict=True))
    shown = pairs if len(pairs) <= ROWS else [pair for pair in pairs if _class_of(pair[1]) == "failed"][:ROWS]
    for job, result in shown:
        add_row(drawn, _row(job, result), styled=texts.index("Reason"), style=_style(result))
    screen = console()
    screen.print(drawn)
    if len(shown) < len(pairs):
        screen.print(f"… {len(pairs) - len(shown)} more; --output json lists all", style="dim")
    for job, result in shown:
        if result is not None and not result.reason.is_verdict:
            click.echo(f"{job.episode}: {result.reason}: {in_one_line(result.message)}")
            click.echo(f"{job.episode}: log: {_log_of(job, result)}")
    for name in left_out:
        click.echo(f"left out: {name}")
    click.echo(summary_line(results))


def summary_line(results: Sequence[StoredResult | None]) -> str:
    """``10 episodes: 8 resolved, 1 unresolved, 1 failed``."""
    number = counts(results)
    total = number.pop("total")
    rest = number.pop("unfinished")
    line = f"{total} episode{'' if total == 1 else 's'}: " + ", ".join(f"{n} {name}" for name, n in number.items())
    return f"{line}, {rest} without a result" if rest else line


def _class_of(result: StoredResult | None) -> str:
    if result is None:
        return "unfinished"
    if result.resolved:
        return "resolved"
    return "unresolved" if result.reason.is_verdict else "failed"


def _style(result: StoredResult | None) -> str:
    if result is None:
        return "dim"
    return _STYLES.get(result.reason, "yellow" if result.reason.is_verdict else "red")


def _row(job: Job, result: StoredResult | None) -> tuple[str, ...]:
    agent = f"{job.agent.name} {job.agent.model or ''}".strip()
    known = (job.episode, job.task.metadata.name, agent)
    if result is None:
        return (*known, "no result", "", "", "", "")
    score = f"{result.score}/{result.max_score}"
    return (*known, result.reason, score, str(result.steps), str(result.rewrites), f"{result.duration_seconds:.1f}")


def _entry(job: Job, result: StoredResult | None) -> dict[str, Any]:
    entry = {"episode": job.episode, "task": job.task.metadata.name, "agent": job.agent.name, "digest": job.digest}
    if result is None:
        return {**entry, "reason": None}
    return {**entry, **{key: value for key, value in msgspec.to_builtins(result).items() if key != "patch"}}


def _log_of(job: Job, result: StoredResult) -> Path:
    return Attempt(job.folder.path / str(result.attempt)).log
