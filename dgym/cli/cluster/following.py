"""Looking at a collection until one has seen enough, through ends of watches and short absences of the API server."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec

from dgym.cli.cluster.connection import Cluster, WatchEnded
from dgym.cli.cluster.errors import ApiRefused, ClusterError
from dgym.cli.cluster.views import EpisodeView, SetView

V = TypeVar("V", EpisodeView, SetView)
Key = tuple[str, str]

_TRIES = 8
_LONGEST_PAUSE = 20.0


async def follow(
    cluster: Cluster,
    path: str,
    view: type[V],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    selector: str = "",
    fields: str = "",
    rng: random.Random | None = None,
) -> AsyncGenerator[dict[Key, V], None]:
    """What is in the collection, again after every change. The same dictionary is yielded each time.

    Raises:
        ClusterError: The API server was away for minutes, or refuses.
    """
    given = {"labelSelector": selector, "fieldSelector": fields}
    params = {name: value for name, value in given.items() if value}
    rng = rng or random.Random()  # noqa: S311 - spreads retries, hides nothing
    seen: dict[Key, V] = {}
    failures = 0
    listed = False
    while True:
        try:
            items, version = await cluster.list(path, **params)
            seen.clear()
            for item in items:
                _remember(seen, cluster.decode(item, view))
            listed = True
            yield seen
            async with contextlib.aclosing(cluster.watch(path, version, **params)) as events:
                async for type_, item in events:
                    failures = 0
                    if _change(seen, type_, cluster.decode(item, view)):
                        yield seen
        except WatchEnded:
            failures = max(failures, 1)
        except ApiRefused as error:
            if error.status not in (410, 429) and error.status < 500:
                raise
            failures = _counted(failures, error)
        except ClusterError as error:
            if not listed:
                raise
            failures = _counted(failures, error)
        await sleep(rng.uniform(0.5, 1.0) * min(_LONGEST_PAUSE, 0.5 * 2**failures))


def _counted(failures: int, error: ClusterError) -> int:
    if failures >= _TRIES:
        raise error
    return failures + 1


def _remember(seen: dict[Key, V], view: V) -> None:
    seen[view.metadata.namespace, view.metadata.name] = view


def _change(seen: dict[Key, V], type_: str, view: V) -> bool:
    if type_ == "DELETED":
        return seen.pop((view.metadata.namespace, view.metadata.name), None) is not None
    if type_ in ("ADDED", "MODIFIED"):
        _remember(seen, view)
        return True
    return False


class Merged(msgspec.Struct):
    """Episodes and sets that are followed together."""

    episodes: dict[Key, EpisodeView] = msgspec.field(default_factory=dict)
    sets: dict[Key, SetView] = msgspec.field(default_factory=dict)


async def list_both(cluster: Cluster, episodes: str, sets: str, *, selector: str = "") -> Merged:
    """Both collections as they are now."""
    params = {"labelSelector": selector} if selector else {}
    merged = Merged()
    for item in (await cluster.list(episodes, **params))[0]:
        _remember(merged.episodes, cluster.decode(item, EpisodeView))
    for item in (await cluster.list(sets, **params))[0]:
        _remember(merged.sets, cluster.decode(item, SetView))
    return merged


async def follow_both(
    cluster: Cluster, episodes: str, sets: str, *, pause: float, selector: str = ""
) -> AsyncGenerator[Merged, None]:
    """Both collections, after changes of either; changes within ``pause`` seconds are told together."""
    merged = Merged()
    changed = asyncio.Event()
    listed: set[str] = set()

    async def keep_episodes() -> None:
        async for merged.episodes in follow(cluster, episodes, EpisodeView, selector=selector):
            listed.add(episodes)
            changed.set()

    async def keep_sets() -> None:
        async for merged.sets in follow(cluster, sets, SetView, selector=selector):
            listed.add(sets)
            changed.set()

    tasks = [asyncio.create_task(keep_episodes()), asyncio.create_task(keep_sets())]
    try:
        while True:
            waiting = asyncio.create_task(changed.wait())
            done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if waiting not in done:
                waiting.cancel()
            for task in tasks:
                if task in done:
                    task.result()
            changed.clear()
            if len(listed) == len(tasks):
                yield merged
                await asyncio.sleep(pause)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
