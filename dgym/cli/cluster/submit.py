"""What ``dgym submit`` and ``dgym cancel`` do: begin and end episodes of a cluster."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from dgym.api import Loaded
from dgym.cli.cluster.connection import RESOURCES, ClusterError, connect, explained, find_all
from dgym.cli.cluster.manifests import manifest_of, namespace_of, with_repositories_inline
from dgym.cli.cluster.waiting import wait_for
from dgym.cli.manifests import read_episodes
from dgym.cli.options import Inputs
from dgym.cli.output import FAILED, INTERRUPTED, echo
from dgym.errors import ManifestError
from dgym.kube import ApiError, Client, ConnectionLost

_AT_A_TIME = 8


def submit_all(inputs: Inputs, place: tuple[str | None, str | None], *, wait: bool, dry_run: bool) -> None:
    """Apply everything that the command line names; with ``wait``, exit with 1 where an episode has no verdict."""
    loaded = with_repositories_inline(read_episodes(inputs))
    try:
        succeeded = asyncio.run(_submit(loaded, place, wait=wait, dry_run=dry_run))
    except KeyboardInterrupt:
        if wait:
            echo("Interrupted; the episodes go on. dgym get --watch shows them, dgym cancel ends them.", err=True)
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
            echo(outcome)
        elif isinstance(outcome, ApiError) and not isinstance(outcome, ConnectionLost):
            refused.append(explained(outcome, client.access))
        else:
            raise outcome
    if refused:
        text = "\n".join(dict.fromkeys(map(str, refused)))
        raise ManifestError(text) if all(isinstance(each, ManifestError) for each in refused) else ClusterError(text)


def cancel_all(names: Sequence[str], place: tuple[str | None, str | None]) -> None:
    """Cancel the Episodes and EpisodeSets of these names."""
    asyncio.run(_cancel(names, place))


async def _cancel(names: Sequence[str], place: tuple[str | None, str | None]) -> None:
    async with connect(*place) as client:
        for found in await find_all(client, names):
            name = found.metadata.name
            label = f"{found.kind.lower()}/{name}"
            if found.finished:
                echo(f"{label} is finished already")
                continue
            change = {"spec": {"cancel": True}}
            resource, namespace = RESOURCES[found.kind], client.namespace
            await client.patch(resource, name, change, decode=bytes, namespace=namespace, field_manager="dgym")
            echo(f"{label} cancelled")
