"""The display of a run: a live bar on a terminal, a line for each finished episode, and the summary at the end."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgym.cli.output import add_row, console, echo, echo_json, in_one_line, table
from dgym.cli.output import text as plain
from dgym.episodes import Event, Finished, Job, Logged, Narrated, Started, Stepped, Waits
from dgym.pace import Pace
from dgym.results import Attempt, StoredResult
from dgym.wire import EndReason

if TYPE_CHECKING:
    from rich.progress import TaskID


_WAIT_SECONDS = 30.0
"""Seconds between two lines about waits. Without a terminal these lines replace the progress bar."""


class Progress:
    """Listens to a pool. Everything goes to standard error, so that standard output holds the results alone.

    ``verbose`` adds the episodes' log lines and steps.
    """

    def __init__(self, *, total: int, verbose: bool, live: bool = True) -> None:
        self._total = total
        self._verbose = verbose
        self._done = 0
        self._counts = {"resolved": 0, "unresolved": 0, "failed": 0}
        self._active: set[str] = set()
        self._notices: set[str] = set()
        self._waits: dict[str, str] = {}
        self._wait_shown = float("-inf")
        self._started = time.monotonic()
        self._live = _LiveBar(total) if live and total and sys.stderr.isatty() else None

    def __call__(self, job: Job, event: Event) -> None:
        """Handle one event of a job."""
        match event:
            case Started(path):
                self._active.add(job.episode)
                self._detail(job, f"started in {path}")
            case Stepped(seq, tool, ok, seconds):
                self._detail(job, f"step {seq}: {tool}{'' if ok else ' (refused)'} {seconds * 1000:.0f} ms")
            case Waits(text):
                self._wait(job, text)
            case Logged(text, notice=True):
                self._notice(text)
            case Logged(text):
                self._detail(job, text)
            case Narrated(text):
                self._detail(job, text)
            case Finished():
                self._finished(job, event)
        if self._live is not None:
            self._live.update(self._done, "; ".join(filter(None, (str(self.pace), self._waiting))))

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        if self._live is not None:
            self._live.print(text)
        else:
            echo(text, err=True)

    def close(self) -> None:
        """Take the bar away. Idempotent."""
        if self._live is not None:
            self._live.close()

    def _notice(self, text: str) -> None:
        """Print a notice once, however many workers report it."""
        if text not in self._notices:
            self._notices.add(text)
            self.say(text)

    def _wait(self, job: Job, text: str) -> None:
        self._waits.pop(job.episode, None)
        if text:
            self._waits[job.episode] = text
        now = time.monotonic()
        if text and self._live is None and now - self._wait_shown >= _WAIT_SECONDS:
            self._wait_shown = now
            self.say(f"{job.episode}: {self._waiting}")

    @property
    def _waiting(self) -> str:
        """What the latest episode to wait waits for, and how many others do; empty: none waits."""
        if not self._waits:
            return ""
        others = len(self._waits) - 1
        return next(reversed(self._waits.values())) + (f" (and {others} more)" if others else "")

    def _detail(self, job: Job, text: str) -> None:
        if self._verbose:
            self.say(f"{job.episode}: {text}")

    def _finished(self, job: Job, event: Finished) -> None:
        result = event.result
        self._done += 1
        self._active.discard(job.episode)
        self._waits.pop(job.episode, None)
        kind = "resolved" if result.resolved else "unresolved" if result.reason.is_verdict else "failed"
        self._counts[kind] += 1
        line = f"[{self._done}/{self._total}] {job.episode}: {result.reason} {result.score}/{result.max_score}"
        line += f", {result.steps} steps, {result.duration_seconds:.1f} s"
        if kind == "failed":
            line += f": {in_one_line(result.message)}"
        self.say(line)

    @property
    def pace(self) -> Pace:
        """How far the run is."""
        elapsed = time.monotonic() - self._started
        return Pace(
            total=self._total,
            active=len(self._active),
            finished_lately=self._done,
            seconds=elapsed,
            **self._counts,
        )


class _LiveBar:
    """The bar of rich, imported only where there is a terminal to show it on."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = console(err=True)
        self._bar: Bar = Bar(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("", total=total)
        self._bar.start()

    def update(self, done: int, status: str) -> None:
        self._bar.update(self._task, completed=done, description=status)

    def print(self, text: str) -> None:
        self._console.print(plain(text))

    def close(self) -> None:
        self._bar.stop()


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
            echo(f"{job.episode}: {result.reason}: {in_one_line(result.message)}")
            echo(f"{job.episode}: log: {_log_of(job, result)}")
    for name in left_out:
        echo(f"left out: {name}")
    echo(summary_line(results))


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
    names = {"episode": job.episode, "task": job.task.metadata.name, "arm": job.arm, "agent": job.agent.name}
    entry = {**names, "digest": job.digest}
    if result is None:
        return {**entry, "reason": None}
    return {**entry, **{key: value for key, value in msgspec.to_builtins(result).items() if key != "patch"}}


def _log_of(job: Job, result: StoredResult) -> Path:
    return Attempt(job.folder.path / str(result.attempt)).log
