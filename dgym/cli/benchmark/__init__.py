"""`dgym benchmark`: data sets of others, imported, shown, rendered as manifests, checked and run.

This module has options and help; implementations are imported when a command runs.
"""

from collections.abc import Callable
from typing import Any

import click

from dgym.cli.options import (
    check_python,
    complete_agents,
    complete_directories,
    complete_paths,
    context_option,
    engine_option,
    llm_config_option,
    namespace_option,
    output_option,
    python_option,
    sandbox_option,
    system_namespace_option,
)

_split_option = click.option("--split", metavar="NAME", help="The split. [default: the only one that was imported]")
_CHOICE: tuple[Callable[[Any], Any], ...] = (
    _split_option,
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="IDS|FIELD=PATTERN",
        help="Only these instances: ids with commas, or a field of the rows; * matches anything.",
    ),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N of them."),
    click.option(
        "--image", "template", metavar="TEMPLATE", help="Name of images, such as me/{{ instance_id }}:latest."
    ),
    click.option("--registry", metavar="HOST", help="The registry of images, in place of their own."),
    click.option(
        "--repositories",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False),
        help="Git repositories whose commits are used in place of images.",
    ),
)
_EPISODES: tuple[Callable[[Any], Any], ...] = (
    click.option("--agent", metavar="NAME", shell_complete=complete_agents, help="The agent of the episodes."),
    click.option("--model", metavar="NAME", help="The agent's model."),
    click.option(
        "--arm",
        "arms",
        multiple=True,
        metavar="NAME:KEY=VALUE,...",
        help="Compare: an arm that changes agent, model, tools or agent.FIELD, such as plain:agent=rewrite_agent.",
    ),
    click.option(
        "--samples", type=click.IntRange(1, 1000), default=1, show_default=True, help="Episodes for each task."
    ),
    click.option("--unhealthy", is_flag=True, help="Also the tasks that dgym benchmark health found flaky or broken."),
)


def _with(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group("benchmark")
def benchmark_command() -> None:
    """Import benchmarks such as SWE-bench, and run them or render manifests."""


@benchmark_command.command("list")
@output_option
def list_command(output: str) -> None:
    """List the benchmarks that come with dgym or were imported, and the adapters by which others can be."""
    from dgym.cli.benchmark.library import show_list

    show_list(output)


@benchmark_command.command("show")
@click.argument("name")
@_split_option
@output_option
def show_command(name: str, split: str | None, output: str) -> None:
    """Show a benchmark: where it is from, its instances, and their health."""
    from dgym.cli.benchmark.library import show_one

    show_one(name, split, output)


@benchmark_command.command("import")
@click.argument("name")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="PATH|URL",
    shell_complete=complete_paths,
    help="JSON lines, a JSON list or parquet; for some adapters a directory, an archive, or with --revision git.",
)
@click.option("--adapter", metavar="NAME", help="What reads the rows. [default: NAME itself]")
@click.option("--split", default="test", show_default=True, metavar="NAME", help="The split that the rows are.")
@click.option("--sha256", metavar="DIGEST", help="The SHA-256 that the source must have.")
@click.option("--revision", metavar="COMMIT", help="The commit, where the source is the URL of a git repository.")
def import_command(
    name: str, source: str, adapter: str | None, split: str, sha256: str | None, revision: str | None
) -> None:
    """Read every row, check that it can become a task, and keep the rows in the cache directory as NAME.

    What is wrong is named with its file, row and field, and then nothing is imported. A download that was interrupted
    goes on where it stopped.
    """
    from dgym.cli.benchmark.library import import_one

    import_one(name, adapter or name, source, split, sha256, revision)


@benchmark_command.command("render")
@click.argument("name")
@_with(_CHOICE)
@_with(_EPISODES)
@click.option("--output", "directory", metavar="DIR", type=click.Path(file_okay=False), help="Where the files go.")
def render_command(name: str, directory: str | None, **choice: Any) -> None:
    """Write a DebugTask for each instance and an EpisodeSet over them: to DIR, or to standard output.

    kubectl apply --server-side -f DIR takes them, and so do dgym submit and dgym run.
    """
    from dgym.cli.benchmark.rendering import Choice, render

    render(name, Choice(**choice), directory)


