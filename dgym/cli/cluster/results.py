"""``dgym results``."""

from typing import TYPE_CHECKING

import click

from dgym.cli.completion import complete_directories
from dgym.cli.options import context_option, namespace_option, system_namespace_option

if TYPE_CHECKING:
    from dgym.cli.cluster.stored import Fetched


@click.command("results")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--directory",
    metavar="DIR",
    default="results",
    show_default=True,
    shell_complete=complete_directories,
    help="Where the results go.",
)
@namespace_option
@context_option
@system_namespace_option
def command(
    names: tuple[str, ...], directory: str, namespace: str | None, context: str | None, system_namespace: str
) -> None:
    """Fetch results, patches and trajectories of Episodes of a cluster.

    NAME is that of an Episode or of an EpisodeSet, whose Episodes are then fetched, those too that are deleted already;
    episode/NAME and episodeset/NAME tell them apart. They come from the results store where this machine has it as a
    directory, else from an agent through a port-forward. `dgym report DIR` reads what is fetched.

    Exit status: 0, 1 nothing is stored yet of some, or the cluster refuses or cannot be reached, 2 usage or a name that
    is not there, 130 Ctrl-C.
    """
    import asyncio
    import sys
    from pathlib import Path

    from dgym.cli.cluster.stored import fetch
    from dgym.cli.failures import FAILED, UsageFailure

    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"--directory {directory}: {error.strerror or error}; choose another") from error
    fetching = fetch(names, Path(directory), place=(context, namespace), system_namespace=system_namespace)
    fetched = asyncio.run(fetching)
    for each in fetched:
        click.echo(_line(each))
    stored = [each for each in fetched if each.attempts]
    if stored:
        click.echo(f"{len(stored)} of {len(fetched)} in {directory}; dgym report {directory} tells what they came to")
    if len(stored) < len(fetched) or not fetched:
        click.echo("Of some nothing is stored yet; the same command fetches the rest later.", err=True)
        sys.exit(FAILED)


def _line(each: "Fetched") -> str:
    if not each.attempts:
        return f"{each.episode}: nothing is stored yet"
    newest = each.attempts[-1]
    result = each.result
    if result is None:
        return f"{each.episode}: no result yet, {newest}"
    return f"{each.episode}: {result.reason} {result.score}/{result.max_score}, {newest}"
