"""The clock, and the waits that depend on it: back-off, token bucket, and slow start of creates.

The clock is an argument everywhere, so that tests do not have to sleep. The token bucket limits the load of this client
on the API server. The slow start reduces the rate of creates in a namespace if they are refused, for example because of
a quota or a webhook that is down.
"""

import asyncio
import heapq
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import IntEnum
from random import Random
from typing import Protocol

import msgspec


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """Reads the time and waits. Tests use a simulated clock."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary origin. Only differences are meaningful."""

    def now(self) -> datetime:
        """Return the date and time in UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this time. Does not wait if ``seconds`` is not positive."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call the callback from the event loop after this time."""


class SystemClock:
    """The clock of this machine and its event loop."""

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return time.monotonic()

    def now(self) -> datetime:
        """See ``Clock.now``."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``. Other tasks run even if ``seconds`` is not positive."""
        await asyncio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See ``Clock.call_later``."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


def micro_time(moment: datetime) -> str:
    """Return the time in the format ``MicroTime`` of the Kubernetes API."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Backoff(msgspec.Struct, frozen=True):
    """Exponential back-off with jitter.

    Attributes:
        base: Seconds after the first failure. The delay doubles with each consecutive failure.
        limit: Maximum delay in seconds.
    """

    base: float
    limit: float

    def delay(self, failures: int, random: Random) -> float:
        """Return the seconds to wait after this number of consecutive failures: 50 to 100 percent of the full delay."""
        full = min(self.limit, self.base * 2.0 ** min(max(failures, 1) - 1, 30))
        return full * random.uniform(0.5, 1.0)


class Priority(IntEnum):
    """The order in which waiting requests are sent; the lowest number first.

    Requests that end an episode or free a node come before requests that start another episode.
    """

    OUTCOME = 0
    DELETE = 1
    UPDATE = 2
    CREATE = 3
    PROGRESS = 4


class TokenBucket:
    """A token bucket with priorities.

    The waiting caller with the highest priority gets the next token. Callers with equal priority are served in the
    order of their calls. A caller that has waited for ``patience`` seconds is served before all others, so that callers
    with a low priority do not starve.

    Args:
        qps: Tokens per second.
        burst: Maximum number of saved tokens.
        clock: For the rate and the waits.
        patience: Seconds after which the priority of a caller is ignored.

    Attributes:
        waited_seconds: Total time that callers have waited.
    """

    def __init__(self, *, qps: float, burst: int, clock: Clock, patience: float = 10.0) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError("a token bucket needs a positive rate and room for one token")
        self.waited_seconds = 0.0
        self._qps = qps
        self._burst = float(burst)
        self._clock = clock
        self._patience = patience
        self._tokens = float(burst)
        self._filled = clock.monotonic()
        self._ranked: list[tuple[int, int, _Place]] = []
        self._in_order: deque[_Place] = deque()
        self._calls = 0
        self._timer: Timer | None = None

    async def take(self, priority: int = Priority.OUTCOME) -> None:
        """Wait for a token. If the caller is cancelled, its token is returned to the bucket."""
        self._fill()
        if self._tokens >= 1.0 and self._next() is None:
            self._tokens -= 1.0
            return
        place = _Place(self._clock.monotonic())
        self._calls += 1
        heapq.heappush(self._ranked, (priority, self._calls, place))
        self._in_order.append(place)
        self._serve()
        try:
            await place.granted
        except asyncio.CancelledError:
            if place.granted.done() and not place.granted.cancelled():
                self._tokens += 1.0
                self._serve()
            raise
        self.waited_seconds += self._clock.monotonic() - place.since

    def _serve(self) -> None:
        """Give the available tokens to callers. Schedules itself for the next token while callers wait."""
        self._fill()
        while (place := self._next()) is not None and self._tokens >= 1.0 - _ROUNDING:
            self._tokens -= 1.0
            place.granted.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if place is not None:
            self._timer = self._clock.call_later((1.0 - self._tokens) / self._qps, self._serve)

    def _next(self) -> "_Place | None":
        """Return the caller that gets the next token, or None if nobody waits."""
        while self._in_order and self._in_order[0].granted.done():
            self._in_order.popleft()
        while self._ranked and self._ranked[0][-1].granted.done():
            heapq.heappop(self._ranked)
        if not self._in_order:
            return None
        oldest = self._in_order[0]
        is_late = self._clock.monotonic() - oldest.since >= self._patience
        return oldest if is_late else self._ranked[0][-1]

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._qps)
        self._filled = now


_ROUNDING = 1e-6


class _Place:
    """A caller that waits."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SlowStart:
    """Limits the number of in-flight creates of one sort, as the slow start of TCP.

    The limit is 1 at first. It grows by 1 with each success, so it doubles with every round trip, and is reset to 1
    after a refusal. The state of a sort is deleted when none of its creates is running or waiting.

    Args:
        limit: Maximum number of in-flight creates of one sort.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._windows: dict[Hashable, _Window] = {}

    @asynccontextmanager
    async def slot(self, sort: Hashable) -> AsyncIterator["CreateOutcome"]:
        """Wait until the create may be sent. Call ``refused()`` on the yielded outcome if the server refuses it."""
        window = self._windows.setdefault(sort, _Window())
        outcome = CreateOutcome()
        await self._enter(sort, window)
        try:
            yield outcome
        except BaseException:
            window.size = 1 if outcome.was_refused else window.size
            raise
        else:
            window.size = min(self._limit, window.size + 1)
        finally:
            window.active -= 1
            self._wake(sort, window)

    async def _enter(self, sort: Hashable, window: "_Window") -> None:
        if window.active < window.size and not window.waiting:
            window.active += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        window.waiting[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if window.waiting.pop(place, 0) == 0:  # the place had already been granted
                window.active -= 1
            self._wake(sort, window)
            raise

    def _wake(self, sort: Hashable, window: "_Window") -> None:
        while window.waiting and window.active < window.size:
            place, _ = window.waiting.popitem(last=False)
            if not place.cancelled():
                window.active += 1
                place.set_result(None)
        if not window.active and not window.waiting and self._windows.get(sort) is window:
            del self._windows[sort]


class CreateOutcome:
    """The outcome of a create, which determines the limit for the next creates."""

    def __init__(self) -> None:
        self.was_refused = False

    def refused(self) -> None:
        """Record that the create was refused."""
        self.was_refused = True


class _Window:
    def __init__(self) -> None:
        self.size = 1
        self.active = 0
        self.waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
