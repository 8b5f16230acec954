"""What ``dgym get`` does: list the Episodes and EpisodeSets of a cluster, and watch them."""

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.live import Live

from dgym.api import SET_LABEL, label_value
from dgym.cli.cluster.connection import RESOURCES, connect, find_all
from dgym.cli.cluster.views import EpisodeView, SetView, show, tables
from dgym.cli.cluster.waiting import follow
from dgym.cli.output import console, echo, echo_json, widen
from dgym.kube import EPISODE_SETS, EPISODES, Client, key_of

Views = Sequence[EpisodeView | SetView]


_REDRAW_SECONDS = 0.25


def show_objects(
    names: Sequence[str],
    selector: str,
    output: str,
    *,
    everywhere: bool,
    watch: bool,
    place: tuple[str | None, str | None],
) -> None:
    """Print the objects of these names, else all that the selector selects."""
    asyncio.run(_show_objects(names, selector, output, everywhere=everywhere, watch=watch, place=place))


async def _show_objects(
    names: Sequence[str],
    selector: str,
    output: str,
    *,
    everywhere: bool,
    watch: bool,
    place: tuple[str | None, str | None],
) -> None:
    async with connect(*place) as client:
        found = await find_all(client, names) if names else None
        namespace = None if everywhere else client.namespace
        if output == "json":
            await _print_json(client, found, selector, namespace)
        elif watch:
            await _watch(client, found, selector, namespace, wide=output == "wide")
        else:
            await _show(client, found, selector, namespace, wide=output == "wide")


async def _show(client: Client, found: Views | None, selector: str, namespace: str | None, *, wide: bool) -> None:
    all_episodes = await client.list(EPISODES, decode=EpisodeView, namespace=namespace, label_selector=selector)
    all_sets = await client.list(EPISODE_SETS, decode=SetView, namespace=namespace, label_selector=selector)
    episodes, sets = _select(all_episodes, all_sets, found)
    if episodes or sets:
        show(episodes, sets, wide=wide, everywhere=namespace is None)
    else:
        echo(_nothing(namespace), err=True)


async def _watch(client: Client, found: Views | None, selector: str, namespace: str | None, *, wide: bool) -> None:
    """Draw the table after every change: in place on a terminal, one below the other elsewhere."""
    screen = console()
    changed = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        live = stack.enter_context(Live(console=screen, auto_refresh=False)) if sys.stdout.isatty() else None
        where: dict[str, Any] = {"namespace": namespace, "label_selector": selector}
        episodes = await stack.enter_async_context(follow(client, EPISODES, EpisodeView, changed, **where))
        sets = await stack.enter_async_context(follow(client, EPISODE_SETS, SetView, changed, **where))
        while await changed.wait():
            changed.clear()
            drawn = tables(*_select(episodes, sets, found), wide=wide, everywhere=namespace is None)
            widen(screen, drawn)
            if live is not None:
                live.update(drawn, refresh=True)
            else:
                screen.print(drawn)
            await asyncio.sleep(_REDRAW_SECONDS)


def _select(
    episodes: Iterable[EpisodeView], sets: Iterable[SetView], found: Views | None
) -> tuple[list[EpisodeView], list[SetView]]:
    """The objects of the names given, and the Episodes of the sets among them; in the order of their names."""
    episodes, sets = sorted(episodes, key=key_of), sorted(sets, key=key_of)
    if found is None:
        return episodes, sets
    names = {each.metadata.name for each in found if each.kind == "Episode"}
    set_names = {each.metadata.name for each in found if each.kind == "EpisodeSet"}
    marks = {label_value(name) for name in set_names}
    return (
        [each for each in episodes if each.metadata.name in names or each.metadata.labels.get(SET_LABEL) in marks],
        [each for each in sets if each.metadata.name in set_names],
    )


async def _print_json(client: Client, found: Views | None, selector: str, namespace: str | None) -> None:
    """Print a List as kubectl does, which dgym run and dgym submit can read."""
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
    echo_json({"apiVersion": "v1", "kind": "List", "items": items})


def _nothing(namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in any namespace"
    return f"no Episodes and EpisodeSets {where}; dgym submit MANIFEST makes some"
