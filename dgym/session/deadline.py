"""The clock of an episode's deadline."""

import asyncio
import contextlib
import time


class Deadline:
    """Runs from the first reset on, and not while it is paused because no agent serves the episode.

    Args:
        seconds: How long it runs in total; None: without end.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._since: float | None = None
        self._changed = asyncio.Event()

    @property
    def remaining(self) -> float | None:
        """Seconds that are left; None: without end."""
        if self._left is None or self._since is None:
            return self._left
        return self._left - (time.monotonic() - self._since)

    def run(self) -> None:
        """Start the clock, or go on. Idempotent."""
        if self._since is None:
            self._since = time.monotonic()
            self._changed.set()

    def pause(self) -> None:
        """Stop the clock until ``run``. Idempotent."""
        self._left, self._since = self.remaining, None
        self._changed.set()

    async def passed(self) -> None:
        """Wait until nothing is left."""
        while (left := self.remaining) is None or left > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if self._since is not None else None):
                    await self._changed.wait()
