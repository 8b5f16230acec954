"""``dgym get``: show the Episodes and EpisodeSets of a cluster as a table or as manifests."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import click

from dgym.api import SET_LABEL, label_value
from dgym.cli.cluster.connection import RESOURCES, EpisodeView, SetView, connect, find_all, follow, table_of
from dgym.cli.options import ClusterPlace, takes_cluster_place
from dgym.cli.output import echo, echo_json, show_table
from dgym.documents import dump
from dgym.kube import EPISODE_SETS, EPISODES, Client, key_of

Views = Sequence[EpisodeView | SetView]


_REDRAW_SECONDS = 0.25


@click.command("get")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-l", "--selector", metavar="LABELS", help="Only objects with these labels, such as dgym.dev/set=nightly."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Show objects of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show changes, until Ctrl-C.")
@click.option(
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Format of the output; json and yaml print the objects themselves.",
)
@takes_cluster_place("namespace", "context")
def get_command(
    names: tuple[str, ...],
    selector: str | None,
    all_namespaces: bool,
    watch: bool,
    output: str,
    place: ClusterPlace,
) -> None:
    """Show the Episodes and EpisodeSets of a cluster.

    NAME is the name of an Episode, or of an EpisodeSet, which is shown with its Episodes. episode/NAME and
    episodeset/NAME distinguish equal names. Without a NAME, all Episodes and EpisodeSets of the namespace are shown.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that does not exist, 130 Ctrl-C.
    """
    if names and (selector or all_namespaces):
        raise click.UsageError("names cannot be combined with --selector and --all-namespaces; give one or the other")
    if watch and output != "table":
        raise click.UsageError(f"--watch shows tables; leave out --output, or watch with kubectl get -w -o {output}")

    async def show() -> None:
        async with connect(place) as client:
            found = await find_all(client, names) if names else None
            where = None if all_namespaces else client.namespace
            if output != "table":
                value = await _manifests(client, found, selector or "", where)
                echo(dump(value), nl=False) if output == "yaml" else echo_json(value)
            else:
                await (_watch if watch else _show)(client, found, selector or "", where)

    asyncio.run(show())


async def _show(client: Client, found: Views | None, selector: str, namespace: str | None) -> None:
    where: dict[str, Any] = {"namespace": namespace, "label_selector": selector}
    sets = await client.list(EPISODE_SETS, decode=SetView, **where)
    views = _select(await client.list(EPISODES, decode=EpisodeView, **where), sets, found)
    if views:
        show_table(table_of(views, everywhere=namespace is None))
    else:
        place = f"in namespace {namespace}" if namespace else "in any namespace"
        echo(f"no Episodes and EpisodeSets {place}; dgym submit MANIFEST creates some", err=True)


async def _watch(client: Client, found: Views | None, selector: str, namespace: str | None) -> None:
    changed = asyncio.Event()
    where: dict[str, Any] = {"namespace": namespace, "label_selector": selector}
    async with (
        follow(client, EPISODES, EpisodeView, changed, **where) as episodes,
        follow(client, EPISODE_SETS, SetView, changed, **where) as sets,
    ):
        while await changed.wait():
            changed.clear()
            show_table(table_of(_select(episodes, sets, found), everywhere=namespace is None))
            await asyncio.sleep(_REDRAW_SECONDS)


def _select(
    episodes: Iterable[EpisodeView], sets: Iterable[SetView], found: Views | None
) -> list[EpisodeView | SetView]:
    """Return the named objects and the Episodes of named sets, or all if ``found`` is None. Sets come first."""
    views: list[EpisodeView | SetView] = [*sorted(sets, key=key_of), *sorted(episodes, key=key_of)]
    if found is None:
        return views
    named = {(each.kind, each.metadata.name) for each in found}
    marks = {label_value(each.metadata.name) for each in found if each.kind == "EpisodeSet"}
    return [
        each
        for each in views
        if (each.kind, each.metadata.name) in named
        or (each.kind == "Episode" and each.metadata.labels.get(SET_LABEL) in marks)
    ]


async def _manifests(client: Client, found: Views | None, selector: str, namespace: str | None) -> dict[str, Any]:
    """Return a List as kubectl prints it. ``dgym run`` and ``dgym submit`` can read it."""
    if found is None:
        where: dict[str, Any] = {"namespace": namespace, "label_selector": selector}
        lists = [
            await client.list(RESOURCES[kind], decode=dict[str, Any], **where) for kind in ("EpisodeSet", "Episode")
        ]
        items = [item for objects in lists for item in objects]
    else:
        items = [
            await client.get(
                RESOURCES[each.kind], each.metadata.name, namespace=client.namespace, decode=dict[str, Any]
            )
            for each in found
        ]
    for item in items:
        item["metadata"].pop("managedFields", None)
    return {"apiVersion": "v1", "kind": "List", "items": items}
