"""File locks across processes. The kernel releases a lock when its holder ends, however it ends.

Expensive work under ``only_one`` is therefore never blocked by a dead process, and a resource whose lock is free has
no live owner.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dgym.errors import InfrastructureError

_POLL_SECONDS = 0.1


def acquire(path: Path) -> int:
    """Lock the file ``path``, made where it is missing; blocks until it is free.

    Returns a descriptor; closing it releases the lock.
    """
    descriptor = _open(path, os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def try_acquire(path: Path, *, create: bool = True) -> int | None:
    """Lock the file ``path`` without waiting: returns a descriptor, or None while another holder has the lock.

    Raises:
        FileNotFoundError: There is no such file, and ``create`` is False.
        OSError: ``path`` cannot be opened; a symbolic link is not followed.
    """
    descriptor = _open(path, os.O_CREAT if create else 0)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)


@asynccontextmanager
async def only_one(
    path: Path, *, waiting: Callable[[], None], timeout_seconds: float, error: type[InfrastructureError]
) -> AsyncIterator[None]:
    """Hold the lock file ``path``; a process that waited for it finds the work done.

    ``waiting`` is called once when another process holds it; ``error`` is raised after ``timeout_seconds`` of waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout_seconds
    waited = False
    while (lock := try_acquire(path)) is None:
        if time.monotonic() > end:
            raise error(f"another process has held {path} for {timeout_seconds:g} s")
        if not waited:
            waiting()
        waited = True
        await asyncio.sleep(_POLL_SECONDS)
    try:
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
