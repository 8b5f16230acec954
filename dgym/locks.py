"""File locks between processes. The kernel releases a lock when its holder exits or is killed.

Therefore a dead process never blocks the work under ``hold_lock``, and a resource whose lock is free has no live owner.
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
    """Lock the file ``path``, which is created if it is missing. Blocks until the lock is free.

    Returns:
        A file descriptor. Closing it releases the lock.
    """
    descriptor = _open(path, os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def try_acquire(path: Path, *, create: bool = True) -> int | None:
    """Lock the file ``path`` without waiting.

    Returns:
        A file descriptor, whose closing releases the lock; None if another holder has the lock.

    Raises:
        FileNotFoundError: The file does not exist, and ``create`` is False.
        OSError: ``path`` cannot be opened. Symbolic links are not followed.
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
async def hold_lock(
    path: Path, *, waiting: Callable[[], None], timeout_seconds: float, error: type[InfrastructureError]
) -> AsyncIterator[None]:
    """Hold the lock of the file ``path``. A caller that waited must check whether the work is already done.

    Args:
        path: The lock file. It is created with its directory.
        waiting: Called once if another process holds the lock.
        timeout_seconds: Longest time to wait.
        error: Class of the exception that is raised after this time.
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
    """Run ``work`` in a thread. A cancelled caller waits until it ends, so that it does not run without the lock."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
