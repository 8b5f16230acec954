"""The limits of an episode: steps, rewrites and the clock of its deadline."""

import asyncio
import contextlib
import time

import msgspec

from dgym.wire import EndReason


class EpisodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one episode. ``deadline_seconds`` counts from the first reset; None means unbounded.

    The rewrite that reaches ``max_rewrites`` ends the episode. With 0 the tool ``rewrite`` is not there, and the first
    change by another tool that counts as a rewrite ends the episode.
    """

    max_steps: int = 50
    max_rewrites: int | None = None
    deadline_seconds: float | None = 3600.0

    def reached(self, *, steps: int, rewrites: int) -> EndReason | None:
        """The limit that ends the episode after ``steps`` steps with ``rewrites`` successful rewrites, if any."""
        if self.max_rewrites is not None and rewrites >= max(self.max_rewrites, 1):
            return EndReason.REWRITE_LIMIT_REACHED
        if steps >= self.max_steps:
            return EndReason.STEP_LIMIT_REACHED
        return None


class Deadline:
    """Runs from the first reset on, and not while it is paused because no agent serves the episode.

    Args:
        seconds: How long it runs in total; None: without end.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._before = 0.0
        self._since: float | None = None
        self._changed = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether the clock runs."""
        return self._since is not None

    @property
    def elapsed(self) -> float:
        """Seconds for which the clock has run."""
        return self._before + (time.monotonic() - self._since if self._since is not None else 0.0)

    @property
    def remaining(self) -> float | None:
        """Seconds that are left; None: without end."""
        return None if self._seconds is None else self._seconds - self.elapsed

    def run(self) -> None:
        """Start the clock, or go on. Idempotent."""
        if self._since is None:
            self._since = time.monotonic()
            self._changed.set()

    def pause(self) -> None:
        """Stop the clock until ``run``. Idempotent."""
        self._before, self._since = self.elapsed, None
        self._changed.set()

    async def passed(self) -> None:
        """Wait until nothing is left."""
        while (left := self.remaining) is None or left > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if self._since is not None else None):
                    await self._changed.wait()
