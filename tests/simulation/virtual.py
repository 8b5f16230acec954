"""An event loop whose time jumps to the next timer, so that an hour of a cluster takes milliseconds.

Without sockets and threads a run depends only on its seed. The loop raises ``Stuck`` when no task can continue.
"""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(Exception):
    """Tasks wait, and no timer can wake them."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop with virtual time, in seconds from 0."""

    def __init__(self):
        super().__init__()
        self._now = 0.0
        self._timers = []
        self._numbers = count()

    def time(self):
        return self._now

    def call_at(self, when, callback, *args, context=None):
        # asyncio compares handles in Python, which took a tenth of the time of a run.
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle):
        """Do nothing. A cancelled timer stays in the queue until its time."""

    def _run_once(self):
        ready, timers = self._ready, self._timers
        while not ready:
            if not timers:
                raise Stuck("all tasks wait for each other")
            when, _, timer = heappop(timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _process_events(self, events):
        assert not events

    def _write_to_self(self):
        """Do nothing. Other threads do not wake this loop."""


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
    """The clock of one process. ``thaw`` waits while the process is stopped."""

    def __init__(self, thaw):
        self._thaw = thaw

    async def sleep(self, seconds):
        await super().sleep(seconds)
        await self._thaw()


def run(main):
    """Run the coroutine in virtual time and return its result."""
    # A run is short and fits into memory. The garbage collector would scan it dozens of times.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        gc.enable()
