"""``dgym submit``, ``dgym retry`` and ``dgym cancel``: episodes of a cluster begun, awaited and ended."""

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from dgym.api import RETRY_KEY, TREATMENTS, Loaded, Treatment
from dgym.cli.cluster.connection import RESOURCES, ClusterError, connect, explained, find_all, follow
from dgym.cli.cluster.manifests import (
    manifest_of,
    namespace_of,
    print_manifests,
    refuse_without_image,
    with_repositories_inline,
)
from dgym.cli.cluster.views import EpisodeView, SetView, table_of
from dgym.cli.image import with_images
from dgym.cli.init.detection import with_environments
from dgym.cli.manifests import read_episodes
from dgym.cli.options import ImageOptions, Inputs
from dgym.cli.output import FAILED, INTERRUPTED, UsageFailure, echo, show_table
from dgym.errors import ManifestError
from dgym.kube import EPISODE_SETS, EPISODES, ApiError, Client, ConnectionLost, Key, Resource, Store
from dgym.terminal import printable_line

V = TypeVar("V", EpisodeView, SetView)

_AT_A_TIME = 8


def submit_all(
    inputs: Inputs,
    place: tuple[str | None, str | None],
    *,
    wait: bool,
    dry_run: bool,
    images: ImageOptions | None = None,
    output: str | None = None,
) -> None:
    """Apply everything that the command line names; with ``wait``, exit with 1 where an episode has no verdict.

    With ``images``, tasks without an image get one. With ``output`` the manifests are printed in that form instead.
    """
    loaded = read_episodes(inputs)
    if images is not None:
        loaded = with_images(with_environments(loaded, inputs.entrypoint, None), images, build=not dry_run)
    loaded = with_repositories_inline(loaded)
    refuse_without_image(loaded)
    if output is not None:
        print_manifests(
            [manifest_of(item.resource, namespace_of(item, chosen=place[1], default="")) for item in loaded], output
        )
        return
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
        # Tasks first: Episodes refer to them.
        tasks = [each for each in manifests if each["kind"] == "DebugTask"]
        await apply_all(client, tasks, dry_run=dry_run)
        await apply_all(client, [each for each in manifests if each not in tasks], dry_run=dry_run)
        if not wait:
            return True
        return await wait_for(client, manifests)


async def apply_all(
    client: Client, manifests: Sequence[dict[str, Any]], *, dry_run: bool = False, to_stderr: bool = False
) -> None:
    """Apply the manifests, several at a time, and print a line for each.

    Raises:
        ManifestError: Some were refused; every refusal is in the message with its object.
        ClusterError: Likewise, where not all of them for what the manifest says.
    """
    gate = asyncio.Semaphore(_AT_A_TIME)
    suffix = " (dry run)" if dry_run else ""

    async def apply(manifest: dict[str, Any]) -> str:
        metadata, resource = manifest["metadata"], RESOURCES[manifest["kind"]]
        where = {"namespace": metadata["namespace"], "field_manager": "dgym", "dry_run": dry_run}
        async with gate:
            _, created = await client.apply(resource, metadata["name"], manifest, decode=bytes, **where)
        return f"{resource.kind.lower()}/{metadata['name']} {'created' if created else 'applied'}{suffix}"

    refused = []
    for outcome in await asyncio.gather(*map(apply, manifests), return_exceptions=True):
        if isinstance(outcome, str):
            echo(outcome, err=to_stderr)
        elif isinstance(outcome, ApiError) and not isinstance(outcome, ConnectionLost):
            refused.append(explained(outcome, client.access))
        else:
            raise outcome
    if refused:
        text = "\n".join(dict.fromkeys(map(str, refused)))
        raise ManifestError(text) if all(isinstance(each, ManifestError) for each in refused) else ClusterError(text)


async def cancel_all(names: Sequence[str], place: tuple[str | None, str | None]) -> None:
    """Cancel the Episodes and EpisodeSets of these names."""
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


