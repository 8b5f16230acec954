"""``dgym submit`` and ``dgym cancel``: begin and end episodes of a cluster."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click

from dgym.api import Loaded
from dgym.cli.cluster.connection import RESOURCES, ClusterError, connect, explained, find_all
from dgym.cli.cluster.manifests import manifest_of, namespace_of, with_repositories_inline
from dgym.cli.cluster.waiting import wait_for
from dgym.cli.manifests import read_episodes
from dgym.cli.options import Inputs, context_option, namespace_option, takes_inputs
from dgym.cli.output import FAILED, INTERRUPTED
from dgym.errors import ManifestError
from dgym.kube import ApiError, Client, ConnectionLost

_AT_A_TIME = 8


@click.command("submit")
@takes_inputs()
@click.option("--wait", is_flag=True, help="Stay until everything is finished, and show the outcomes.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check everything and create nothing.")
@namespace_option
@context_option
def submit(inputs: Inputs, wait: bool, dry_run: bool, namespace: str | None, context: str | None) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs in a cluster.

    DebugTasks, Episodes and EpisodeSets are applied as kubectl apply does: what is there already and the same is left
    alone. A MANIFEST that is a directory is a repository to debug (name the agent, and with --entrypoint what runs its
    tests). Repositories of this machine travel inside the manifest, up to 200 KiB.

    Exit status: 0 (with --wait: every episode has a verdict), 1 some failed, or the cluster refuses or cannot be
    reached, 2 usage or manifest, 130 Ctrl-C (the episodes go on).
    """
    if wait and dry_run:
        raise click.UsageError("--dry-run creates nothing to --wait for; leave one out")
    loaded = with_repositories_inline(read_episodes(inputs))
    try:
        succeeded = asyncio.run(_submit(loaded, (context, namespace), wait=wait, dry_run=dry_run))
    except KeyboardInterrupt:
        if wait:
            click.echo("Interrupted; the episodes go on. dgym get --watch shows them, dgym cancel ends them.", err=True)
        sys.exit(INTERRUPTED)
    if not succeeded:
        sys.exit(FAILED)


async def _submit(loaded: Sequence[Loaded], place: tuple[str | None, str | None], *, wait: bool, dry_run: bool) -> bool:
    """Apply everything; with ``wait``, return whether every episode has a verdict."""
    async with connect(*place) as client:
        manifests = [
            manifest_of(item.resource, namespace_of(item, chosen=place[1], default=client.namespace)) for item in loaded
        ]
        # Tasks are there when their episodes look for them.
        tasks = [each for each in manifests if each["kind"] == "DebugTask"]
        await _apply_all(client, tasks, dry_run=dry_run)
        await _apply_all(client, [each for each in manifests if each not in tasks], dry_run=dry_run)
        if not wait:
            return True
        return await wait_for(client, manifests)


async def _apply_all(client: Client, manifests: Sequence[dict[str, Any]], *, dry_run: bool) -> None:
    """Apply them, several at a time; every refusal is reported, each with the object it is about."""
    gate = asyncio.Semaphore(_AT_A_TIME)
    suffix = " (dry run)" if dry_run else ""

    async def apply(manifest: dict[str, Any]) -> str:
        metadata, resource = manifest["metadata"], RESOURCES[manifest["kind"]]
        where = {"namespace": metadata["namespace"], "field_manager": "dgym", "dry_run": dry_run}
        async with gate:
            created = await client.apply(resource, metadata["name"], manifest, **where)
        return f"{resource.kind.lower()}/{metadata['name']} {'created' if created else 'applied'}{suffix}"

    refused = []
    for outcome in await asyncio.gather(*map(apply, manifests), return_exceptions=True):
        if isinstance(outcome, str):
            click.echo(outcome)
        elif isinstance(outcome, ApiError) and not isinstance(outcome, ConnectionLost):
            refused.append(explained(outcome, client.access))
        else:
            raise outcome
    if refused:
        text = "\n".join(dict.fromkeys(map(str, refused)))
        raise ManifestError(text) if all(isinstance(each, ManifestError) for each in refused) else ClusterError(text)


@click.command("cancel")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@context_option
def cancel(names: tuple[str, ...], namespace: str | None, context: str | None) -> None:
    """End Episodes and EpisodeSets of a cluster before their time.

    NAME is that of an Episode or of an EpisodeSet; episode/NAME and episodeset/NAME tell them apart. What is done so
    far is scored and stored. It cannot be taken back. What is finished stays as it is.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    asyncio.run(_cancel(names, (context, namespace)))


async def _cancel(names: tuple[str, ...], place: tuple[str | None, str | None]) -> None:
    async with connect(*place) as client:
        for found in await find_all(client, names):
            name = found.metadata.name
            label = f"{found.kind.lower()}/{name}"
            if found.finished:
                click.echo(f"{label} is finished already")
                continue
            change = {"spec": {"cancel": True}}
            resource, namespace = RESOURCES[found.kind], client.namespace
            await client.patch(resource, name, change, decode=bytes, namespace=namespace, field_manager="dgym")
            click.echo(f"{label} cancelled")
