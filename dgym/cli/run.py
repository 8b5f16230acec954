"""``dgym run``: run episodes on this machine, show their progress and summary, and offer to apply their patches."""

import bdb
import os
import pdb  # noqa: T100 - for --debug
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dgym.agents import Exchange, load_agent
from dgym.api import DebugTask, Episode, EpisodeSet, Loaded
from dgym.benchmarks import bundled_tasks
from dgym.cli.check import offer_pythons
from dgym.cli.lock import is_locked
from dgym.cli.manifests import read_episodes
from dgym.cli.options import (
    Inputs,
    complete_directories,
    llm_config_option,
    output_option,
    takes_inputs,
    takes_opening,
    workers_option,
)
from dgym.cli.output import (
    FAILED,
    INTERRUPTED,
    add_row,
    console,
    echo,
    echo_json,
    in_one_line,
    table,
    terminated_like_interrupted,
)
from dgym.cli.output import text as plain
from dgym.cli.proposal import with_environments
from dgym.env import Opening
from dgym.episodes import (
    Event,
    Finished,
    Hooks,
    Job,
    Logged,
    Narrated,
    Plan,
    RunOptions,
    SetCosts,
    Started,
    Stepped,
    Waits,
    WorkerProcesses,
    any_interactive,
    cpus,
    describe_exchange,
    record_plan,
    run_inline,
    stored_results,
    unfinished,
)
from dgym.episodes import make_plan as plan_episodes
from dgym.errors import DgymError
from dgym.pace import Pace
from dgym.results import Attempt, StoredResult, record_left_out
from dgym.terminal import printable_line
from dgym.wire import EndReason, Step
from dgym.workspace.patches import FileVersion, apply_patch

if TYPE_CHECKING:
    from rich.progress import TaskID

_NAMED = 5
"""Maximum number of unlocked tasks that the message names."""
_WAIT_SECONDS = 30.0
"""Minimum time between two lines about waiting episodes. Without a terminal, these lines replace the progress bar."""