async def retry_all(names: Sequence[str], reasons: Sequence[str], place: tuple[str | None, str | None]) -> None:
    """Request that the failed episodes of these EpisodeSets run again, all or those that failed with these reasons.

    Raises:
        UsageFailure: No episode can fail with such a reason.
    """
    failures = {reason for reason, treatment in TREATMENTS.items() if treatment is not Treatment.VERDICT}
    unknown = [reason for reason in reasons if reason not in failures]
    if unknown:
        raise UsageFailure(f"{unknown[0]} is not a reason of failed episodes; one of {', '.join(sorted(failures))}")
    async with connect(*place) as client:
        for found in await find_all(client, names, kinds=("EpisodeSet",)):
            assert isinstance(found, SetView)
            label = f"episodeset/{found.metadata.name}"
            chosen = [each for each in found.status.failed_indexes if not reasons or each.reason in reasons]
            if found.spec.cancel:
                echo(f"{label} is cancelled; submit a new one")
            elif not chosen:
                echo(f"{label} has no episode that failed{' with ' if reasons else ''}{', '.join(reasons)}")
            else:
                value = " ".join((datetime.now(UTC).isoformat(), ",".join(reasons))).strip()
                change = {"metadata": {"annotations": {RETRY_KEY: value}}}
                name, namespace = found.metadata.name, client.namespace
                await client.patch(EPISODE_SETS, name, change, decode=bytes, namespace=namespace, field_manager="dgym")
                counts = ", ".join(f"{each.reason} {each.count}" for each in chosen)
                echo(f"{label}: failed episodes run again: {counts}")


async def wait_for(client: Client, manifests: Sequence[Mapping[str, Any]]) -> bool:
    """Wait until all Episodes and EpisodeSets of the manifests are finished; return whether all have verdicts."""
    async with asyncio.TaskGroup() as group:
        episodes = group.create_task(finished(client, EPISODES, EpisodeView, _keys(manifests, EPISODES)))
        sets = group.create_task(finished(client, EPISODE_SETS, SetView, _keys(manifests, EPISODE_SETS)))
    found_episodes, found_sets = episodes.result(), sets.result()
    known = [view for view in found_episodes.values() if view is not None]
    known_sets = [view for view in found_sets.values() if view is not None]
    if known or known_sets:
        show_table(table_of([*known_sets, *known]))
    gone = [key for found in (found_episodes, found_sets) for key, view in found.items() if view is None]
    for namespace, name in gone:
        echo(f"{name}: deleted from namespace {namespace} before it was finished", err=True)
    failed = any(each.failed for each in known) or any(each.status.failed for each in known_sets)
    return not gone and not failed


def _keys(manifests: Iterable[Mapping[str, Any]], resource: Resource) -> list[Key]:
    metadata = (each["metadata"] for each in manifests if each["kind"] == resource.kind)
    return [(each["namespace"], each["name"]) for each in metadata]


async def finished(client: Client, resource: Resource, view: type[V], keys: Sequence[Key]) -> dict[Key, V | None]:
    """Wait until all are finished; the last observed state of each, None for those deleted before their end."""
    by_namespace: dict[str, set[Key]] = {}
    for key in keys:
        by_namespace.setdefault(key[0], set()).add(key)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_finished_in(client, resource, view, namespace, wanted))
            for namespace, wanted in by_namespace.items()
        ]
    return {key: state for task in tasks for key, state in task.result().items()}


async def _finished_in(
    client: Client, resource: Resource, view: type[V], namespace: str, wanted: set[Key]
) -> dict[Key, V | None]:
    only = f"metadata.name={next(iter(wanted))[1]}" if len(wanted) == 1 else ""
    last: dict[Key, V] = {}
    shown: dict[Key, str] = {}
    changed = asyncio.Event()
    async with follow(client, resource, view, changed, namespace=namespace, field_selector=only) as store:
        # Without a TTL, children are deleted as soon as they are finished: the last observed state counts.
        while not _all_finished(store, wanted) or changed.is_set():
            await changed.wait()
            changed.clear()
            for key in wanted:
                state = store.get(key)
                if state is not None and state != last.get(key):
                    last[key] = state
                    _show_state(key, state, shown, len(wanted))
    return {key: last[key] if key in last and last[key].finished else None for key in wanted}


def _all_finished(store: Store[V], wanted: Iterable[Key]) -> bool:
    states = (store.get(key) for key in wanted)
    return all(state is None or state.finished for state in states)


def _show_state(key: Key, view: EpisodeView | SetView, shown: dict[Key, str], number: int) -> None:
    text = view.message if isinstance(view, SetView) else _of_episode(view, brief=number > 1)
    if text and shown.get(key) != text:
        shown[key] = text
        echo(printable_line(f"{view.metadata.name}: {text}"), err=True)


def _of_episode(view: EpisodeView, *, brief: bool) -> str:
    """The episode's state; with ``brief``, only of failures and finished episodes."""
    reason = view.status.reason
    if not view.finished and brief and reason not in TREATMENTS:
        return ""
    outcome = view.status.outcome
    if view.finished and outcome is not None:
        reason = f"{reason} {outcome.score}/{outcome.max_score}, {outcome.steps} steps"
    return f"{reason}: {view.message}" if view.message else reason
