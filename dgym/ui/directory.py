"""The episodes of a results directory, found by walking it and kept current by the times of its directories."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.results import (
    FILES,
    RESULT,
    TRAJECTORY,
    TRAJECTORY_LIMIT,
    Planned,
    StoredResult,
    TrajectoryHeader,
    decode_result,
    is_plan,
    read_plan,
)
from dgym.ui.library import (
    NO_RESULT,
    Entry,
    Progress,
    decode_header,
    finished_entry,
    is_live,
    unfinished_entry,
)
from dgym.untrusted import open_regular

_PAUSE_SECONDS = 1.0
_RACY_SECONDS = 2.0
"""A directory that changed so shortly before it was listed may have changed again within the same tick of its clock."""
_DEEPEST = 12
_MOST_PLANS = 200
_PLAN_BYTES = 64 * 1024**2
_MOST_DIRECTORIES = 400_000
_RESULT_BYTES = 32 * 1024**2
_HEADER_BYTES = 1024**2
_CHUNK_BYTES = 1024**2


class _Listing(msgspec.Struct, gc=False):
    """The directories and plans in a directory, and whether it is an attempt's, as of its time."""

    changed: int
    listed: float
    directories: tuple[str, ...]
    plans: tuple[str, ...]
    is_attempt: bool


class _Growth(msgspec.Struct):
    """A trajectory that grows: its header, and the lines in its first ``size`` bytes."""

    header: TrajectoryHeader
    size: int = 0
    lines: int = 0


class DirectoryLibrary:
    """The episodes below ``root``: a results directory, one that holds several, or a part of one.

    Links are not followed. A refresh reads what is new: a result is read once, and a directory is listed again when its
    time has changed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._listings: dict[str, _Listing] = {}
        self._growths: dict[str, _Growth] = {}
        self._places: dict[str, str] = {}
        self._entries: dict[str, Entry] = {}
        self._progress: dict[tuple[str, str], Progress] = {}
        self._groups: dict[str, str] = {}
        self._plans: dict[str, tuple[int, Planned]] = {}
        self._refreshing = asyncio.Lock()
        self._next = 0.0
        self._visited = 0

    @property
    def title(self) -> str:
        """The directory."""
        return str(self._root)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The episodes by their path from the root."""
        return self._entries

    @property
    def progress(self) -> Mapping[tuple[str, str], Progress]:
        """What the plans of ``dgym run`` say."""
        return self._progress

    @property
    def notice(self) -> str:
        """Whether the walk was cut short."""
        if self._visited > _MOST_DIRECTORIES:
            return f"Only the first {_MOST_DIRECTORIES:,} directories were searched; open a part of {self._root}."
        return ""

    async def refresh(self) -> None:
        """Walk the directory; the pause between two walks grows with their duration."""
        async with self._refreshing:
            begun = time.monotonic()
            if begun >= self._next:
                await asyncio.to_thread(self._walk)
                done = time.monotonic()
                self._next = done + max(_PAUSE_SECONDS, 4 * (done - begun))

    async def read(self, entry: Entry, attempt: int, name: str, limit: int) -> bytes | None:
        """The beginning of a file of an attempt in the index."""
        if attempt not in entry.attempts or name not in FILES:
            return None
        return await asyncio.to_thread(_read, f"{self._places[entry.path]}/{attempt}/{name}", limit)

    async def version(self, entry: Entry, attempt: int) -> str:
        """Times and sizes of the attempt's files."""
        return await asyncio.to_thread(_version, f"{self._places[entry.path]}/{attempt}")

    def _walk(self) -> None:
        self._visited = 0
        self._progress, self._groups = {}, {}
        found: dict[str, Entry] = {}
        for directory, path, attempts in self._folders(str(self._root), "", 0):
            self._places[path] = directory
            entry, group = self._entry(directory, path, attempts), self._groups.get(path, "")
            found[path] = entry if entry.group == group else msgspec.structs.replace(entry, group=group)
        self._entries = found

    def _read_plans(self, directory: str, run: str, names: Sequence[str]) -> None:
        """Read the plans in the root of a run; of a set in several of them the episodes of all count."""
        planned: dict[str, set[str]] = {}
        began: dict[str, float] = {}
        for name in names[:_MOST_PLANS]:
            plan = self._plan(f"{directory}/{name}")
            for group, paths in plan.sets.items() if plan is not None else ():
                planned.setdefault(group, set()).update(f"{run}/{path}" if run else path for path in paths)
                began[group] = max(began.get(group, 0.0), plan.began if plan is not None else 0.0)
        for group, paths_ in planned.items():
            self._progress[run, group] = Progress(total=len(paths_), began=began[group])
            self._groups.update(dict.fromkeys(paths_, group))

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

    def _folders(self, directory: str, path: str, depth: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Every directory with attempts in it, its path from the root, and their numbers."""
        self._visited += 1
        listing = self._list(directory) if self._visited <= _MOST_DIRECTORIES and depth < _DEEPEST else None
        if listing is None:
            return
        self._read_plans(directory, path, listing.plans)
        attempts = [
            name for name in listing.directories if name.isdecimal() and self._is_attempt(f"{directory}/{name}")
        ]
        if attempts:
            yield directory, path or self._root.name, tuple(sorted(map(int, attempts)))
        for name in listing.directories:
            if name not in attempts:
                yield from self._folders(f"{directory}/{name}", f"{path}/{name}" if path else name, depth + 1)

    def _is_attempt(self, directory: str) -> bool:
        known = self._listings.get(directory)
        # Attempts stay what they are.
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

    def _entry(self, directory: str, path: str, attempts: tuple[int, ...]) -> Entry:
        """The entry of an episode; the known one as long as it holds."""
        known = self._entries.get(path)
        if known is not None and known.attempts == attempts and known.finished:
            return known
        newest = f"{directory}/{attempts[-1]}"
        version = _version(newest)
        if known is not None and known.version == version:
            state = known.state if is_live(known.changed) else NO_RESULT
            return known if state == known.state else msgspec.structs.replace(known, state=state)
        result = _result(newest)
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
        """Count the lines that were added to the trajectory since the last time."""
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


def _result(attempt: str) -> StoredResult | None:
    data = _read(f"{attempt}/{RESULT}", _RESULT_BYTES)
    return None if data is None else decode_result(data)


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
