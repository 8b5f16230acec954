"""The commands that work on this machine: options and help. Implementations are imported when a command runs."""

import sys

import click

from dgym.cli.options import (
    Inputs,
    build_requirements_option,
    check_python,
    complete_agents,
    complete_directories,
    complete_paths,
    engine_option,
    llm_config_option,
    local_paths_option,
    output_option,
    python_option,
    sandbox_option,
    takes_inputs,
)

_DIRECTORY = click.Path(file_okay=False)


@click.command("check")
@takes_inputs("manifests", "folders", "bundled", "entrypoint", "local_paths")
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="Runs of the untouched repository, and of the solution; tests that differ between them are flaky.",
)
@sandbox_option
@engine_option
@python_option
@build_requirements_option
@click.option("--write", is_flag=True, help="Put failToPass and passToPass into the manifests.")
@click.option("--yes", is_flag=True, help="Install a missing Python with uv, unasked.")
@output_option
def check_command(
    inputs: Inputs,
    repeat: int,
    write: bool,
    yes: bool,
    sandbox: str,
    engine: str,
    python: str | None,
    build_requirements: bool,
    output: str,
) -> None:
    """Run tasks untouched and solved, and list their problems.

    Problems are: tasks that pass already, tests that lack a module, plugin, program or extension, test ids that do not
    exist, flaky tests, and solutions that do not resolve their task. Tests that need a network, a database or a display
    do not count. failToPass and passToPass are printed as YAML where they are short. A MANIFEST that is a directory is
    a repository with the environment that dgym init proposes, whose tests --entrypoint runs.

    Exit status: 0 nothing is wrong, 1 a task has problems, 2 usage or manifest, 130 Ctrl-C.
    """
    from dgym.cli.check import check_and_show, tasks_to_check
    from dgym.cli.init.detection import with_environments
    from dgym.cli.manifests import read_manifests

    python = check_python(python)
    loaded = read_manifests(inputs)
    if sandbox != "container":  # Nothing is installed in a container.
        loaded = with_environments(loaded, inputs.entrypoint, python)
    tasks, files = tasks_to_check(loaded, inputs.bundled)
    check_and_show(
        tasks,
        sandbox=sandbox,
        engine=engine,
        python=python,
        build_requirements=build_requirements,
        repeats=repeat,
        yes=yes,
        output=output,
        write_to=files if write else (),
    )


