"""From names to directories of results, laid out as in the results store."""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from dgym.api.planning import child_name
from dgym.cli.cluster.connection import Cluster
from dgym.cli.cluster.names import find_all, path_of, selector_of_children
from dgym.cli.cluster.results_reader import ResultsReader, open_results
from dgym.cli.cluster.views import EpisodeView, SetView
from dgym.results import Attempt, StoredResult
from dgym.results.store import FILES

_AT_A_TIME = 4


class Wanted(msgspec.Struct, frozen=True):
    """An episode whose results are asked for; of one that is deleted only the name is known."""

    namespace: str
    episode: str
    uid: str = ""
    uri: str = ""


class Fetched(msgspec.Struct, frozen=True):
    """What there was of an episode: the directories of its attempts, and the newest result."""

    episode: str
    attempts: tuple[Path, ...]
    result: StoredResult | None = None


async def fetch(
    names: Sequence[str], directory: Path, *, place: tuple[str | None, str | None], system_namespace: str
) -> list[Fetched]:
    """Fetch everything; what cannot be found by name is a usage error."""
    async with await Cluster.connect(*place) as cluster:
        wanted = await _wanted(cluster, names)
        done = {each: _copied(each, directory) for each in wanted}
        remote = [each for each in wanted if not done[each]]
        if remote:
            async with open_results(cluster, system_namespace) as reader:
                done |= await _fetch_all(reader, remote, directory)
    return [_fetched(each, done[each]) for each in wanted]


async def _wanted(cluster: Cluster, names: Sequence[str]) -> list[Wanted]:
    wanted: dict[str, Wanted] = {}
    for found in await find_all(cluster, names):
        if isinstance(found.view, EpisodeView):
            wanted[found.view.metadata.name] = _of_episode(found.view, cluster.namespace)
        else:
            for each in await _of_set(cluster, found.view):
                wanted.setdefault(each.episode, each)
    return list(wanted.values())


def _of_episode(view: EpisodeView, namespace: str) -> Wanted:
    uri = view.status.outcome.result_uri if view.status.outcome is not None else ""
    return Wanted(namespace, view.metadata.name, view.metadata.uid, uri)


async def _of_set(cluster: Cluster, view: SetView) -> list[Wanted]:
    """Its Episodes in the order of their indexes, and those that finished and are deleted."""
    selector = selector_of_children(view.metadata.name)
    items, _ = await cluster.list(path_of("Episode", cluster.namespace), labelSelector=selector)
    living = [_of_episode(cluster.decode(item, EpisodeView), cluster.namespace) for item in items]
    known = {each.episode: each for each in living}
    past = (child_name(view.metadata.name, index) for index in indexes(view.status.completed_indexes))
    for name in past:
        known.setdefault(name, Wanted(cluster.namespace, name))
    return sorted(known.values(), key=lambda each: (len(each.episode), each.episode))


def indexes(text: str) -> list[int]:
    """``0-2,7`` as 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _copied(wanted: Wanted, directory: Path) -> tuple[Path, ...]:
    """Copy the attempt if its directory in the store is one of this machine; nothing otherwise."""
    address = urlsplit(wanted.uri)
    source = Path(unquote(address.path))
    if address.scheme != "file" or not source.name.isdecimal():
        return ()
    result = Attempt(source).load()
    if result is None or (result.namespace, result.episode) != (wanted.namespace, wanted.episode):
        return ()
    target = directory / wanted.namespace / wanted.episode / wanted.uid / source.name
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError, shutil.SameFileError):
            shutil.copyfile(source / name, target / name)
    return (target,)


async def _fetch_all(
    reader: ResultsReader, wanted: Sequence[Wanted], directory: Path
) -> dict[Wanted, tuple[Path, ...]]:
    gate = asyncio.Semaphore(_AT_A_TIME)
    done: dict[Wanted, tuple[Path, ...]] = {}

    async def fetch_one(each: Wanted) -> None:
        async with gate:
            files = await reader.files(each.namespace, each.episode)
            # Of a living Episode its own results alone; an earlier one may have had the same name.
            files = [file for file in files if not each.uid or file.path.split("/")[2] == each.uid]
            for file in files:
                await reader.save(file, directory)
            attempts = {directory / file.path.rpartition("/")[0] for file in files}
            done[each] = tuple(sorted(attempts, key=lambda path: int(path.name)))

    async with asyncio.TaskGroup() as group:
        for each in wanted:
            group.create_task(fetch_one(each))
    return done


def _fetched(wanted: Wanted, attempts: tuple[Path, ...]) -> Fetched:
    results = (Attempt(path).load() for path in reversed(attempts))
    return Fetched(wanted.episode, attempts, next((each for each in results if each is not None), None))
