"""Directories that this process has packed and that have not changed since: a later reset need not read their files.

A directory counts as unchanged while every path that is delivered has the same type, mode, identity, size and times.
The change time decides: programs cannot set it back. A file that changed shortly before could change again within one
tick of its file system's clock, so such a directory is not remembered.
"""

import hashlib
import os
import time
from pathlib import Path

import msgspec

from dgym.workspace.sources.tree import file_digest, walk_repository

_SETTLED_NS = 2 * 10**9
"""The coarsest tick of a file system's clock."""

_MOST = 64


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a directory by its metadata; ``settled``: an equal one later means equal contents."""

    sha256: str
    settled: bool

    @classmethod
    def take(cls, root: Path) -> "Fingerprint":
        """That of ``root``; one that has no files, or does not exist, is never settled."""
        now, newest, state = time.time_ns(), 0, hashlib.sha256()
        try:
            for path, entry in walk_repository(root):
                status = entry.stat(follow_symlinks=False)
                state.update(os.fsencode(path) + b"\0" + str(status.st_mode).encode())
                # A directory's times change with bytecode and caches, which are not delivered.
                if not entry.is_dir(follow_symlinks=False):
                    newest = max(newest, status.st_ctime_ns)
                    times = (status.st_mtime_ns, status.st_ctime_ns)
                    state.update(repr((status.st_dev, status.st_ino, status.st_size, *times)).encode())
                state.update(b"\0\0")
        except OSError:
            return cls(sha256="", settled=False)
        return cls(sha256=state.hexdigest(), settled=0 < newest < now - _SETTLED_NS)


class PackedDirectories:
    """The tars of directories that were packed, by directory and cache; those remembered for longest go first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, Path], tuple[Fingerprint, Path]] = {}

    def remember(self, root: Path, cache: Path, before: Fingerprint, packed: Path) -> None:
        """Remember the tar of ``root``, of which ``before`` was taken before it was packed."""
        if not before.settled:
            return
        while len(self._kept) >= _MOST:
            self._kept.pop(next(iter(self._kept), (root, cache)), None)
        self._kept[root, cache] = (before, packed)

    def find(self, root: Path, cache: Path, now: Fingerprint) -> Path | None:
        """The tar of ``root``; None where the directory has changed, or the tar is gone or damaged.

        The tar is read: a program without isolation can write the cache, and verdicts are about what the tar holds.
        """
        before, packed = self._kept.get((root, cache), (None, None))
        if packed is None or not now.settled or before != now:
            return None
        try:
            os.utime(packed)  # as new as one packed now, which is kept for a week
            return packed if file_digest(packed) == packed.stem else None
        except FileNotFoundError:
            return None
