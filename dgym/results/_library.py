"""The episodes of a results store as an index in memory, found by a walk over the directory, and their files."""

import asyncio
import math
import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from dgym.errors import ManifestError
from dgym.results._attempts import (
    RESULT_LIMIT,
    TRAJECTORY_LIMIT,
    Attempt,
    EpisodeFolder,
    Planned,
    StoredResult,
    TrajectoryHeader,
    decode_header,
    decode_result,
    is_plan,
    read_plan,
)
from dgym.results._rows import AttemptFields, EpisodeRow, row_of, run_of
from dgym.results._store import FILES, RESULT, TRAJECTORY, ResultsStore, StoredItem
from dgym.untrusted import open_regular

RUNNING, NO_RESULT = "Running", "NoResult"
"""States of an attempt without a result: its files changed recently, or they did not."""
MESSAGE_CHARACTERS = 300
_LIVE_SECONDS = 15 * 60.0
_STORE_PAUSE_SECONDS = 5.0
_MOST_OBJECTS = 200_000
_READ_AT_ONCE = 16
_READ_IN_A_REFRESH = 500
"""Maximum number of results that one refresh reads. The next refresh continues."""
_TRAJECTORY_BYTES = 64 * 1024**2
_PAUSE_SECONDS = 1.0
_RACY_SECONDS = 2.0
"""A directory that changed less than this before its listing may change again without a change of its timestamp."""
_DEEPEST = 12
_MOST_PLANS = 200
_PLAN_BYTES = 64 * 1024**2
_MOST_DIRECTORIES = 400_000
_HEADER_BYTES = 1024**2
_CHUNK_BYTES = 1024**2


class EpisodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An episode in the index, with the data of its newest attempt.

    That attempt may still be running. A report contains the newest attempt with a result instead (``read_run``).

    Attributes:
        path: Identifies the episode.
        run: The results directory of the episode, relative to the root. May be empty.
        attempts: The numbers of all attempts, in ascending order.
        state: The outcome, or ``RUNNING`` or ``NO_RESULT``.
        about: The fields of the result, or of the header if the attempt does not have a result.
        group: The name of the EpisodeSet, empty if the episode does not belong to a set.
        message: The beginning of the result's message.
        changed: When the files last changed, in seconds since the epoch.
        version: A text that differs after each change of the files.
    """

    path: str
    run: str
    attempts: tuple[int, ...]
    state: str
    about: AttemptFields
    group: str = ""
    message: str = ""
    changed: float = 0.0
    version: str = ""

    @property
    def row(self) -> EpisodeRow | None:
        """The fields of the result, or None."""
        return self.about if isinstance(self.about, EpisodeRow) else None

    @property
    def started(self) -> float:
        """The recorded start of the attempt in seconds since the epoch, or 0 if it is not recorded."""
        return seconds_of(self.about.start_time)

    @property
    def ended(self) -> float:
        """The recorded end of the attempt in seconds since the epoch, or 0 without a result."""
        return self.started + self.row.seconds if self.row is not None else 0.0

    @property
    def finished(self) -> bool:
        """Whether the newest attempt has a result."""
        return self.row is not None

    @property
    def kind(self) -> str:
        """The category of the outcome (``EndReason.category``), or ``running`` or ``waiting``."""
        if self.row is None:
            return "running" if self.state == RUNNING else "waiting"
        return self.row.reason.category(resolved=self.row.resolved)


def finished_entry(
    path: str, attempts: tuple[int, ...], result: StoredResult, *, changed: float, version: str
) -> EpisodeEntry:
    """The entry of an episode whose newest attempt has a result."""
    row = row_of(result, attempt=attempts[-1], path=path)
    return EpisodeEntry(
        path=path,
        run=run_of(path),
        attempts=attempts,
        state=str(row.reason),
        about=row,
        message=result.message[:MESSAGE_CHARACTERS],
        changed=changed,
        version=version,
    )


def unfinished_entry(
    path: str, attempts: tuple[int, ...], header: TrajectoryHeader, *, steps: int, changed: float, version: str
) -> EpisodeEntry:
    """The entry of an episode whose newest attempt does not have a result."""
    agent = header.agent
    about = AttemptFields(
        namespace=header.namespace,
        episode=header.episode or path.rpartition("/")[2],
        task=header.task,
        agent=str(agent.get("name", "")),
        model=str(agent.get("model") or ""),
        arm=header.arm,
        sample=header.sample,
        steps=steps,
        start_time=header.start_time,
    )
    return EpisodeEntry(
        path=path,
        run=run_of(path),
        attempts=attempts,
        state=RUNNING if is_live(changed) else NO_RESULT,
        about=about,
        changed=changed,
        version=version,
    )


def seconds_of(text: str) -> float:
    """An RFC 3339 time in seconds since the epoch, or 0 if ``text`` is not such a time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def is_live(changed: float) -> bool:
    """Whether an attempt without a result may still be running: its files changed within the last 15 minutes."""
    return time.time() - changed < _LIVE_SECONDS


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The planned number of episodes of a run or set, its start (seconds since the epoch), and whether it has ended."""

    total: int
    began: float
    ended: bool = False


class Library(ABC):
    """An index in memory of the episodes of a directory, a bucket or a cluster.

    Args:
        title: The name of the library for people.
        pause_seconds: Minimum pause between two updates of the index. After a slow update the pause is longer.

    Attributes:
        entries: The episodes by path, as of the last ``refresh``.
        progress: The planned episodes by run and set. The set is empty for episodes without a set.
        notice: A notice for readers if the index is incomplete or the source does not answer, else empty.
    """

    def __init__(self, title: str, *, pause_seconds: float) -> None:
        self.title = title
        self.entries: Mapping[str, EpisodeEntry] = {}
        self.progress: Mapping[tuple[str, str], RunProgress] = {}
        self.notice = ""
        self._pause_seconds = pause_seconds
        self._refreshing = asyncio.Lock()
        self._next = 0.0
        self._unread = 0
        """The number of episodes that are left for the next refresh. It then does not wait for the pause."""

    async def refresh(self) -> None:
        """Update the index, unless the last update was less than the pause ago."""
        async with self._refreshing:
            begun = time.monotonic()
            due = begun >= self._next
            if due or self._unread:
                await self._update(listing=due)
            if due:
                done = time.monotonic()
                self._next = done + max(self._pause_seconds, 4 * (done - begun))

    @abstractmethod
    async def _update(self, *, listing: bool) -> None:
        """Update the index. Without ``listing``, only read episodes that an earlier update found and did not read."""

    async def read(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> bytes | None:
        """At most the first ``limit`` bytes of a file of an attempt, or None if the file or attempt does not exist."""
        if attempt not in entry.attempts or name not in FILES:
            return None
        return await self._read(entry, attempt, name, limit)

    @abstractmethod
    async def _read(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> bytes | None: ...

    @abstractmethod
    async def version(self, entry: EpisodeEntry, attempt: int) -> str:
        """A text that differs after each change of the attempt's files."""


