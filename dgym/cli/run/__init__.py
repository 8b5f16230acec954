"""``dgym run``: episodes on this machine, their progress and summary, and the patch that is applied afterwards."""

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from dgym.api import DebugTask, Episode, EpisodeSet, Loaded
from dgym.cli.check import offer_pythons
from dgym.cli.lock import is_locked
from dgym.cli.manifests import bundled_tasks
from dgym.cli.output import FAILED, INTERRUPTED, echo, terminated_like_interrupted
from dgym.cli.run.progress import Progress, print_json, print_table
from dgym.episodes import (
    Job,
    Plan,
    Pool,
    RunOptions,
    SetCosts,
    any_interactive,
    record_plan,
    run_inline,
    stored_results,
    unfinished,
)
from dgym.episodes import make_plan as plan_episodes
from dgym.errors import DgymError
from dgym.results import StoredResult, record_left_out
from dgym.terminal import printable_line
from dgym.workspace.patches import FileVersion, apply_patch

_NAMED = 5
"""Tasks that are not locked, named at most."""


def make_plan(loaded: list[Loaded], options: RunOptions) -> Plan:
    """Plan the episodes; tasks missing in the manifests are looked up among the bundled ones.

    What EpisodeSets leave out of a benchmark is recorded in the results directory.
    """
    plan = plan_episodes(loaded, options=options, bundled=bundled_tasks() if _needs_bundled(loaded) else ())
    for resource in (item.resource for item in loaded):
        if isinstance(resource, EpisodeSet):
            record_left_out(Path(options.results), resource.metadata.name, resource.metadata.annotations)
    return plan


def _needs_bundled(loaded: list[Loaded]) -> bool:
    """Whether the manifests refer to a task that they do not contain."""
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
    """Run the unfinished episodes and print all results; exit with 1 where an episode has no verdict."""
    jobs = list(unfinished(plan.jobs, force=force, force_failed=force_failed))
    _name_unlocked(jobs)
    if jobs:
        offer_pythons(job.task for job in jobs if job.python is None and job.sandbox != "container")
        record_plan(plan.jobs)
    costs = SetCosts(plan.jobs, afresh=force)
    interrupted = _execute(jobs, workers or _cpus(), costs, skipped=len(plan.jobs) - len(jobs), debug=debug)
    results = stored_results(plan.jobs)
    (print_json if output == "json" else print_table)(plan.jobs, results, plan.left_out)
    if interrupted:
        unforced = " without --force" if force else ""
        echo(f"Interrupted; the same command{unforced} goes on where this one stopped.", err=True)
        sys.exit(INTERRUPTED)
    for line in stopped_sets(plan.jobs, results, costs):
        echo(line, err=True)
    if apply_patch:
        offer_patches(plan.jobs, results)
    if any(result is not None and not result.reason.is_verdict for result in results):
        echo("Some episodes failed; --force-failed runs them again.", err=True)
        sys.exit(FAILED)


def _name_unlocked(jobs: Sequence[Job]) -> None:
    """Name the tasks whose requirements have no hashes: what is installed for them may change."""
    names = list(dict.fromkeys(job.task.metadata.name for job in jobs if not is_locked(job.task.spec)))
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        named = printable_line(f"{', '.join(names[:_NAMED])}{more}")
        echo(f"Not locked: {named}; dgym lock MANIFEST writes exact versions and hashes into it.", err=True)


def stopped_sets(jobs: Sequence[Job], results: "Sequence[StoredResult | None]", costs: SetCosts) -> Iterator[str]:
    """A line for each set whose ``costLimit`` is spent before all of its episodes have run."""
    left = [job for job, result in zip(jobs, results, strict=True) if result is None and costs.spent(job) is not None]
    numbers = Counter(job.group for job in left)
    for job in {job.group: job for job in left}.values():
        name, number = job.group.rpartition("#")[2], numbers[job.group]
        yield (
            f"EpisodeSet {name}: costLimit is {job.cost_limit}, and {costs.spent(job)} is spent: {number} episode"
            f"{'' if number == 1 else 's'} did not run; the same command with a higher -p set.costLimit runs the rest."
        )


def _execute(jobs: list[Job], workers: int, costs: SetCosts, *, skipped: int, debug: bool) -> bool:
    """Run the jobs; True when interrupted."""
    interactive = any_interactive(jobs)
    verbose = any(job.verbose for job in jobs)
    progress = Progress(total=len(jobs), verbose=verbose, live=not (interactive or debug))
    if skipped:
        progress.say(f"{skipped} finished before and not run again (--force runs them again)")
    try:
        with terminated_like_interrupted():
            if debug:
                from dgym.cli.run.stepping import stopping_hooks

                run_inline(jobs, progress, hooks=stopping_hooks, costs=costs)
            elif interactive:
                run_inline(jobs, progress, costs=costs)
            else:
                Pool(workers=workers, listener=progress, costs=costs).run(jobs)
    except KeyboardInterrupt:
        return True
    finally:
        progress.close()
    return False


def _cpus() -> int:
    # Not every system has a CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def offer_patches(jobs: Sequence[Job], results: "Sequence[StoredResult | None]") -> None:
    """Ask for each repository whether to apply a patch, resolved episodes first, until one is applied."""
    for root, candidates in _by_repository(jobs, results).items():
        for job, result, patch in candidates:
            echo(f"\n{job.episode}: {result.reason}, {result.score} of {result.max_score}. Its patch:", err=True)
            echo(patch.decode("utf-8", "replace").rstrip("\n"), err=True)
            if _agreed(f"Apply it to {root}?"):
                changed = write_patch(root, patch)
                echo(f"Changed in {root}: {', '.join(changed)}", err=True)
                break


def write_patch(root: Path, patch: bytes) -> list[str]:
    """Change the files below ``root``; all of them or, where the patch does not fit, none.

    Raises:
        PatchError: The files are not those that the patch was made from.
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
    """Raise where a directory has become a link to elsewhere since the repository was read."""
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
    """The file's mode with the patch's executable bit, the only bit that a patch has."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return version.mode
    return mode | 0o111 if version.mode & stat.S_IXUSR else mode & ~0o111
