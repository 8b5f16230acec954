"""The clock, as an argument: durations by a monotonic clock, timestamps by the wall clock.

Everything that waits takes a ``Clock``, so that a test decides the time and no test sleeps.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Never call it."""


class Clock(Protocol):
    """Time, and waiting."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; only differences mean anything."""

    def now(self) -> datetime:
        """The date and time, with time zone UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait; not at all if ``seconds`` is not positive."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back from the event loop."""


class SystemClock:
    """The clock of this machine and its event loop."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin."""
        return time.monotonic()

    def now(self) -> datetime:
        """The date and time, UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait; let others run even if there is nothing to wait for."""
        await asyncio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back from the running event loop."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


def micro_time(moment: datetime) -> str:
    """As the API writes times with microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
