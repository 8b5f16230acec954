"""Packed repositories of a process that serves many episodes: each fetched once at a time, within a limit of bytes."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from dgym.api.task import SourceSpec
from dgym.errors import SourceFailed
from dgym.workspace.source_hosts import SourceHosts
from dgym.workspace.sources import pack_source

_TIMEOUT_SECONDS = 1800.0
_AT_ONCE = 4
_KEPT_LOCKS = 256


class SourceCache:
    """Gives tars of repositories.

    Args:
        directory: Where they are kept; made if missing.
        limit_bytes: What they may take together; those unused for longest go first, those in use never.
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
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._used: Counter[Path] = Counter()

    @contextlib.asynccontextmanager
    async def packed(self, source: SourceSpec) -> AsyncIterator[Path]:
        """The tar of ``source``, which stays there inside of the context.

        Raises:
            SourceFailed: It could not be obtained.
        """
        if source.local_path is not None:
            raise SourceFailed("source.localPath: a directory of one machine is for local runs")
        async with self._lock(source), self._packing:
            path = await self._pack(source)
            self._used[path] += 1
        try:
            await asyncio.to_thread(self._shrink)
            yield path
        finally:
            self._used[path] -= 1
            self._used += Counter()

    def _lock(self, source: SourceSpec) -> asyncio.Lock:
        """One for each source: the second who wants it finds what the first has fetched."""
        if len(self._locks) > _KEPT_LOCKS:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(msgspec.json.encode(source), asyncio.Lock())

    async def _pack(self, source: SourceSpec) -> Path:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                path = await pack_source(source, base=self._directory, cache=self._directory, hosts=self._hosts)
        except TimeoutError:
            raise SourceFailed(f"source: it could not be obtained within {self._timeout_seconds:.0f} s") from None
        await asyncio.to_thread(os.utime, path)
        return path

    def _shrink(self) -> None:
        kept = sorted(self._tars(), key=lambda item: item[1].st_mtime)
        total = sum(status.st_size for _, status in kept)
        for path, status in kept:
            if total <= self._limit_bytes:
                return
            if not self._used[path]:
                path.unlink(missing_ok=True)
                total -= status.st_size

    def _tars(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.glob("*/*.tar"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()