class StoreLibrary(Library):
    """An index of the episodes of a results store, found by listing the store.

    An object is read again if its time or size changes. A refresh lists the store and reads at most 500 results.
    """

    def __init__(self, store: ResultsStore, title: str) -> None:
        super().__init__(title, pause_seconds=_STORE_PAUSE_SECONDS)
        self._store = store
        self._items: dict[str, StoredItem] = {}

    async def _update(self, *, listing: bool) -> None:
        if listing:
            self._items = {item.path: item for item in await self._store.files("", most=_MOST_OBJECTS)}
        await self._read_new()
        self.notice = ""
        if self._unread:
            self.notice = f"{self._unread:,} episodes are still to be read; they appear here."
        elif len(self._items) >= _MOST_OBJECTS:
            self.notice = f"Only the first {_MOST_OBJECTS:,} objects were listed; open a longer prefix."

    async def _read_new(self) -> None:
        attempts: defaultdict[str, set[int]] = defaultdict(set)
        for path in self._items:
            folder, _, name = path.rpartition("/")
            episode, _, number = folder.rpartition("/")
            if episode and name in (RESULT, TRAJECTORY) and number.isdecimal() and len(number) < 10:
                attempts[episode].add(int(number))
        entries: dict[str, EpisodeEntry] = {}
        new: list[tuple[str, tuple[int, ...]]] = []
        for path, numbers in attempts.items():
            ordered = tuple(sorted(numbers))
            known = self.entries.get(path)
            if known is not None:
                entries[path] = known
            if known is None or known.version != self._version(path, ordered[-1]) or known.attempts != ordered:
                new.append((path, ordered))
        gate = asyncio.Semaphore(_READ_AT_ONCE)

        async def read_one(path: str, numbers: tuple[int, ...]) -> None:
            async with gate:
                entries[path] = await self._entry(path, numbers)

        async with asyncio.TaskGroup() as group:
            for path, ordered in new[:_READ_IN_A_REFRESH]:
                group.create_task(read_one(path, ordered))
        self._unread = len(new[_READ_IN_A_REFRESH:])
        self.entries = entries

    async def _entry(self, path: str, attempts: tuple[int, ...]) -> EpisodeEntry:
        folder, version = f"{path}/{attempts[-1]}", self._version(path, attempts[-1])
        stored = self._items.get(f"{folder}/{RESULT}")
        result = decode_result(await self._begin_of(stored.path, RESULT_LIMIT) or b"") if stored is not None else None
        if result is not None and stored is not None:
            return finished_entry(path, attempts, result, changed=stored.changed, version=version)
        trajectory = self._items.get(f"{folder}/{TRAJECTORY}")
        data = b"" if trajectory is None else await self._begin_of(trajectory.path, _TRAJECTORY_BYTES) or b""
        changed = 0.0 if trajectory is None else trajectory.changed
        header, steps = decode_header(data.partition(b"\n")[0]), max(0, data.count(b"\n") - 2)
        return unfinished_entry(path, attempts, header, steps=steps, changed=changed, version=version)

    async def _read(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> bytes | None:
        return await self._begin_of(f"{entry.path}/{attempt}/{name}", limit)

    async def version(self, entry: EpisodeEntry, attempt: int) -> str:
        """The times and sizes of the attempt's objects in the last listing."""
        return self._version(entry.path, attempt)

    def _version(self, path: str, attempt: int) -> str:
        items: Sequence[StoredItem | None] = [
            self._items.get(f"{path}/{attempt}/{name}") for name in (RESULT, TRAJECTORY)
        ]
        return msgspec.json.encode([None if item is None else (item.changed, item.size) for item in items]).decode()

    async def _begin_of(self, path: str, limit: int) -> bytes | None:
        content = await self._store.open(path)
        if content is None:
            return None
        data = bytearray()
        async for chunk in content.chunks:
            data += chunk
            if len(data) >= limit:
                break
        return bytes(data[:limit])


class _Listing(msgspec.Struct, gc=False):
    """The content of a directory: subdirectories, plans, and whether it is the directory of an attempt.

    ``changed`` is the modification time of the directory in nanoseconds. ``listed`` is the time of the listing in
    seconds since the epoch.
    """

    changed: int
    listed: float
    directories: tuple[str, ...]
    plans: tuple[str, ...]
    is_attempt: bool


class _Growth(msgspec.Struct):
    """A growing trajectory: its header, and the number of lines in its first ``size`` bytes."""

    header: TrajectoryHeader
    size: int = 0
    lines: int = 0


class _Tree:
    """The directories below ``root``. A directory is listed again if its time has changed. Links are not followed.

    Attributes:
        visited: The number of directories that the last iteration of ``folders`` visited.
        plans: The plans that it found: directory, path relative to the root, and file name.
    """

    def __init__(self, root: str, *, most: float = math.inf) -> None:
        self._root = root
        self._most = most
        self._listings: dict[str, _Listing] = {}
        self.visited = 0
        self.plans: list[tuple[str, str, str]] = []

    def folders(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Every directory with attempts, its path relative to the root, and the numbers of the attempts."""
        self.visited = 0
        self.plans = []
        yield from self._below(self._root, "", 0)

    def _below(self, directory: str, path: str, depth: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        self.visited += 1
        listing = self._list(directory) if self.visited <= self._most and depth < _DEEPEST else None
        if listing is None:
            return
        self.plans += [(directory, path, name) for name in listing.plans[:_MOST_PLANS]]
        attempts = [
            name for name in listing.directories if name.isdecimal() and self._is_attempt(f"{directory}/{name}")
        ]
        if attempts:
            yield directory, path or self._root.rpartition(os.sep)[2], tuple(sorted(map(int, attempts)))
        for name in listing.directories:
            if name not in attempts:
                yield from self._below(f"{directory}/{name}", f"{path}/{name}" if path else name, depth + 1)

    def _is_attempt(self, directory: str) -> bool:
        known = self._listings.get(directory)
        # Not listed again, because the directory of an attempt stays one.
        listing = known if known is not None and known.is_attempt else self._list(directory)
        return listing is not None and listing.is_attempt

    def _list(self, directory: str) -> _Listing | None:
        known = self._listings.get(directory)
        names, plans, is_attempt = [], [], False
        try:
            changed = os.lstat(directory).st_mtime_ns
            if known is not None and known.changed == changed and known.listed - changed / 1e9 > _RACY_SECONDS:
                return known
            listed = time.time()
            with os.scandir(directory) as found:
                for item in found:
                    is_attempt = is_attempt or item.name in (TRAJECTORY, RESULT)
                    if is_plan(item.name):
                        plans.append(item.name)
                    if not item.name.startswith(".") and item.is_dir(follow_symlinks=False):
                        names.append(item.name)
        except OSError:
            return None
        listing = self._listings[directory] = _Listing(changed, listed, tuple(sorted(names)), tuple(plans), is_attempt)
        return listing


def check_directory(directory: Path) -> None:
    """Raise ManifestError if ``directory`` does not exist."""
    if not directory.is_dir():
        raise ManifestError(f"{directory}: the directory does not exist; give a results directory of dgym run")


def find_episodes(directory: Path) -> Iterator[list[Attempt]]:
    """The attempts at each episode, oldest first. There is at least one.

    ``directory`` may be any level of a results directory, and also the directory of an attempt.
    """
    if is_attempt(directory):
        yield EpisodeFolder(directory.resolve().parent).attempts()
        return
    for place, _, numbers in _Tree(str(directory)).folders():
        yield [Attempt(Path(place) / str(number)) for number in numbers]


def is_attempt(directory: Path) -> bool:
    """Whether ``directory`` is the directory of an attempt."""
    return any((directory / name).is_file() for name in (TRAJECTORY, RESULT))


class DirectoryLibrary(Library):
    """An index of the episodes below ``root``.

    ``root`` is a results directory, a part of one, or a directory that contains several. Links are not followed. An
    update reads only new files: it reads each result once, and lists a directory again only if its time has changed.
    """

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        super().__init__(str(root), pause_seconds=_PAUSE_SECONDS)
        self._tree = _Tree(self.title, most=_MOST_DIRECTORIES)
        self._growths: dict[str, _Growth] = {}
        self._places: dict[str, str] = {}
        self._plans: dict[str, tuple[int, Planned]] = {}

    async def _update(self, *, listing: bool) -> None:  # noqa: ARG002 - everything is read at once
        await asyncio.to_thread(self._walk)

    async def _read(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> bytes | None:
        return await asyncio.to_thread(_read, f"{self._places[entry.path]}/{attempt}/{name}", limit)

    async def version(self, entry: EpisodeEntry, attempt: int) -> str:
        """The times and sizes of the attempt's files."""
        return await asyncio.to_thread(_version, f"{self._places[entry.path]}/{attempt}")

    def _walk(self) -> None:
        folders = list(self._tree.folders())
        groups = self._read_plans()
        found: dict[str, EpisodeEntry] = {}
        for directory, path, attempts in folders:
            self._places[path] = directory
            entry, group = self._entry(directory, path, attempts), groups.get(path, "")
            found[path] = entry if entry.group == group else msgspec.structs.replace(entry, group=group)
        self.entries = found
        self.notice = ""
        if self._tree.visited > _MOST_DIRECTORIES:
            self.notice = (
                f"Only the first {_MOST_DIRECTORIES:,} directories were searched; open a part of {self.title}."
            )

    def _read_plans(self) -> dict[str, str]:
        """Read the plans of all runs into ``progress``, and return the EpisodeSet of each planned path.

        If several plans of a run contain the same set, their episodes are added up.
        """
        planned: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        began: dict[tuple[str, str], float] = {}
        for directory, run, name in self._tree.plans:
            plan = self._plan(f"{directory}/{name}")
            if plan is None:
                continue
            for group, paths in plan.sets.items():
                planned[run, group].update(f"{run}/{path}" if run else path for path in paths)
                began[run, group] = max(began.get((run, group), 0.0), plan.began)
        self.progress = {key: RunProgress(total=len(paths), began=began[key]) for key, paths in planned.items()}
        return {path: group for (_, group), paths in planned.items() for path in paths}

    def _plan(self, path: str) -> Planned | None:
        try:
            changed = os.lstat(path).st_mtime_ns
        except OSError:
            return None
        known = self._plans.get(path)
        if known is None or known[0] != changed:
            plan = read_plan(_read(path, _PLAN_BYTES) or b"")
            if plan is None:
                return None
            known = self._plans[path] = (changed, plan)
        return known[1]

    def _entry(self, directory: str, path: str, attempts: tuple[int, ...]) -> EpisodeEntry:
        """The entry of an episode. The known entry is reused while it is up to date."""
        known = self.entries.get(path)
        if known is not None and known.attempts == attempts and known.finished:
            return known
        newest = f"{directory}/{attempts[-1]}"
        version = _version(newest)
        if known is not None and known.version == version:
            state = known.state if is_live(known.changed) else NO_RESULT
            return known if state == known.state else msgspec.structs.replace(known, state=state)
        result = Attempt(Path(newest)).load()
        if result is not None:
            self._growths.pop(newest, None)
            changed = _changed(f"{newest}/{RESULT}")
            return finished_entry(path, attempts, result, changed=changed, version=version)
        growth = self._growth(newest)
        return unfinished_entry(
            path,
            attempts,
            growth.header,
            steps=max(0, growth.lines - 2),
            changed=_changed(f"{newest}/{TRAJECTORY}"),
            version=version,
        )

    def _growth(self, attempt: str) -> _Growth:
        """Count the lines that were added to the trajectory since the last call."""
        path = f"{attempt}/{TRAJECTORY}"
        growth = self._growths.get(attempt)
        try:
            with open_regular(Path(path), limit=TRAJECTORY_LIMIT) as file:
                if growth is None or os.fstat(file.fileno()).st_size < growth.size:
                    line = file.readline(_HEADER_BYTES)
                    growth = _Growth(decode_header(line), len(line), 1)
                    self._growths[attempt] = growth
                file.seek(growth.size)
                while chunk := file.read(_CHUNK_BYTES):
                    growth.size += len(chunk)
                    growth.lines += chunk.count(b"\n")
        except OSError:
            return growth or _Growth(TrajectoryHeader())
        return growth


def _read(path: str, limit: int) -> bytes | None:
    try:
        with open_regular(Path(path)) as file:
            return file.read(limit)
    except OSError:
        return None


def _version(attempt: str) -> str:
    parts = []
    for name in (RESULT, TRAJECTORY):
        try:
            found = os.lstat(f"{attempt}/{name}")
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}")
        except OSError:
            parts.append("0")
    return "-".join(parts)


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
