"""Fake clocks for code that gets its clock as a parameter."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_SETTLE_TURNS = 20


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock that stands still until ``advance``. Sleeping tasks wake in order, each at its own time."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.time)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.time + max(0.0, seconds), next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    @property
    def sleepers(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def jump(self, seconds: float) -> None:
        """Let time pass without waking sleepers, as if the event loop were blocked."""
        self.time += seconds

    async def advance(self, seconds: float) -> None:
        """Let time pass and run all timers that are due."""
        await settle()
        end = self.time + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self.time = max(self.time, due)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self.time = end
        await settle()


class HastyClock(ManualClock):
    """A clock that never waits: a sleep advances the time, returns at once and is recorded in ``slept``."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += max(0.0, seconds)
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer, due = _Timer(callback), self.time + max(0.0, seconds)

        def fire() -> None:
            if timer.callback is not None:
                self.slept.append(seconds)
                self.time = max(self.time, due)
                timer.callback()

        asyncio.get_running_loop().call_soon(fire)
        return timer


async def settle() -> None:
    """Run 20 turns of the event loop, so that ready tasks can proceed."""
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)
