"""``dgym cancel``."""

import click

from dgym.cli.cluster.options import context_option, namespace_option, run


@click.command("cancel")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@context_option
def command(names: tuple[str, ...], namespace: str | None, context: str | None) -> None:
    """End Episodes and EpisodeSets of a cluster before their time.

    NAME is that of an Episode or of an EpisodeSet; episode/NAME and episodeset/NAME tell them apart. What is done so
    far is scored and stored. It cannot be taken back. What is finished stays as it is.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    run(_cancel(names, (context, namespace)))


async def _cancel(names: tuple[str, ...], place: tuple[str | None, str | None]) -> None:
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.names import find_all, path_of

    async with await Cluster.connect(*place) as cluster:
        for found in await find_all(cluster, names):
            name = found.view.metadata.name
            label = f"{found.kind.lower()}/{name}"
            if found.view.finished:
                click.echo(f"{label} is finished already")
                continue
            await cluster.patch(path_of(found.kind, cluster.namespace, name), {"spec": {"cancel": True}})
            click.echo(f"{label} cancelled")