@click.command("init")
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Where the manifest goes; - prints it. [default: NAME.yaml outside of the repository]",
)
@click.option("--agent", default="human", show_default=True, metavar="NAME", shell_complete=complete_agents)
@click.option(
    "--policy-files", is_flag=True, help="Put the patterns into .debugignore and .debugreadonly of the repository."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option(
    "--check/--no-check",
    default=None,
    help="Run the repository's tests in a sandbox, and add what they lack. [default: on a terminal]",
)
@click.option("--yes", is_flag=True, help="Add what the tests lack, and install a missing Python with uv, unasked.")
def init_command(
    directory: str, output: str | None, agent: str, policy_files: bool, force: bool, check: bool | None, yes: bool
) -> None:
    """Write a manifest for a repository of your own.

    DIRECTORY is the repository (default: the current directory). Its files show its tests, requirements and Python;
    the requirements are resolved to exact versions. Nothing of the repository is executed outside of a sandbox, and
    nothing at all without --check. The manifest is written into the current directory or, from inside the
    repository, beside it, because the agent gets everything that lies in the repository.
    """
    from dgym.cli.init import write_manifest

    if check and output == "-":
        raise click.UsageError("--check needs a manifest that is written; it does not go with --output -")
    if check is None:
        check = output != "-" and sys.stdin.isatty() and sys.stdout.isatty()
    write_manifest(directory, output, agent=agent, policy_files=policy_files, force=force, check=check, yes=yes)


@click.command("lock")
@click.argument("manifests", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_paths)
def lock_command(manifests: tuple[str, ...]) -> None:
    """Write exact versions and hashes of the requirements into manifests of tasks.

    TASK is a manifest of DebugTasks or Episodes. The package index resolves what environment.requirements (or
    requirements) names, for environment.python or the Python that runs dgym; nothing is installed. The list then has
    every distribution with the hashes of its wheels, for Linux and macOS, and installations take no others. Comments
    stay.
    """
    from dgym.cli.lock import lock_files

    lock_files(manifests)


@click.command("migrate")
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Where the manifest goes. [default: standard output]",
)
@click.option(
    "--agent", metavar="NAME", shell_complete=complete_agents, help="Only this section. [default: all of them]"
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def migrate_command(config: str, output: str | None, agent: str | None, force: bool) -> None:
    """Convert a configuration of debug-gym to a manifest.

    Every section becomes an Episode, or for a benchmark an EpisodeSet. What has no counterpart, or another meaning,
    stands on standard error and in the manifest's first lines; docs/migrating.md has the outcome of each key.
    """
    from dgym.cli.migrate import convert_file

    convert_file(config, output, agent=agent, force=force)


@click.command("replay")
@click.argument("trajectories", nargs=-1, required=True, metavar="TRAJECTORY...", shell_complete=complete_paths)
@click.option(
    "--task",
    "manifest",
    metavar="MANIFEST",
    shell_complete=complete_paths,
    help="The manifest that holds the task. Default: a bundled one, or with --trust the recorded one.",
)
@local_paths_option
@click.option("--trust", is_flag=True, help="Read the manifest and import the tools that the trajectories name.")
@sandbox_option
@engine_option
@python_option
@output_option
def replay_command(
    trajectories: tuple[str, ...],
    manifest: str | None,
    local_paths: tuple[str, ...],
    trust: bool,
    sandbox: str,
    engine: str,
    python: str | None,
    output: str,
) -> None:
    """Run recorded trajectories again and compare the observations.

    The recorded calls are made in a fresh session of the same task. Observations are compared without addresses,
    process ids, durations and temporary paths. A trajectory names a manifest, whose task names a repository, and
    perhaps tools by module: for a trajectory of your own, --trust uses both. Exit status: 0 all the same, 1 something
    differs.
    """
    from dgym.cli.replay import replay_all

    python = check_python(python)
    replay_all(
        trajectories, manifest, local_paths, trust=trust, sandbox=sandbox, engine=engine, python=python, output=output
    )


@click.command("report")
@click.argument("directories", nargs=-1, metavar="[DIR]...", type=_DIRECTORY)
@click.option("--compare", "others", multiple=True, metavar="DIR", type=_DIRECTORY, help="Compare with these results.")
@click.option("--agent", metavar="NAME", shell_complete=complete_agents, help="Only the results of this agent.")
@click.option(
    "--compare-agent",
    metavar="NAME",
    shell_complete=complete_agents,
    help="The same for what is compared with. [default: --agent]",
)
@click.option("--baseline", metavar="ARM", help="Compare the other arms with this one. [default: each two]")
@click.option(
    "--by",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="Group by this label of DebugTasks. [default: dgym.dev/repository and dgym.dev/difficulty]",
)
@click.option("--all-configurations", is_flag=True, help="Count earlier configurations of an episode too.")
@click.option(
    "--price", "prices", multiple=True, metavar="MODEL=IN:OUT", help="Cost of a million input and output tokens."
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    metavar="LEVEL",
    help="Of the intervals.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Form of the output; csv: a line for each episode, or for each task when comparing.",
)
@click.option("--plot", metavar="PATH", help="Draw figures: DIR/NAME.svg of a directory, else FILE-NAME.svg or .png.")
@click.option(
    "--figure",
    "figures",
    multiple=True,
    type=click.Choice(["resolve-rate", "steps", "cost", "stages", "tools"]),
    help="With --plot, only this figure, into the FILE itself; repeat for more. [default: all]",
)
def report_command(
    directories: tuple[str, ...],
    others: tuple[str, ...],
    agent: str | None,
    compare_agent: str | None,
    baseline: str | None,
    labels: tuple[str, ...],
    all_configurations: bool,
    prices: tuple[str, ...],
    confidence: float,
    output: str,
    plot: str | None,
    figures: tuple[str, ...],
) -> None:
    """Show the figures of results, or compare two runs.

    DIR is a results directory, or a part of one; without any it is ./results. Rates are over the episodes that have a
    verdict, with Wilson's interval. --compare matches tasks and tests the difference with McNemar's exact test; so are
    the arms of an EpisodeSet compared, without an option.

    --plot draws resolve-rate, steps, cost, stages and tools, by arm, or by agent and model where there are no arms.
    """
    from dgym.cli.report import show_report

    if compare_agent and not others:
        raise click.UsageError("--compare-agent goes with --compare DIR")
    if others and (baseline or labels):
        raise click.UsageError("--baseline and --by do not go with --compare DIR")
    if figures and not plot:
        raise click.UsageError("--figure goes with --plot PATH")
    if others and plot:
        raise click.UsageError("--plot draws one run: give both directories without --compare to draw their agents")
    show_report(
        directories or ("results",),
        others,
        agents=(agent, compare_agent or agent),
        every_configuration=all_configurations,
        prices=prices,
        confidence=confidence,
        output=output,
        baseline=baseline,
        labels=labels,
        plot=plot,
        figures=figures,
    )


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
def run_command(
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
    is a repository to debug (name the agent, and with --entrypoint what runs its tests) in the environment that
    dgym init proposes; it is copied and stays as it is, unless --apply offers the patch and you agree. Episodes whose
    result is in the results directory are not run again.

    Exit status: 0 every episode has a verdict, 1 some failed for other reasons, 2 usage or manifest, 130 Ctrl-C.
    """
    from pathlib import Path

    from dgym.cli.init.detection import with_environments
    from dgym.cli.manifests import read_episodes
    from dgym.cli.run import make_plan, run_plan
    from dgym.episodes import RunOptions

    if force and force_failed:
        raise click.UsageError("--force runs everything again; --force-failed does not go with it")
    if inputs.entrypoint and not any(Path(path).is_dir() for path in inputs.manifests):
        raise click.UsageError("--entrypoint is of repositories; a manifest's task has spec.entrypoint")
    options = RunOptions(
        results=results,
        sandbox=sandbox,
        engine=engine,
        python=check_python(python),
        build_requirements=build_requirements,
        llm_config=None if llm_config is None else str(Path(llm_config).absolute()),
        verbose=verbose,
    )
    loaded = read_episodes(inputs)
    plan = make_plan(loaded, options)
    if sandbox != "container" and any(Path(item.file).is_dir() for item in loaded):
        # After the agents and models of the plan were checked: this may ask an index.
        loaded = with_environments(loaded, inputs.entrypoint, options.python)
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


@click.command("validate")
@takes_inputs("manifests", "folders", "local_paths")
def validate_command(inputs: Inputs) -> None:
    """Check manifests without running anything.

    All faults of all files are reported, with file, document, field, value and remedy: fields and values, the names of
    agents and tools and their options, and whether patches are patches. References to tasks in other manifests are not
    followed.
    """
    from dgym.cli.check import validate_manifests

    validate_manifests(inputs)
