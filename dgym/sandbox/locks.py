"""Locks that hold across processes: work that is done once on a machine, and containers that have a live owner.

The kernel frees a lock when its holder ends, however it ends. Expensive work under ``only_one`` is therefore never
blocked by a dead process, and a container whose lock is free was left behind by one. Locks and containers carry the
same name.
"""

import asyncio
import fcntl
import hashlib
import os
import platform
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from dgym.errors import InfrastructureError
from dgym.sandbox.cache import cache_directory

_LOOK_SECONDS = 0.1


@asynccontextmanager
async def only_one(
    path: Path, *, waiting: Callable[[], None], timeout_seconds: float, error: type[InfrastructureError]
) -> AsyncIterator[None]:
    """Hold the lock file ``path``; a process that waited for it finds the work done.

    ``waiting`` is called once when another process holds it; ``error`` is raised when it held it for that long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout_seconds
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while not _taken(lock):
            if time.monotonic() > end:
                raise error(f"another process has held {path} for {timeout_seconds:g} s")
            if not told:
                waiting()
            told = True
            await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


async def whole_in_thread(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread; a cancelled caller waits for its end, so that no thread outlives its lock."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PREFIX = "dgym-"
_SUFFIX = ".lock"
_YOUNG_SECONDS = 60.0


class Ownership:
    """The name of one container, and the lock that says that its owner lives."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(8)}"
        self._path = directory() / f"{self.name}{_SUFFIX}"
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def release(self) -> None:
        """Say that the container is gone. Idempotent."""
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def directory() -> Path:
    """Where the locks are."""
    path = cache_directory() / "containers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def scope() -> str:
    """Names the containers whose locks are here: an engine may serve other users and machines too."""
    described = f"{platform.node()}\0{os.getuid()}\0{directory().resolve()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_abandoned(name: str) -> bool:
    """True when the owner of that container of this scope is gone."""
    try:
        lock = os.open(directory() / f"{name}{_SUFFIX}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return _taken(lock)
    except OSError:
        return False
    finally:
        os.close(lock)


def forget(name: str) -> None:
    """Remove the lock of an abandoned container that is gone."""
    (directory() / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def forget_unused(existing: set[str]) -> None:
    """Remove the locks of processes that died before or after their container existed."""
    young = time.time() - _YOUNG_SECONDS
    for path in directory().glob(f"{PREFIX}*{_SUFFIX}"):
        name = path.name.removesuffix(_SUFFIX)
        with suppress(OSError):
            # Between its making and its locking a lock looks abandoned.
            if name not in existing and path.lstat().st_mtime < young and is_abandoned(name):
                path.unlink()
