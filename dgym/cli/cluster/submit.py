"""``dgym submit``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dgym.cli.cluster.options import context_option, namespace_option, run
from dgym.cli.options import (
    agent_option,
    assignments_option,
    bundled_option,
    entrypoint_option,
    folders_option,
    manifests_argument,
)

if TYPE_CHECKING:
    from dgym.api import Loaded
    from dgym.cli.cluster.connection import Cluster

_AT_A_TIME = 8


@click.command("submit")
@manifests_argument
@folders_option
@bundled_option
@agent_option
@assignments_option
@entrypoint_option
@click.option("--wait", is_flag=True, help="Stay until everything is finished, and show what it came to.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check everything and create nothing.")
@namespace_option
@context_option
def command(
    manifests: tuple[str, ...],
    folders: tuple[str, ...],
    bundled: str | None,
    agent: str | None,
    assignments: tuple[str, ...],
    entrypoint: str | None,
    wait: bool,
    dry_run: bool,
    namespace: str | None,
    context: str | None,
) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs in a cluster.

    DebugTasks, Episodes and EpisodeSets are applied as kubectl apply does: what is there already and the same is left
    alone. A MANIFEST that is a directory is a repository to debug (name the agent, and with --entrypoint what runs its
    tests). Repositories of this machine travel inside the manifest, up to 200 KiB.

    Exit status: 0 (with --wait: every episode has a verdict), 1 some failed, or the cluster refuses or cannot be
    reached, 2 usage or manifest, 130 Ctrl-C (the episodes go on).
    """
    from dgym.cli.cluster.manifests import with_repositories_inline
    from dgym.cli.episodes import read_episodes
    from dgym.cli.failures import FAILED, INTERRUPTED

    if not manifests and not folders and not bundled:
        raise click.UsageError("name at least one manifest, or a benchmark with --bundled")
    if wait and dry_run:
        raise click.UsageError("--dry-run creates nothing to --wait for; leave one out")
    named = read_episodes(
        manifests, folders, bundled=bundled, agent=agent, assignments=assignments, entrypoint=entrypoint
    )
    loaded = with_repositories_inline(named)
    try:
        succeeded = run(_submit(loaded, (context, namespace), wait=wait, dry_run=dry_run))
    except KeyboardInterrupt:
        if wait:
            click.echo("Interrupted; the episodes go on. dgym get --watch shows them, dgym cancel ends them.", err=True)
        sys.exit(INTERRUPTED)
    if not succeeded:
        sys.exit(FAILED)


async def _submit(
    loaded: "Sequence[Loaded]", place: tuple[str | None, str | None], *, wait: bool, dry_run: bool
) -> bool:
    """Apply everything; with ``wait`` whether every episode came to a verdict."""
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.manifests import manifest_of, namespace_of

    async with await Cluster.connect(*place) as cluster:
        manifests = [
            manifest_of(item.resource, namespace_of(item, chosen=place[1], default=cluster.namespace))
            for item in loaded
        ]
        # Tasks are there when their episodes look for them.
        tasks = [each for each in manifests if each["kind"] == "DebugTask"]
        await _apply_all(cluster, tasks, dry_run=dry_run)
        await _apply_all(cluster, [each for each in manifests if each not in tasks], dry_run=dry_run)
        if not wait:
            return True
        from dgym.cli.cluster.waiting import wait_for

        return await wait_for(cluster, manifests)


async def _apply_all(cluster: "Cluster", manifests: Sequence[dict[str, Any]], *, dry_run: bool) -> None:
    """Apply them, several at a time; every refusal is told, each with the object it is about."""
    import asyncio

    from dgym.cli.cluster.errors import ApiRefused
    from dgym.cli.cluster.names import path_of
    from dgym.errors import ManifestError

    gate = asyncio.Semaphore(_AT_A_TIME)
    suffix = " (dry run)" if dry_run else ""

    async def apply(manifest: dict[str, Any]) -> str:
        metadata = manifest["metadata"]
        async with gate:
            path = path_of(manifest["kind"], metadata["namespace"], metadata["name"])
            new, _ = await cluster.apply(path, manifest, dry_run=dry_run)
        return f"{manifest['kind'].lower()}/{metadata['name']} {'created' if new else 'applied'}{suffix}"

    outcomes = await asyncio.gather(*map(apply, manifests), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, ApiRefused)]
    for outcome in outcomes:
        if isinstance(outcome, str):
            click.echo(outcome)
        elif not isinstance(outcome, ApiRefused):
            raise outcome
    if len(refused) == 1:
        raise refused[0]
    if refused:
        lines = list(dict.fromkeys(map(str, refused)))
        kind = ManifestError if all(isinstance(each, ManifestError) for each in refused) else type(refused[0])
        raise _several(lines, kind, refused[0])


def _several(lines: list[str], kind: type[Exception], first: Exception) -> Exception:
    from dgym.cli.cluster.errors import ClusterError
    from dgym.errors import ManifestError

    text = "\n".join(lines)
    return ManifestError(text) if kind is ManifestError else ClusterError(text) if len(lines) > 1 else first