@benchmark_command.command("estimate")
@click.argument("name")
@_with(_CHOICE)
@_with(_EPISODES)
@click.option(
    "--history",
    multiple=True,
    metavar="RESULTS",
    type=click.Path(exists=True, file_okay=False),
    help="Earlier results of the same agent and model, which tell hours and tokens.",
)
@click.option(
    "--image-size",
    "gigabytes",
    type=click.FloatRange(0, min_open=True),
    default=2.5,
    show_default=True,
    metavar="GB",
    help="Assumed of each image, compressed.",
)
@click.option(
    "--ask-registries",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Ask the registries, without a login, for the sizes of N images. They count each as a pull.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0, min_open=True),
    default=15.0,
    show_default=True,
    metavar="S",
    help="Assumed of a step without --history.",
)
@llm_config_option
@output_option
def estimate_command(
    name: str,
    history: tuple[str, ...],
    gigabytes: float,
    ask_registries: int | None,
    step_seconds: float,
    llm_config: str | None,
    output: str,
    **choice: Any,
) -> None:
    """Tell what the set would take before it is run: pods, images, bytes to pull, hours, tokens and money.

    Each figure names where it comes from: counted, measured in earlier results, or assumed. Nothing is run.
    """
    from dgym.cli.benchmark.estimating import Sources, show_estimate
    from dgym.cli.benchmark.rendering import Choice

    sources = Sources(
        history=history,
        image_bytes=round(gigabytes * 1e9),
        step_seconds=step_seconds,
        ask_registries=ask_registries or 0,
        llm_config=llm_config,
    )
    show_estimate(name, Choice(**choice), sources, output)


@benchmark_command.command("run")
@click.argument("name")
@_with(_CHOICE)
@_with(_EPISODES)
@llm_config_option
@click.option("--workers", type=click.IntRange(1, 10_000), metavar="N", help="Episodes at a time. [default: CPUs]")
@sandbox_option
@engine_option
@python_option
@click.option("--results", default="results", show_default=True, metavar="DIR", shell_complete=complete_directories)
@click.option("--force", is_flag=True, help="Run finished episodes again too.")
@output_option
def run_command(
    name: str,
    llm_config: str | None,
    workers: int | None,
    sandbox: str,
    engine: str,
    python: str | None,
    results: str,
    force: bool,
    output: str,
    **choice: Any,
) -> None:
    """Run the instances on this machine, as dgym run does with what dgym benchmark render writes.

    Exit status: 0 every episode has a verdict, 1 some failed for other reasons, 2 usage or data, 130 Ctrl-C.
    """
    from dgym.cli.benchmark.rendering import Choice, run
    from dgym.episodes import RunOptions

    options = RunOptions(
        results=results, sandbox=sandbox, engine=engine, python=check_python(python), llm_config=llm_config
    )
    run(name, Choice(**choice), options, workers=workers, force=force, output=output)


@benchmark_command.command("health")
@click.argument("name")
@_with(_CHOICE)
@click.option("--repeat", type=click.IntRange(1, 100), default=2, show_default=True, metavar="N", help="Runs of each.")
@sandbox_option
@engine_option
@python_option
@click.option("--cluster", is_flag=True, help="Run them in a cluster, and write the condition Healthy of DebugTasks.")
@click.option(
    "--start-timeout",
    type=click.IntRange(1, 7 * 86400),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="How long it may take in the cluster until a sandbox is ready, its image pulled.",
)
@namespace_option
@context_option
@system_namespace_option
@output_option
def health_command(
    name: str,
    repeat: int,
    sandbox: str,
    engine: str,
    python: str | None,
    output: str,
    *,
    cluster: bool,
    start_timeout: int,
    namespace: str | None,
    context: str | None,
    system_namespace: str,
    **choice: Any,
) -> None:
    """Run the empty and the gold patch of each instance, and remember which tasks are healthy, flaky or broken.

    render and run leave the others out. With --cluster, DebugTasks are applied and get the condition Healthy; the
    episodes are deleted afterwards.

    Exit status: 0 all are healthy, 1 some are not, 2 usage or data, 130 Ctrl-C.
    """
    from dgym.cli.benchmark.checking import check_health, check_health_in_cluster
    from dgym.cli.benchmark.cluster_health import Place
    from dgym.cli.benchmark.rendering import Choice

    if cluster:
        place = Place(context=context, namespace=namespace, system_namespace=system_namespace)
        check_health_in_cluster(
            name, Choice(**choice), place, repeats=repeat, start_timeout=start_timeout, output=output
        )
        return
    if context or namespace:
        raise click.UsageError("--context and --namespace choose a cluster; give --cluster as well")
    check_health(
        name,
        Choice(**choice),
        repeats=repeat,
        sandbox=sandbox,
        engine=engine,
        python=check_python(python),
        output=output,
    )


@benchmark_command.command("verify")
@click.argument("name")
@_split_option
def verify_command(name: str, split: str | None) -> None:
    """Check that the rows are those that were imported, and that each still becomes a valid task. Nothing is run."""
    from dgym.cli.benchmark.checking import verify_rows

    verify_rows(name, split)


@benchmark_command.command("predictions")
@click.argument("results", metavar="RESULTS", type=click.Path(exists=True, file_okay=False))
@click.option("--benchmark", "name", metavar="NAME", help="Only instances of this benchmark.")
def predictions_command(results: str, name: str | None) -> None:
    """Print the patches of a results directory as the official harness of SWE-bench reads them: JSON lines."""
    from dgym.cli.benchmark.predictions import print_predictions

    print_predictions(results, name)
