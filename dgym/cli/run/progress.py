"""What is shown while episodes run: a live bar on a terminal, a line for each finished episode anywhere."""

import sys
import time
from typing import TYPE_CHECKING

from dgym.agents.console import printable
from dgym.cli.output import in_one_line
from dgym.episodes.job import Event, Finished, Job, Logged, Started, Stepped, Told

if TYPE_CHECKING:
    from rich.progress import TaskID


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
            case Logged(text, notice=True):
                self._notice(text)
            case Logged(text):
                self._detail(job, text)
            case Told(text):
                self._detail(job, text)
            case Finished():
                self._finished(job, event)
        if self._live is not None:
            self._live.update(self._done, self._status())

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        if self._live is not None:
            self._live.print(printable(text))
        else:
            print(printable(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away. Idempotent."""
        if self._live is not None:
            self._live.close()

    def _notice(self, text: str) -> None:
        """Every worker may have the same to say; once is enough."""
        if text not in self._notices:
            self._notices.add(text)
            self.say(text)

    def _detail(self, job: Job, text: str) -> None:
        if self._verbose:
            self.say(f"{job.episode}: {text}")

    def _finished(self, job: Job, event: Finished) -> None:
        result = event.result
        self._done += 1
        self._active.discard(job.episode)
        kind = "resolved" if result.resolved else "unresolved" if result.reason.is_verdict else "failed"
        self._counts[kind] += 1
        line = f"[{self._done}/{self._total}] {job.episode}: {result.reason} {result.score}/{result.max_score}"
        line += f", {result.steps} steps, {result.duration_seconds:.1f} s"
        if kind == "failed":
            line += f": {in_one_line(result.message)}"
        self.say(line)

    def _status(self) -> str:
        """Counts, rate and the time that is left if the rate stays."""
        counts = " ".join(f"{number} {name}" for name, number in self._counts.items())
        elapsed = time.monotonic() - self._started
        if not self._done or elapsed <= 0:
            return f"{counts} · {len(self._active)} running"
        rate = self._done / elapsed
        left = round((self._total - self._done) / rate)
        speed = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
        return (
            f"{counts} · {len(self._active)} running · {speed} · ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        )


class _LiveBar:
    """The bar of rich, imported only where there is a terminal to show it on."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console: Console = Console(stderr=True, highlight=False)
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
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._bar.stop()