@click.command("run")
@takes_inputs()
@click.option("--apply", "apply_patch", is_flag=True, help="Ask whether to apply the patch to the repository.")
@llm_config_option
@workers_option
@takes_opening()
@click.option(
    "--results",
    default="results",
    show_default=True,
    metavar="DIR",
    shell_complete=complete_directories,
    help="Directory of stored and new results.",
)
@click.option("--force", is_flag=True, help="Also run finished episodes again.")
@click.option("--force-failed", is_flag=True, help="Run failed episodes again, such as those of ModelError.")
@click.option("-v", "--verbose", is_flag=True, help="Show thoughts, calls and observations of agents, and the logs.")
@click.option(
    "--debug",
    is_flag=True,
    help="Stop in Python's debugger after each reply of a model, or each step of an agent without a model.",
)
@output_option
def run_command(
    inputs: Inputs,
    apply_patch: bool,
    llm_config: str | None,
    workers: int | None,
    opening: Opening,
    results: str,
    force: bool,
    force_failed: bool,
    verbose: bool,
    debug: bool,
    output: str,
) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs on this machine.

    Their tasks are looked up in the given manifests and in the bundled benchmarks. A MANIFEST that is a directory is a
    repository to debug. Give the agent with --agent, and the command that runs its tests with --entrypoint. It gets the
    environment that dgym init proposes. Episodes work on a copy of the repository. --apply asks whether to apply the
    patch to the repository itself. Episodes whose result is in the results directory are not run again.

    Exit status: 0 no episode failed, 1 some failed (SandboxLost, ModelError, ...), 2 usage or manifest, 130 Ctrl-C.
    """
    if force and force_failed:
        raise click.UsageError("--force runs everything again; it cannot be combined with --force-failed")
    if inputs.entrypoint and not any(Path(path).is_dir() for path in inputs.manifests):
        raise click.UsageError("--entrypoint is only for repositories; a manifest's task has spec.entrypoint")
    options = RunOptions(
        opening=opening,
        results=results,
        llm_config=None if llm_config is None else str(Path(llm_config).absolute()),
        verbose=verbose,
    )
    loaded = read_episodes(inputs)
    plan = make_plan(loaded, options)
    if opening.sandbox != "container" and any(Path(item.file).is_dir() for item in loaded):
        # The first plan has checked agents and models. The environments may need requests to a package index.
        loaded = with_environments(loaded, inputs.entrypoint, opening.python)
        plan = make_plan(loaded, options)
    run_plan(
        plan,
        workers,
        force=force,
        force_failed=force_failed,
        debug=debug,
        output=output,
        apply_patch=apply_patch,
    )


def make_plan(loaded: list[Loaded], options: RunOptions) -> Plan:
    """Plan the episodes. Tasks that are not in the manifests are looked up in the bundled benchmarks.

    The number of tasks that EpisodeSets leave out of a benchmark is recorded in the results directory.
    """
    plan = plan_episodes(loaded, options=options, bundled=bundled_tasks() if _needs_bundled(loaded) else ())
    for resource in (item.resource for item in loaded):
        if isinstance(resource, EpisodeSet):
            record_left_out(Path(options.results), resource.metadata.name, resource.metadata.annotations)
    return plan


def _needs_bundled(loaded: list[Loaded]) -> bool:
    """Return True if the manifests refer to a task that they do not contain."""
    given = {item.resource.metadata.name for item in loaded if isinstance(item.resource, DebugTask)}
    wanted: set[str] = set()
    for item in loaded:
        if isinstance(item.resource, Episode) and item.resource.spec.task_ref is not None:
            wanted.add(item.resource.spec.task_ref.name)
        elif isinstance(item.resource, EpisodeSet):
            wanted.update(ref.name for ref in item.resource.spec.tasks)
            if item.resource.spec.task_selector is not None and not given:
                return True
    return not wanted <= given


def run_plan(
    plan: Plan,
    workers: int | None,
    *,
    force: bool,
    force_failed: bool,
    debug: bool,
    output: str,
    apply_patch: bool,
) -> None:
    """Run the unfinished episodes and print all results. Exit with status 1 on failed episodes, 130 if interrupted."""
    jobs = list(unfinished(plan.jobs, force=force, force_failed=force_failed))
    _name_unlocked(jobs)
    if jobs:
        offer_pythons(job.task for job in jobs if job.options.opening.installs)
        record_plan(plan.jobs)
    costs = SetCosts(plan.jobs, afresh=force)
    interrupted = _execute(jobs, workers or cpus(), costs, skipped=len(plan.jobs) - len(jobs), debug=debug)
    results = stored_results(plan.jobs)
    (print_json if output == "json" else print_table)(plan.jobs, results, plan.left_out)
    if interrupted:
        unforced = " without --force" if force else ""
        echo(f"Interrupted; the same command{unforced} continues where this command stopped.", err=True)
        sys.exit(INTERRUPTED)
    for line in stopped_sets(plan.jobs, results, costs):
        echo(line, err=True)
    if apply_patch:
        offer_patches(plan.jobs, results)
    if any(result is not None and not result.reason.is_counted for result in results):
        echo("Some episodes failed; --force-failed runs them again.", err=True)
        sys.exit(FAILED)


def _name_unlocked(jobs: Sequence[Job]) -> None:
    """Print the tasks whose requirements have no hashes, because different packages may be installed later."""
    names = list(dict.fromkeys(job.task.metadata.name for job in jobs if not is_locked(job.task.spec)))
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        named = printable_line(f"{', '.join(names[:_NAMED])}{more}")
        echo(f"Not locked: {named}; dgym lock MANIFEST writes exact versions and hashes into it.", err=True)


def stopped_sets(jobs: Sequence[Job], results: "Sequence[StoredResult | None]", costs: SetCosts) -> Iterator[str]:
    """Yield a line for each set whose ``costLimit`` was reached before all of its episodes have run."""
    left = [job for job, result in zip(jobs, results, strict=True) if result is None and costs.spent(job) is not None]
    numbers = Counter(job.group for job in left)
    for job in {job.group: job for job in left}.values():
        name, number = job.group.rpartition("#")[2], numbers[job.group]
        yield (
            f"EpisodeSet {name}: costLimit is {job.cost_limit}, and {costs.spent(job)} is spent: {number} episode"
            f"{'' if number == 1 else 's'} did not run; the same command with a higher -p set.costLimit runs the rest."
        )


def _execute(jobs: list[Job], workers: int, costs: SetCosts, *, skipped: int, debug: bool) -> bool:
    """Run the jobs. Return True if the run was interrupted."""
    interactive = any_interactive(jobs)
    verbose = any(job.options.verbose for job in jobs)
    progress = ProgressPrinter(total=len(jobs), verbose=verbose, live=not (interactive or debug))
    if skipped:
        progress.print_line(f"{skipped} finished before and not run again (--force runs them again)")
    try:
        with terminated_like_interrupted():
            if debug:
                run_inline(jobs, progress, hooks=_stopping_hooks, costs=costs)
            elif interactive:
                run_inline(jobs, progress, costs=costs)
            else:
                WorkerProcesses(workers=workers, listener=progress, costs=costs).run(jobs)
    except KeyboardInterrupt:
        return True
    finally:
        progress.close()
    return False


def _stopping_hooks(job: Job) -> Hooks:
    """Return hooks that stop after each reply of a model or, for an agent without a model, after each step."""
    if load_agent(job.agent.name).uses_model:
        return Hooks(on_exchange=lambda exchange, steps: _stop_after_reply(job, exchange, steps))
    return Hooks(on_step=lambda step: _stop_after_step(job, step))


def _stop_after_reply(job: Job, exchange: Exchange, steps: list[Step]) -> None:
    """Stop before the calls of a reply are made. The debugger has ``job``, ``exchange`` and the last ``step``."""
    calls = ", ".join(
        f"{call.tool} {call.arguments if call.arguments is not None else call.raw}" for call in exchange.calls
    )
    text = f"{job.episode}: before step {len(steps)}\n{describe_exchange(exchange)}\ncalls: {calls or 'none'}"
    echo(text)
    echo("look at exchange.reasoning, exchange.calls and step.observation.text; c continues, q quits")
    _stop(job, steps[-1], exchange)


def _stop_after_step(job: Job, step: Step) -> None:
    """Stop after a step. The debugger has ``job`` and ``step``. ``c`` continues, ``q`` interrupts the run."""
    tool = step.call.tool if step.call is not None else "reset"
    echo(f"{job.episode}: step {step.seq} ({tool}); look at step.call and step.observation.text; c continues, q quits")
    _stop(job, step, None)


def _stop(job: Job, step: Step, exchange: Exchange | None) -> None:
    debugger = pdb.Pdb(nosigint=True, readrc=False)
    debugger.prompt = "(dgym) "
    try:
        _inspect_step(debugger, job, step, exchange)
    except bdb.BdbQuit:
        raise KeyboardInterrupt from None
    finally:
        sys.settrace(None)


def _inspect_step(debugger: pdb.Pdb, job: Job, step: Step, exchange: Exchange | None) -> None:
    """Stop the debugger in this frame. Its local variables are what the user inspects."""
    debugger.set_trace(sys._getframe())
    del job, step, exchange


def offer_patches(jobs: Sequence[Job], results: "Sequence[StoredResult | None]") -> None:
    """Offer the patches for each repository, resolved episodes first, until the user accepts one."""
    for root, candidates in _by_repository(jobs, results).items():
        for job, result, patch in candidates:
            echo(f"\n{job.episode}: {result.reason}, {result.score} of {result.max_score}. Its patch:", err=True)
            echo(patch.decode("utf-8", "replace").rstrip("\n"), err=True)
            if _agreed(f"Apply it to {root}?"):
                changed = write_patch(root, patch)
                echo(f"Changed in {root}: {', '.join(changed)}", err=True)
                break


def write_patch(root: Path, patch: bytes) -> list[str]:
    """Apply a patch to the files below ``root``. If it does not fit, nothing is changed.

    Returns:
        The changed paths, sorted.

    Raises:
        PatchError: The files differ from those that the patch was made from.
        DgymError: A path leads out of the repository.
    """
    changes = apply_patch(patch, lambda path: _read(root, path))
    _refuse_outside(root, changes)
    for path, version in sorted(changes.items(), key=lambda item: item[1] is not None):
        _write(root / path, version)
    return sorted(changes)


def _by_repository(
    jobs: Iterable[Job], results: "Iterable[StoredResult | None]"
) -> dict[Path, list[tuple[Job, StoredResult, bytes]]]:
    found: dict[Path, list[tuple[Job, StoredResult, bytes]]] = {}
    for job, result in zip(jobs, results, strict=True):
        source = job.task.spec.source
        if result is None or source is None or source.local_path is None:
            continue
        patch = _stored_patch(job)
        if patch:
            found.setdefault(Path(source.local_path), []).append((job, result, patch))
    for candidates in found.values():
        candidates.sort(key=lambda candidate: not candidate[1].resolved)
    return found


def _stored_patch(job: Job) -> bytes:
    for attempt in reversed(job.folder.attempts()):
        if attempt.load() is not None:
            return attempt.read_patch()
    return b""


def _agreed(question: str) -> bool:
    try:
        return click.confirm(printable_line(question), default=False, err=True)
    except click.Abort:
        echo("not applied", err=True)
        return False


def _read(root: Path, path: str) -> FileVersion | None:
    file = root / path
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return FileVersion(os.fsencode(file.readlink()), is_symlink=True)
    if not stat.S_ISREG(mode):
        return None
    return FileVersion(file.read_bytes(), mode=stat.S_IMODE(mode))


def _refuse_outside(root: Path, changes: Mapping[str, FileVersion | None]) -> None:
    """Raise if a directory of a changed file is a symbolic link that leads out of the repository."""
    real = root.resolve()
    for path in changes:
        parent = (root / path).parent.resolve()
        if parent != real and real not in parent.parents:
            raise DgymError(f"{root / path}: leads out of the repository; nothing was applied")


def _write(path: Path, version: FileVersion | None) -> None:
    if version is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.dgym-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    if version.is_symlink:
        temporary.symlink_to(os.fsdecode(version.data))
    else:
        temporary.write_bytes(version.data)
        temporary.chmod(_mode(path, version))
    temporary.replace(path)


def _mode(path: Path, version: FileVersion) -> int:
    """Return the mode of the existing file with the executable bit of the patch. A patch has no other mode bits."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return version.mode
    return mode | 0o111 if version.mode & stat.S_IXUSR else mode & ~0o111


