"""``dgym get``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dgym.cli.cluster.options import context_option, namespace_option, run

if TYPE_CHECKING:
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.following import Merged
    from dgym.cli.cluster.names import Found
    from dgym.cli.cluster.views import EpisodeView, SetView

_REDRAW_SECONDS = 0.25


@click.command("get")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-l", "--selector", metavar="LABELS", help="Only those with these labels, such as dgym.dev/set=nightly.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Stay and show changes, until Ctrl-C.")
@click.option(
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    help="Form of the output; json: the objects themselves.",
)
@namespace_option
@context_option
def command(
    names: tuple[str, ...],
    selector: str | None,
    all_namespaces: bool,
    watch: bool,
    output: str,
    namespace: str | None,
    context: str | None,
) -> None:
    """Show the Episodes and EpisodeSets of a cluster.

    NAME is that of an Episode or of an EpisodeSet, which is shown with its Episodes; episode/NAME and episodeset/NAME
    tell them apart. Without a NAME all of the namespace are shown.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    if names and (selector or all_namespaces):
        raise click.UsageError("names do not go with --selector and --all-namespaces; give one or the other")
    if watch and output == "json":
        raise click.UsageError("--watch shows tables; leave out --output json, or watch with kubectl get -w -o json")
    run(_get(names, selector or "", output, everywhere=all_namespaces, watch=watch, place=(context, namespace)))


async def _get(
    names: Sequence[str],
    selector: str,
    output: str,
    *,
    everywhere: bool,
    watch: bool,
    place: tuple[str | None, str | None],
) -> None:
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.names import find_all

    async with await Cluster.connect(*place) as cluster:
        found = await find_all(cluster, names) if names else None
        namespace = None if everywhere else cluster.namespace
        if output == "json":
            await _print_json(cluster, found, selector, namespace)
        elif watch:
            await _watch(cluster, found, selector, namespace, wide=output == "wide")
        else:
            await _show(cluster, found, selector, namespace, wide=output == "wide")


async def _show(
    cluster: "Cluster", found: "list[Found] | None", selector: str, namespace: str | None, *, wide: bool
) -> None:
    from dgym.cli.cluster.following import list_both
    from dgym.cli.cluster.names import path_of
    from dgym.cli.cluster.tables import console, tables, widen

    merged = await list_both(
        cluster, path_of("Episode", namespace), path_of("EpisodeSet", namespace), selector=selector
    )
    episodes, sets = _select(merged, found)
    if not episodes and not sets:
        click.echo(_nothing(namespace), err=True)
        return
    screen, drawn = console(), tables(episodes, sets, wide=wide, everywhere=namespace is None)
    widen(screen, drawn)
    screen.print(drawn)


async def _watch(
    cluster: "Cluster", found: "list[Found] | None", selector: str, namespace: str | None, *, wide: bool
) -> None:
    """On a terminal the table changes in place; elsewhere it is printed again."""
    import contextlib

    from rich.live import Live

    from dgym.cli.cluster.following import follow_both
    from dgym.cli.cluster.names import path_of
    from dgym.cli.cluster.tables import console, tables, widen

    paths = path_of("Episode", namespace), path_of("EpisodeSet", namespace)
    screen = console()
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(console=screen, auto_refresh=False)) if sys.stdout.isatty() else None
        async with contextlib.aclosing(follow_both(cluster, *paths, pause=_REDRAW_SECONDS, selector=selector)) as views:
            async for merged in views:
                drawn = tables(*_select(merged, found), wide=wide, everywhere=namespace is None)
                widen(screen, drawn)
                if live is not None:
                    live.update(drawn, refresh=True)
                else:
                    screen.print(drawn)


def _select(merged: "Merged", found: "list[Found] | None") -> "tuple[list[EpisodeView], list[SetView]]":
    from dgym.api import labels
    from dgym.api.planning import label_value

    episodes = [merged.episodes[key] for key in sorted(merged.episodes)]
    sets = [merged.sets[key] for key in sorted(merged.sets)]
    if found is None:
        return episodes, sets
    names = {each.view.metadata.name for each in found if each.kind == "Episode"}
    set_names = {each.view.metadata.name for each in found if each.kind == "EpisodeSet"}
    marks = {label_value(name) for name in set_names}
    return (
        [each for each in episodes if each.metadata.name in names or each.metadata.labels.get(labels.SET) in marks],
        [each for each in sets if each.metadata.name in set_names],
    )


async def _print_json(cluster: "Cluster", found: "list[Found] | None", selector: str, namespace: str | None) -> None:
    """A List, as kubectl prints it: dgym run and dgym submit read it too."""
    import msgspec

    from dgym.cli.cluster.names import path_of
    from dgym.cli.options import echo_json

    if found is None:
        params = {"labelSelector": selector} if selector else {}
        lists = [await cluster.list(path_of(kind, namespace), **params) for kind in ("EpisodeSet", "Episode")]
        raw = [bytes(item) for objects, _ in lists for item in objects]
    else:
        raw = [each.raw for each in found]
    items = [msgspec.json.decode(item) for item in raw]
    for item in items:
        item["metadata"].pop("managedFields", None)
    echo_json({"apiVersion": "v1", "kind": "List", "items": items})


def _nothing(namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in any namespace"
    return f"no Episodes and EpisodeSets {where}; dgym submit MANIFEST makes some"
