"""Packed repositories of a process that serves many episodes: each fetched once at a time, within a limit of bytes."""

import asyncio
import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from dgym.api.task import SourceSpec
from dgym.errors import SourceFailed
from dgym.workspace.source_hosts import SourceHosts
from dgym.workspace.source_tree import SIZE_LIMIT
from dgym.workspace.sources import pack_source

_TIMEOUT_SECONDS = 1800.0
_AT_ONCE = 2
_KEPT_ENTRIES = 256
_TRIES = 3


class _Entry:
    """What is remembered of a source: who packs it now, and where its tar was last."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.path: Path | None = None


class SourceCache:
    """Gives tars of repositories. The directory is its own: what an earlier process was packing there is removed.

    Args:
        directory: Where they are kept; made if missing.
        limit_bytes: What they may take together; those unused for longest go first, those in use never. Packing takes
            space of its own beside them.
        hosts: Where archives and git repositories may come from.
        timeout_seconds: For obtaining one.
    """

    def __init__(
        self, directory: Path, *, limit_bytes: int, hosts: SourceHosts, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        self._packing = asyncio.Semaphore(_AT_ONCE)
        self._entries: dict[bytes, _Entry] = {}
        self._used: Counter[Path] = Counter()
        self._guard = threading.Lock()
        for left in (*directory.glob(".packing-*"), *directory.glob("*/.packing-*")):
            shutil.rmtree(left, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def packed(self, source: SourceSpec) -> AsyncIterator[Path]:
        """The tar of ``source``, which stays there inside of the context.

        Raises:
            SourceFailed: It could not be obtained.
        """
        if source.local_path is not None:
            raise SourceFailed("source.localPath: a directory of one machine is for local runs")
        entry = self._entry(source)
        async with entry.lock, self._packing:
            if entry.path is None or not entry.path.exists():
                await asyncio.to_thread(self._shrink, self._limit_bytes - min(SIZE_LIMIT, self._limit_bytes // 2))
            path = entry.path = await self._pack(source)
        try:
            await asyncio.to_thread(self._shrink, self._limit_bytes)
            yield path
        finally:
            with self._guard:
                self._used[path] -= 1
                self._used += Counter()

    def _entry(self, source: SourceSpec) -> _Entry:
        """One for each source: the second who wants it finds what the first has fetched."""
        if len(self._entries) > _KEPT_ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.lock.locked()}
        return self._entries.setdefault(msgspec.json.encode(source), _Entry())

    async def _pack(self, source: SourceSpec) -> Path:
        """The tar, counted as used."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                for _ in range(_TRIES):
                    path = await pack_source(source, base=self._directory, cache=self._directory, hosts=self._hosts)
                    if self._claim(path):
                        return path
        except TimeoutError:
            raise SourceFailed(f"source: it could not be obtained within {self._timeout_seconds:.0f} s") from None
        raise SourceFailed("source: other sources displace it from the cache again and again")

    def _claim(self, path: Path) -> bool:
        """Keep a tar from being removed; False when it is gone already."""
        with self._guard:
            try:
                os.utime(path)
            except FileNotFoundError:
                return False
            self._used[path] += 1
            return True

    def _shrink(self, limit: int) -> None:
        kept = sorted(self._tars(), key=lambda item: item[1].st_mtime)
        total = sum(status.st_size for _, status in kept)
        for path, status in kept:
            if total <= limit:
                return
            with self._guard:
                if not self._used[path]:
                    path.unlink(missing_ok=True)
                    total -= status.st_size

    def _tars(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.glob("*/*.tar"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()
