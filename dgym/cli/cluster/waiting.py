"""Following Episodes and EpisodeSets, and waiting until submitted ones are finished.

A wait prints a line for every change of state, and a table at the end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from dgym.api import TREATMENTS
from dgym.cli.cluster.views import EpisodeView, SetView, show
from dgym.cli.output import echo
from dgym.kube import (
    EPISODE_SETS,
    EPISODES,
    Client,
    Key,
    Object,
    Reflector,
    Resource,
    Store,
    SystemClock,
    WatchSettings,
)
from dgym.terminal import printable_line

T = TypeVar("T", bound=Object)
V = TypeVar("V", EpisodeView, SetView)


_SETTINGS = WatchSettings(tries=8)


@contextlib.asynccontextmanager
async def follow(
    client: Client,
    resource: Resource,
    view: type[T],
    changed: asyncio.Event,
    *,
    namespace: str | None,
    label_selector: str = "",
    field_selector: str = "",
) -> AsyncIterator[Store[T]]:
    """A store that a watch keeps current; ``changed`` is set when it is first filled, and after every change.

    Raises:
        BaseExceptionGroup: With an ``ApiError``: the API server did not answer for minutes, or refuses.
    """
    clock = SystemClock()
    store: Store[T] = Store(clock)
    store.subscribe(lambda _change: changed.set())
    reflector = Reflector(
        client,
        resource,
        decode=view,
        store=store,
        clock=clock,
        random=Random(),  # noqa: S311 - spreads retries, hides nothing
        namespace=namespace,
        label_selector=label_selector,
        field_selector=field_selector,
        settings=_SETTINGS,
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(reflector.run())
        await reflector.synced.wait()
        changed.set()
        yield store
        watching.cancel()


async def wait_for(client: Client, manifests: Sequence[Mapping[str, Any]]) -> bool:
    """Wait until all Episodes and EpisodeSets of the manifests are finished; return whether all have verdicts."""
    async with asyncio.TaskGroup() as group:
        episodes = group.create_task(_finished(client, EPISODES, EpisodeView, _keys(manifests, EPISODES)))
        sets = group.create_task(_finished(client, EPISODE_SETS, SetView, _keys(manifests, EPISODE_SETS)))
    found_episodes, found_sets = episodes.result(), sets.result()
    known = [view for view in found_episodes.values() if view is not None]
    known_sets = [view for view in found_sets.values() if view is not None]
    if known or known_sets:
        show(known, known_sets)
    gone = [key for found in (found_episodes, found_sets) for key, view in found.items() if view is None]
    for namespace, name in gone:
        echo(f"{name}: deleted from namespace {namespace} before it was finished", err=True)
    failed = any(each.failed for each in known) or any(each.status.failed for each in known_sets)
    return not gone and not failed


def _keys(manifests: Iterable[Mapping[str, Any]], resource: Resource) -> list[Key]:
    metadata = (each["metadata"] for each in manifests if each["kind"] == resource.kind)
    return [(each["namespace"], each["name"]) for each in metadata]


async def _finished(client: Client, resource: Resource, view: type[V], keys: Sequence[Key]) -> dict[Key, V | None]:
    """The last observed state of each; None for those that were deleted before they were finished."""
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
        # Children of no TTL are deleted as soon as they are finished: the state observed last counts.
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
    text = _of_set(view) if isinstance(view, SetView) else _of_episode(view, brief=number > 1)
    if text and shown.get(key) != text:
        shown[key] = text
        echo(printable_line(f"{view.metadata.name}: {text}"), err=True)


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
