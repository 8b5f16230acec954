"""Waiting for what was submitted: a line for every turn that an episode or a set takes, and a table at the end."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from dgym.api import TREATMENTS
from dgym.cli.cluster.connection import Cluster
from dgym.cli.cluster.following import Key, follow
from dgym.cli.cluster.names import path_of
from dgym.cli.cluster.tables import console, tables, widen
from dgym.cli.cluster.views import EpisodeView, SetView

V = TypeVar("V", EpisodeView, SetView)


async def wait_for(cluster: Cluster, manifests: Sequence[Mapping[str, Any]]) -> bool:
    """Stay until all Episodes and EpisodeSets among the manifests are finished; whether all came to verdicts."""
    async with asyncio.TaskGroup() as group:
        episodes = group.create_task(_finished(cluster, "Episode", EpisodeView, _keys(manifests, "Episode")))
        sets = group.create_task(_finished(cluster, "EpisodeSet", SetView, _keys(manifests, "EpisodeSet")))
    found_episodes, found_sets = episodes.result(), sets.result()
    known = [view for view in found_episodes.values() if view is not None]
    known_sets = [view for view in found_sets.values() if view is not None]
    if known or known_sets:
        screen, drawn = console(), tables(known, known_sets, wide=False, everywhere=False)
        widen(screen, drawn)
        screen.print(drawn)
    gone = [key for found in (found_episodes, found_sets) for key, view in found.items() if view is None]
    for namespace, name in gone:
        click.echo(f"{name}: deleted from namespace {namespace} before it was finished", err=True)
    failed = any(each.failed for each in known) or any(each.status.failed for each in known_sets)
    return not gone and not failed


def _keys(manifests: Iterable[Mapping[str, Any]], kind: str) -> list[Key]:
    return [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in manifests if each["kind"] == kind]


async def _finished(cluster: Cluster, kind: str, view: type[V], keys: Sequence[Key]) -> dict[Key, V | None]:
    """The last seen state of each; None of those that were deleted before they were finished."""
    by_namespace: dict[str, set[Key]] = {}
    for key in keys:
        by_namespace.setdefault(key[0], set()).add(key)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_finished_in(cluster, path_of(kind, namespace), view, wanted))
            for namespace, wanted in by_namespace.items()
        ]
    return {key: state for task in tasks for key, state in task.result().items()}


async def _finished_in(cluster: Cluster, path: str, view: type[V], wanted: set[Key]) -> dict[Key, V | None]:
    only = f"metadata.name={next(iter(wanted))[1]}" if len(wanted) == 1 else ""
    last: dict[Key, V] = {}
    told: dict[Key, str] = {}
    async with contextlib.aclosing(follow(cluster, path, view, fields=only)) as states:
        async for state in states:
            for key in wanted:
                if key in state and (key not in last or state[key] != last[key]):
                    last[key] = state[key]
                    _tell(key, last[key], told, len(wanted))
            # Children of no TTL are deleted as soon as they are finished: what was seen last counts.
            if all(key not in state or state[key].finished for key in wanted):
                break
    return {key: last[key] if key in last and last[key].finished else None for key in wanted}


def _tell(key: Key, view: EpisodeView | SetView, told: dict[Key, str], number: int) -> None:
    text = _of_set(view) if isinstance(view, SetView) else _of_episode(view, brief=number > 1)
    if text and told.get(key) != text:
        told[key] = text
        click.echo(f"{view.metadata.name}: {text}", err=True)


def _of_episode(view: EpisodeView, *, brief: bool) -> str:
    """Its reason; of many episodes only what asks for attention and the ends."""
    reason = view.status.reason
    if not view.finished and brief and reason not in TREATMENTS:
        return ""
    outcome = view.status.outcome
    if view.finished and outcome is not None:
        reason = f"{reason} {outcome.score}/{outcome.max_score}, {outcome.steps} steps"
    message = "" if view.finished and not view.failed else view.message
    return f"{reason}: {message}" if message else reason


def _of_set(view: SetView) -> str:
    status = view.status
    done = status.resolved + status.unresolved + status.failed
    if not status.total:
        return ""
    counts = f"{status.resolved} resolved, {status.unresolved} unresolved, {status.failed} failed"
    return f"{done}/{status.total} finished: {counts}; {status.active} active"
