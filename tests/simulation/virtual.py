"""An event loop whose time jumps to the next timer, so that an hour of a cluster takes milliseconds.

Without sockets and threads a run depends on its seed alone. The loop fails when nothing can ever happen again.
"""

import asyncio
from datetime import UTC, datetime, timedelta

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(Exception):
    """Tasks wait, and no timer will wake them."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop with virtual time, in seconds from 0."""

    def __init__(self):
        super().__init__()
        self._now = 0.0
        self._selector = self
        self._clock_resolution = 1e-6

    def time(self):
        return self._now

    def select(self, timeout):
        """Take the place of a selector: nothing comes from outside, so waiting is a jump."""
        if timeout is None:
            raise Stuck("all tasks wait for each other")
        self._now += timeout
        return []

    def _process_events(self, events):
        assert not events

    def _write_to_self(self):
        """Nothing wakes this loop from another thread."""


class VirtualClock:
    """The ``Clock`` of the operator in a ``VirtualLoop``."""

    def monotonic(self):
        return asyncio.get_running_loop().time()

    def now(self):
        return _BEGIN + timedelta(seconds=self.monotonic())

    async def sleep(self, seconds):
        if seconds > 0:
            await asyncio.sleep(seconds)

    def call_later(self, seconds, callback):
        return asyncio.get_running_loop().call_later(seconds, callback)


class ProcessClock(VirtualClock):
    """The clock of one process; ``thaw`` waits while that is stopped."""

    def __init__(self, thaw):
        self._thaw = thaw

    async def sleep(self, seconds):
        await super().sleep(seconds)
        await self._thaw()


def run(main):
    """Run the coroutine in virtual time; returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
