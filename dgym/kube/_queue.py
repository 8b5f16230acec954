"""A work queue of keys to reconcile, as in client-go.

A key is in the queue at most once, and two workers never process the same key at the same time. A key that is added a
hundred times before a worker is free is reconciled once. So the length of the queue is bounded by the number of keys.
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from random import Random
from typing import Generic, TypeVar

from dgym.kube._throttle import Backoff, Clock, Timer

K = TypeVar("K", bound=Hashable)

_BACKOFF = Backoff(base=0.5, limit=300.0)
_LOW_EVERY = 10
"""Every tenth key is taken from those with low priority, even if others wait, so that they do not starve."""


class QueueClosed(Exception):
    """The queue has been closed because the operator shuts down."""


class WorkQueue(Generic[K]):
    """A queue without duplicates, with two priorities, delays, and a back-off per key.

    Attributes:
        adds: Number of calls of ``add``, including duplicates and delayed keys.
        retries: Number of calls of ``retry``.
    """

    def __init__(self, *, clock: Clock, random: Random, backoff: Backoff = _BACKOFF) -> None:
        self.adds = 0
        self.retries = 0
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._ready: tuple[OrderedDict[K, float], OrderedDict[K, float]] = (OrderedDict(), OrderedDict())
        self._active: dict[K, bool | None] = {}
        """Keys that a worker processes. The value is not None if the key was added again; True means low priority."""
        self._due: dict[K, tuple[float, bool]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._pushes = 0
        self._timer: Timer | None = None
        self._failures: dict[K, int] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = 0
        self._closed = False

    def add(self, key: K, after: float = 0.0, *, low_priority: bool = False) -> None:
        """Enqueue the key in ``after`` seconds. If the key is already delayed, the earlier time applies."""
        if self._closed:
            return
        self.adds += 1
        if after > 0:
            self._delay(key, self._clock.monotonic() + after, low_priority)
        elif key in self._active:
            again = self._active[key]
            self._active[key] = low_priority if again is None else again and low_priority
        else:
            self._enqueue(key, low_priority)

    def retry(self, key: K) -> float:
        """Requeue the key after a back-off that grows with every failure. Returns the delay in seconds."""
        self.retries += 1
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key], self._random)
        self.add(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the back-off of the key."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return the number of calls of ``retry`` for the key since ``forget``."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for the next key and return it. Another worker does not get the key until ``done`` is called.

        Raises:
            QueueClosed: The queue is closed.
        """
        while True:
            if self._closed:
                raise QueueClosed
            if any(self._ready):
                return self._pop()
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._wake()
                raise

    def done(self, key: K) -> None:
        """Mark a key as processed. If it was added while it was processed, it is enqueued again."""
        again = self._active.pop(key)
        if again is not None and not self._closed:
            self._enqueue(key, again)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[K]:
        """Get a key for the duration of the context, then call ``done``."""
        key = await self.get()
        try:
            yield key
        finally:
            self.done(key)

    def close(self) -> None:
        """Close the queue. Waiting workers get ``QueueClosed``, busy workers finish, and ``add`` has no effect."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._wake()

    # For metrics

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._ready[0]) + len(self._ready[1])

    @property
    def active(self) -> int:
        """Number of keys that workers process now."""
        return len(self._active)

    @property
    def delayed(self) -> int:
        """Number of keys that are not due yet."""
        return len(self._due)

    @property
    def oldest_age(self) -> float:
        """Longest time in seconds that a key has been waiting for a worker; 0 if the queue is empty."""
        since = [moment for keys in self._ready for moment in keys.values()]
        return self._clock.monotonic() - min(since) if since else 0.0

    # Internals

    def _enqueue(self, key: K, low_priority: bool) -> None:
        high, low = self._ready
        if key in high or (key in low and low_priority):
            return
        since = low.pop(key, None)
        self._ready[low_priority][key] = self._clock.monotonic() if since is None else since
        if since is None:
            self._wake()

    def _pop(self) -> K:
        self._taken += 1
        high, low = self._ready
        turn = low if low and (not high or self._taken % _LOW_EVERY == 0) else high
        key, _ = turn.popitem(last=False)
        self._active[key] = None
        if high or low:
            self._wake()
        return key

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return

    def _delay(self, key: K, due: float, low_priority: bool) -> None:
        known = self._due.get(key)
        if known is not None:
            low_priority = low_priority and known[1]
            if known[0] <= due:
                self._due[key] = (known[0], low_priority)
                return
        self._due[key] = (due, low_priority)
        self._pushes += 1
        heapq.heappush(self._heap, (due, self._pushes, key))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)
        if self._heap[0][2] == key:
            self._set_timer()

    def _is_current(self, entry: tuple[float, int, K]) -> bool:
        due = self._due.get(entry[2])
        return due is not None and due[0] == entry[0]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._closed:
            self._timer = self._clock.call_later(self._heap[0][0] - self._clock.monotonic(), self._add_due)

    def _add_due(self) -> None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                key = entry[2]
                _, low_priority = self._due.pop(key)
                self.add(key, low_priority=low_priority)
        self._timer = None
        self._set_timer()
