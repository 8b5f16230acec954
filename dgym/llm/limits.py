"""Requests and tokens per minute, and how many requests may run at once: for all episodes that use a model.

A limit of N a minute lets a tenth of N pass at once and spreads the rest, so that no minute, wherever it begins, has
more than N. Limits hold for all processes of the user on this machine, because a provider counts
their requests together. The state is a small file for each model. A place is a file lock, so a process that dies
releases its place.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.locks import acquire, try_acquire

_MINUTE = 60.0
_POLL_SECONDS = 0.05
_CLOCK_SLACK_SECONDS = 60.0


class Rate:
    """A limit per minute, as arithmetic on one number: the time until which admitted requests have used the rate."""

    def __init__(self, per_minute: int) -> None:
        burst = max(1, per_minute // 10)
        self._each = _MINUTE / (per_minute - burst + 1)
        self._ahead = self._each * (burst - 1)

    def reserve(self, paid_until: float, now: float, cost: int) -> tuple[float, float]:
        """The new state, and the seconds to wait before a request of ``cost`` may begin."""
        paid_until = max(paid_until, now)
        wait = max(0.0, paid_until - self._ahead - now)
        return paid_until + cost * self._each, wait

    def correct(self, paid_until: float, difference: int) -> float:
        """The state after a request cost ``difference`` more than was reserved."""
        return paid_until + difference * self._each


class _State(msgspec.Struct):
    """State shared by processes. ``offset`` identifies the boot, at which the monotonic clock restarts."""

    requests: float = 0.0
    tokens: float = 0.0
    offset: float = 0.0


class Limits:
    """The limits of one model."""

    def __init__(
        self,
        identity: str,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_concurrency: int | None = None,
        directory: Path | None = None,
    ) -> None:
        self._requests = Rate(requests_per_minute) if requests_per_minute else None
        self._tokens = Rate(tokens_per_minute) if tokens_per_minute else None
        self._places = max_concurrency
        # The episodes of this process queue here, in order, so that few of them poll the lock files.
        self._queue = asyncio.Semaphore(max_concurrency or 1)
        self._directory: Path | None = None
        if self._requests or self._tokens or self._places:
            digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
            self._directory = (directory or limits_directory()) / digest
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one of the places for in-flight requests; waits until one is free."""
        if self._places is None or self._directory is None:
            yield
            return
        async with self._queue:
            descriptor = await self._acquire_place(self._directory, self._places)
            try:
                yield
            finally:
                os.close(descriptor)

    async def admit(self, tokens: int, *, before_wait: Callable[[float], None] = lambda _: None) -> None:
        """Wait until a request of about that many tokens may begin; ``before_wait`` gets the seconds."""
        if self._directory is None or not (self._requests or self._tokens):
            return
        now = time.monotonic()
        with self._shared(self._directory) as state:
            wait = 0.0
            if self._requests:
                state.requests, wait = self._requests.reserve(state.requests, now, 1)
            if self._tokens:
                state.tokens, more = self._tokens.reserve(state.tokens, now, tokens)
                wait = max(wait, more)
        if wait > 0:
            before_wait(wait)
            await asyncio.sleep(wait)

    def correct(self, reserved: int, used: int) -> None:
        """Replace the ``reserved`` tokens of an admitted request by those it ``used``."""
        if self._directory is not None and self._tokens and reserved != used:
            with self._shared(self._directory) as state:
                state.tokens = self._tokens.correct(state.tokens, used - reserved)

    async def _acquire_place(self, directory: Path, places: int) -> int:
        while True:
            for number in random.sample(range(places), places):
                descriptor = try_acquire(directory / f"place-{number}")
                if descriptor is not None:
                    return descriptor
            await asyncio.sleep(random.uniform(0.5, 1.5) * _POLL_SECONDS)  # noqa: S311 - no secret

    @contextlib.contextmanager
    def _shared(self, directory: Path) -> Iterator[_State]:
        """The state, under its lock; written back at the end."""
        descriptor = acquire(directory / "state")
        try:
            state = _decode(os.pread(descriptor, 4096, 0))
            yield state
            data = msgspec.json.encode(state)
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)


def _decode(data: bytes) -> _State:
    offset = time.time() - time.monotonic()
    try:
        state = msgspec.json.decode(data, type=_State)
    except DECODE_ERRORS:
        return _State(offset=offset)
    return state if abs(state.offset - offset) < _CLOCK_SLACK_SECONDS else _State(offset=offset)


def limits_directory() -> Path:
    """The directory shared by this user's processes; most systems clear it at boot."""
    root = Path(tempfile.gettempdir()) / f"dgym-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    # Another user's directory of that name in a public place could be read, or could be a symbolic link.
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="dgym-"))
    return root / "limits"
