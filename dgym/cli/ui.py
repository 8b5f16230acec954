"""``dgym ui``: show runs and episodes in a web page, which is served or written as files."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import click

from dgym.cli.cluster.results import open_cluster
from dgym.cli.options import ClusterPlace, complete_directories, takes_cluster_place
from dgym.cli.output import echo
from dgym.results import Library, open_library
from dgym.ui import export, export_single, serve


@click.command("ui")
@click.argument("results", default="", metavar="[RESULTS]", shell_complete=complete_directories)
@click.option("--cluster", is_flag=True, help="Show the Episodes of a namespace of a cluster instead.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port of the page. [default: a free port]"
)
@click.option(
    "--export", "directory", metavar="DIR", help="Write the pages as files into DIR instead, for any web server."
)
@click.option(
    "--single-file",
    "episodes",
    multiple=True,
    metavar="EPISODE",
    help="Write EPISODE, by its name or its path in RESULTS, into one HTML file instead: here, or in DIR.",
)
@takes_cluster_place()
def ui_command(
    results: str,
    cluster: bool,
    port: int,
    directory: str | None,
    episodes: tuple[str, ...],
    place: ClusterPlace,
) -> None:
    """Show runs and episodes in a web page.

    RESULTS is a results directory, a directory of several, or s3://BUCKET/PREFIX. The default is ./results. The page is
    only served to browsers of this machine, at the printed address. It is read-only, and follows episodes while they
    run. Ctrl-C ends it.

    Exit status: 0 everything is written, 1 a file cannot be written, the port is taken, or the cluster refuses or
    cannot be reached, 2 usage, 130 Ctrl-C.
    """
    if cluster and results:
        raise click.UsageError("--cluster shows a cluster instead of RESULTS; give only one of them")
    if not cluster and (place.namespace or place.context):
        raise click.UsageError("--namespace and --context require --cluster")
    if directory is not None and not episodes and "://" not in results:
        _refuse_inside(Path(directory), Path(results or "results"))

    async def show() -> None:
        async with AsyncExitStack() as stack:
            if cluster:
                library: Library = await stack.enter_async_context(open_cluster(place))
            else:
                library = open_library(results or "results")
            await _show(library, port, directory, episodes)

    asyncio.run(show())


async def _show(library: Library, port: int, directory: str | None, episodes: tuple[str, ...]) -> None:
    def announce(url: str) -> None:
        echo(f"{url}\nBrowsers of this machine can open this address; Ctrl-C ends it.")

    if episodes:
        for path in await export_single(library, episodes, Path(directory or ".")):
            echo(str(path))
    elif directory is not None:
        number = await export(library, Path(directory))
        what = "episode" if number == 1 else "episodes"
        echo(f"{number} {what} in {directory}; open {Path(directory) / 'index.html'}")
    else:
        await serve(library, port=port, announce=announce)


def _refuse_inside(directory: Path, results: Path) -> None:
    """Raise if ``directory`` is inside ``results``, because the exported files would count as episodes."""
    if directory.resolve().is_relative_to(results.resolve()):
        raise click.BadParameter(
            f"{directory} is inside of {results}; name a directory elsewhere", param_hint="--export"
        )
