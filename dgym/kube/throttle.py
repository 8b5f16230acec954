"""The clock, as an argument, so that no test sleeps; and waits by it: back-off, token bucket, slow start of creates.

The bucket protects the API server from its client. The slow start protects a namespace: where the first pods are
refused (a quota, a webhook that is down) the thousands behind them are not tried at the same speed.
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


class Backoff(msgspec.Struct, frozen=True):
    """Waits that double with each failure in a row up to a limit, the upper half of each left to chance."""

    base: float
    limit: float

    def delay(self, failures: int, random: Random) -> float:
        """Seconds to wait after that many failures."""
        full = min(self.limit, self.base * 2.0 ** min(max(failures, 1) - 1, 30))
        return full * random.uniform(0.5, 1.0)


class Priority(IntEnum):
    """The order in which waiting requests are sent: what frees a node or ends an episode before what begins another."""

    VERDICT = 0
    DELETE = 1
    UPDATE = 2
    CREATE = 3
    PROGRESS = 4


class TokenBucket:
    """``qps`` tokens a second, ``burst`` of them saved up.

    Of the callers that wait, the one with the highest priority gets the next token, and of several the one that came
    first. A caller that has waited for ``patience`` seconds comes before all others, so that none waits for ever.

    ``waited_seconds`` is the sum of all callers' waits.
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

    async def take(self, priority: int = Priority.VERDICT) -> None:
        """Wait for one token. A caller that is cancelled gives it back."""
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
        """Give tokens to the callers in their order, and call again when there is another one."""
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
        """The caller that gets the next token."""
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
    """Creates of one sort in flight at once: one at first, one more after each success, one again after a failure.

    While creates succeed, the number doubles with every round trip. Sorts without a waiting create are dropped.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._windows: dict[Hashable, _Window] = {}

    @asynccontextmanager
    async def slot(self, sort: Hashable) -> AsyncIterator["Outcome"]:
        """Wait for a place; ``refused()`` on the outcome it yields slows the next ones down."""
        window = self._windows.setdefault(sort, _Window())
        outcome = Outcome()
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
            if window.waiting.pop(place, 0) == 0:  # the place was granted already
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


class Outcome:
    """The outcome of a create, for the creates behind it."""

    def __init__(self) -> None:
        self.was_refused = False

    def refused(self) -> None:
        """The server or the namespace refused the create."""
        self.was_refused = True


class _Window:
    def __init__(self) -> None:
        self.size = 1
        self.active = 0
        self.waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