class ProgressPrinter:
    """A listener that prints the events of episodes to standard error. Standard output contains only the results.

    Args:
        total: Number of episodes.
        verbose: Also print log lines and steps of the episodes.
        live: Show a progress bar if standard error is a terminal.
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
        """Handle an event of a job."""
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

    def print_line(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        if self._live is not None:
            self._live.print(text)
        else:
            echo(text, err=True)

    def close(self) -> None:
        """Remove the progress bar. Idempotent."""
        if self._live is not None:
            self._live.close()

    def _notice(self, text: str) -> None:
        """Print a notice once, even if several worker processes report it."""
        if text not in self._notices:
            self._notices.add(text)
            self.print_line(text)

    def _wait(self, job: Job, text: str) -> None:
        self._waits.pop(job.episode, None)
        if text:
            self._waits[job.episode] = text
        now = time.monotonic()
        if text and self._live is None and now - self._wait_shown >= _WAIT_SECONDS:
            self._wait_shown = now
            self.print_line(f"{job.episode}: {self._waiting}")

    @property
    def _waiting(self) -> str:
        """Reason of the most recent wait, and the number of other waiting episodes. Empty if no episode waits."""
        if not self._waits:
            return ""
        others = len(self._waits) - 1
        return next(reversed(self._waits.values())) + (f" (and {others} more)" if others else "")

    def _detail(self, job: Job, text: str) -> None:
        if self._verbose:
            self.print_line(f"{job.episode}: {text}")

    def _finished(self, job: Job, event: Finished) -> None:
        result = event.result
        self._done += 1
        self._active.discard(job.episode)
        self._waits.pop(job.episode, None)
        category = result.reason.category(resolved=result.resolved)
        self._counts[category] += 1
        line = f"[{self._done}/{self._total}] {job.episode}: {result.reason} {result.score}/{result.max_score}"
        line += f", {result.steps} steps, {result.duration_seconds:.1f} s"
        if category == "failed":
            line += f": {in_one_line(result.message)}"
        self.print_line(line)

    @property
    def pace(self) -> Pace:
        """Progress of the run since it started."""
        elapsed = time.monotonic() - self._started
        return Pace(
            total=self._total,
            active=len(self._active),
            finished_lately=self._done,
            seconds=elapsed,
            **self._counts,
        )


class _LiveBar:
    """A progress bar. Rich is imported only if it is shown, to save time."""

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
"""Maximum number of rows. A longer table lists only failed episodes."""

_STYLES = {EndReason.RESOLVED: "green", EndReason.CANCELLED: "dim"}


def counts(results: Sequence[StoredResult | None]) -> dict[str, int]:
    """Return the number of results that are resolved, unresolved, failed or missing."""
    tally = Counter(_category(result) for result in results)
    return {"total": len(results), **{name: tally[name] for name in ("resolved", "unresolved", "failed", "unfinished")}}


def print_json(jobs: Sequence[Job], results: Sequence[StoredResult | None], left_out: Sequence[str]) -> None:
    """Print all results as JSON, without patches, which are stored in files."""
    episodes = [_entry(job, result) for job, result in zip(jobs, results, strict=True)]
    value = {"episodes": episodes, "summary": counts(results), "leftOut": list(left_out)}
    echo_json(value)


def print_table(jobs: Sequence[Job], results: Sequence[StoredResult | None], left_out: Sequence[str]) -> None:
    """Print the table, the messages of failed episodes, and a line with the counts."""
    numbers = ("Score", "Steps", "Rewrites", "Seconds")
    texts = ("Episode", "Task", "Agent", "Reason")
    drawn = table((*texts, *numbers), numbers=numbers, breaking=texts)
    pairs = list(zip(jobs, results, strict=True))
    shown = pairs if len(pairs) <= ROWS else [pair for pair in pairs if _category(pair[1]) == "failed"][:ROWS]
    for job, result in shown:
        add_row(drawn, _row(job, result), styled=texts.index("Reason"), style=_style(result))
    screen = console()
    screen.print(drawn)
    if len(shown) < len(pairs):
        screen.print(f"… {len(pairs) - len(shown)} more; --output json lists all", style="dim")
    for job, result in shown:
        if result is not None and not result.reason.is_counted:
            echo(f"{job.episode}: {result.reason}: {in_one_line(result.message)}")
            echo(f"{job.episode}: log: {_log_of(job, result)}")
    for name in left_out:
        echo(f"left out: {name}")
    echo(summary_line(results))


def summary_line(results: Sequence[StoredResult | None]) -> str:
    """Return the counts in one line, such as ``10 episodes: 8 resolved, 1 unresolved, 1 failed``."""
    number = counts(results)
    total = number.pop("total")
    rest = number.pop("unfinished")
    line = f"{total} episode{'' if total == 1 else 's'}: " + ", ".join(f"{n} {name}" for name, n in number.items())
    return f"{line}, {rest} without a result" if rest else line


def _category(result: StoredResult | None) -> str:
    return "unfinished" if result is None else result.reason.category(resolved=result.resolved)


def _style(result: StoredResult | None) -> str:
    if result is None:
        return "dim"
    return _STYLES.get(result.reason, "yellow" if result.reason.is_counted else "red")


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
