"""A lock that holds across processes, so that what is costly to make is made once on a machine."""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dgym.errors import InfrastructureError

_LOOK_SECONDS = 0.1


@asynccontextmanager
async def only_one(
    path: Path, *, waiting: Callable[[], None], timeout_seconds: float, error: type[InfrastructureError]
) -> AsyncIterator[None]:
    """Hold the lock file ``path``; whoever waited for it finds the work done. The system frees it when we die.

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
