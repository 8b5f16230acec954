"""``dgym get``: the Episodes and EpisodeSets of a cluster as a table or as manifests."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from dgym.api import SET_LABEL, label_value
from dgym.cli.cluster.connection import RESOURCES, connect, find_all, follow
from dgym.cli.cluster.views import EpisodeView, SetView, table_of
from dgym.cli.output import echo, echo_json, show_table
from dgym.documents import dump
from dgym.kube import EPISODE_SETS, EPISODES, Client, key_of

Views = Sequence[EpisodeView | SetView]


_REDRAW_SECONDS = 0.25


async def show_objects(
    names: Sequence[str],
    selector: str,
    output: str,
    *,
    everywhere: bool,
    watch: bool,
    place: tuple[str | None, str | None],
) -> None:
    """Print the objects of these names, else all that the selector selects."""
    async with connect(*place) as client:
        found = await find_all(client, names) if names else None
        namespace = None if everywhere else client.namespace
        if output != "table":
            value = await _manifests(client, found, selector, namespace)
            echo(dump(value), nl=False) if output == "yaml" else echo_json(value)
        else:
            await (_watch if watch else _show)(client, found, selector, namespace)


async def _show(client: Client, found: Views | None, selector: str, namespace: str | None) -> None:
    where: dict[str, Any] = {"namespace": namespace, "label_selector": selector}
    sets = await client.list(EPISODE_SETS, decode=SetView, **where)
    views = _select(await client.list(EPISODES, decode=EpisodeView, **where), sets, found)
    if views:
        show_table(table_of(views, everywhere=namespace is None))
    else:
        place = f"in namespace {namespace}" if namespace else "in any namespace"
        echo(f"no Episodes and EpisodeSets {place}; dgym submit MANIFEST makes some", err=True)


async def _watch(client: Client, found: Views | None, selector: str, namespace: str | None) -> None:
    """Print the table after every change, until interrupted."""
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
    """The objects named on the command line and the Episodes of named sets: sets first, each sorted by name."""
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
    """A List as kubectl prints it, which dgym run and dgym submit can read."""
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
