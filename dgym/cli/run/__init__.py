"""``dgym run``: episodes on this machine, their progress and summary, and the patch that is applied afterwards."""

import os
import sys
from typing import TYPE_CHECKING

import click

from dgym.cli.completion import complete_directories
from dgym.cli.failures import FAILED, INTERRUPTED
from dgym.cli.options import (
    Inputs,
    build_requirements_option,
    check_python,
    engine_option,
    llm_config_option,
    output_option,
    python_option,
    sandbox_option,
    takes_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dgym.api import Loaded
    from dgym.episodes.job import Job
    from dgym.episodes.plan import Plan, RunOptions


@click.command("run")
@takes_inputs()
@click.option("--apply", "apply_patch", is_flag=True, help="Offer to apply the patch to the repository it is for.")
@llm_config_option
@click.option("--workers", type=click.IntRange(1, 10_000), metavar="N", help="Episodes at a time. [default: CPUs]")
@sandbox_option
@engine_option
@python_option
@build_requirements_option
@click.option(
    "--results",
    default="results",
    show_default=True,
    metavar="DIR",
    shell_complete=complete_directories,
    help="Where results are, and are stored.",
)
@click.option("--force", is_flag=True, help="Run finished episodes again too.")
@click.option("--force-failed", is_flag=True, help="Run again those that ended without a verdict.")
@click.option("-v", "--verbose", is_flag=True, help="Show what agents think, do and see, and what episodes log.")
@click.option(
    "--debug",
    is_flag=True,
    help="Stop in Python's debugger after each reply of a model, or step of an agent without one; c goes on.",
)
@output_option
def command(
    inputs: Inputs,
    apply_patch: bool,
    llm_config: str | None,
    workers: int | None,
    sandbox: str,
    engine: str,
    python: str | None,
    build_requirements: bool,
    results: str,
    force: bool,
    force_failed: bool,
    verbose: bool,
    debug: bool,
    output: str,
) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs on this machine.

    Tasks they refer to are found among the manifests given and the bundled benchmarks. A MANIFEST that is a directory
    is a repository to debug (name the agent, and with --entrypoint what runs its tests); it is copied and stays as it
    is, unless --apply offers the patch and you agree. Episodes whose result is in the results directory are not run
    again.

    Exit status: 0 every episode has a verdict, 1 some failed for other reasons, 2 usage or manifest, 130 Ctrl-C.
    """
    from dgym.cli.manifests import read_episodes
    from dgym.episodes.plan import RunOptions

    if force and force_failed:
        raise click.UsageError("--force runs everything again; --force-failed does not go with it")
    if inputs.entrypoint and not any(os.path.isdir(path) for path in inputs.manifests):  # noqa: PTH112 - no pathlib before its need
        raise click.UsageError("--entrypoint is of repositories; a manifest's task has spec.entrypoint")
    options = RunOptions(
        results=results,
        sandbox=sandbox,
        engine=engine,
        python=check_python(python),
        build_requirements=build_requirements,
        llm_config=None if llm_config is None else os.path.abspath(llm_config),  # noqa: PTH100 - as above
        verbose=verbose,
    )
    plan = _plan(read_episodes(inputs), options)
    after = _offer if apply_patch else None
    _run(plan, workers or _cpus(), force=force, force_failed=force_failed, debug=debug, output=output, after=after)


def _plan(loaded: "list[Loaded]", options: "RunOptions") -> "Plan":
    from dgym.cli.manifests import bundled_tasks
    from dgym.episodes.plan import make_plan

    return make_plan(loaded, options=options, bundled=bundled_tasks() if _needs_bundled(loaded) else ())


def _needs_bundled(loaded: "list[Loaded]") -> bool:
    """Whether a reference to a task is not answered by the manifests themselves."""
    from dgym.api import DebugTask, Episode, EpisodeSet

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


def _run(
    plan: "Plan",
    workers: int,
    *,
    force: bool,
    force_failed: bool,
    debug: bool,
    output: str,
    after: "Callable[[Plan], None] | None",
) -> None:
    from dgym.cli.run.progress import print_json, print_table
    from dgym.episodes.plan import stored_results, unfinished

    jobs = list(unfinished(plan.jobs, force=force, force_failed=force_failed))
    interrupted = _execute(jobs, workers, skipped=len(plan.jobs) - len(jobs), debug=debug)
    results = stored_results(plan.jobs)
    (print_json if output == "json" else print_table)(plan.jobs, results, plan.left_out)
    failed = any(result is not None and not result.reason.is_verdict for result in results)
    if interrupted:
        unforced = " without --force" if force else ""
        click.echo(f"Interrupted; the same command{unforced} goes on where this one stopped.", err=True)
        sys.exit(INTERRUPTED)
    if after is not None:
        after(plan)
    if failed:
        click.echo("Some episodes failed; --force-failed runs them again.", err=True)
        sys.exit(FAILED)


def _offer(plan: "Plan") -> None:
    from dgym.cli.run.applying import offer_patches
    from dgym.episodes.plan import stored_results

    offer_patches(plan.jobs, stored_results(plan.jobs))


def _execute(jobs: "list[Job]", workers: int, *, skipped: int, debug: bool) -> bool:
    """Run the jobs; True when interrupted."""
    from dgym.cli.failures import terminated_like_interrupted
    from dgym.cli.run.progress import Progress
    from dgym.episodes.plan import any_interactive
    from dgym.episodes.pool import Pool, run_inline

    interactive = any_interactive(jobs)
    verbose = any(job.verbose for job in jobs)
    progress = Progress(total=len(jobs), verbose=verbose, live=not (interactive or debug))
    if skipped:
        progress.say(f"{skipped} finished before and not run again (--force runs them again)")
    try:
        with terminated_like_interrupted():
            if debug:
                from dgym.cli.run.stepping import stopping_hooks

                run_inline(jobs, progress, hooks=stopping_hooks)
            elif interactive:
                run_inline(jobs, progress)
            else:
                Pool(workers=workers, listener=progress).run(jobs)
    except KeyboardInterrupt:
        return True
    finally:
        progress.close()
    return False


def _cpus() -> int:
    # Not every system has a CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
