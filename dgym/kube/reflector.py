"""Keeps a store in step with the API server: lists once, then watches, and backs off from every failure.

A watch ends all the time: the server closes it after some minutes, a proxy earlier, a dead connection without notice.
Each end before the time agreed is followed by a back-off that grows, a clean close too, since a server that accepts and
closes would otherwise get requests as fast as the loop turns. The next watch resumes from the last version observed.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Generic

import msgspec

from dgym.kube.client import PAGE_SIZE, Client
from dgym.kube.errors import (
    ApiError,
    ConnectionLost,
    Expired,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    UnreadableAnswer,
)
from dgym.kube.resources import EventDecoder, Key, Resource, T, UnreadableObject
from dgym.kube.store import Store
from dgym.kube.throttle import Backoff, Clock

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(base=1.0, limit=30.0)
_LONGEST_WAIT = 120.0
_HEALTHY_SECONDS = 30.0
"""A stream that lasted so long was no failure of the server: the back-off begins again."""
_SLACK_SECONDS = 5.0
"""The server ends streams at the time agreed, some seconds sooner or later."""


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a watch is kept. The server sends bookmarks about once a minute, so a longer silence is a dead connection."""

    page_size: int = PAGE_SIZE
    shortest_seconds: int = 240
    longest_seconds: int = 300
    silence_seconds: float = 90.0
    backoff: Backoff = _BACKOFF
    forget_seconds: float = 300.0
    """An optional namespace that refuses requests for so long has no objects any more."""
    tries: int | None = None
    """``run`` raises the error of so many failures in a row; None: never."""


_DEFAULTS = WatchSettings()


class Reflector(Generic[T]):
    """One kind of object in one namespace, or in all, kept in a store.

    Args:
        client: Its reads are not throttled.
        resource: The kind.
        decode: The struct that objects are decoded into.
        store: Filled by this reflector; reflectors of several namespaces may share one.
        clock: For pauses and ages.
        random: For jitter.
        namespace: None: all namespaces.
        label_selector: Of the objects to keep.
        field_selector: Of the objects to keep.
        settings: Durations and sizes.
        optional: Whether the namespace may be absent. Its objects are then dropped after ``forget_seconds`` without
            the right to read them: the roles of a namespace are deleted with it.
        changed: Called after every list, and whenever ``refusal`` changes.

    Attributes:
        synced: Set once the store has been filled for the first time.
        answered: Set once the first list was answered, be it by a refusal.
        refusal: The last answer, where that was 403 (Forbidden); None otherwise.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        decode: type[T],
        store: Store[T],
        clock: Clock,
        random: Random,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        settings: WatchSettings = _DEFAULTS,
        optional: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self.refusal: Forbidden | None = None
        self.lists = 0
        self.watches = 0
        self.events = 0
        self.unreadable = 0
        self._client = client
        self._kind = decode
        self._events = EventDecoder(decode)
        self._store = store
        self._clock = clock
        self._random = random
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._settings = settings
        self._optional = optional
        self._changed = changed
        self._refused_at = 0.0
        self._version = ""
        self._alive = clock.monotonic()
        self._opened = float("inf")

    @property
    def version(self) -> str:
        """The version up to which the store has everything; empty before the first list."""
        return self._version

    @property
    def staleness(self) -> float:
        """Seconds since the API server last sent anything to this watch; before that, since the start."""
        return self._clock.monotonic() - self._alive

    async def run(self) -> None:
        """Keep the store up to date until cancelled.

        Raises:
            ApiError: With ``settings.tries``: the first list failed, the server refused, or failures were too many.
        """
        failures = 0
        while True:
            self._opened = float("inf")
            try:
                await self._follow()
                failures = 0
                continue
            except Expired as error:
                logger.info("%s: listing again: %s", self, error)
                self._version = ""
                reason: ApiError = error
            except Forbidden as error:
                self._refused(error)
                reason = error
            except ApiError as error:
                logger.info("%s: %s", self, error)
                reason = error
            failures = 1 if self._clock.monotonic() - self._opened >= _HEALTHY_SECONDS else failures + 1
            if self._settings.tries is not None and self._is_final(reason, failures, self._settings.tries):
                raise reason
            await self._clock.sleep(self._wait(failures, reason))

    def _is_final(self, error: ApiError, failures: int, tries: int) -> bool:
        refused = 400 <= error.status < 500 and not isinstance(error, (Unauthorized, Expired, TooManyRequests))
        lost = isinstance(error, (ConnectionLost, Unauthorized, UnreadableAnswer)) and not self.synced.is_set()
        return refused or lost or failures > tries

    def _wait(self, failures: int, reason: ApiError) -> float:
        delay = self._settings.backoff.delay(failures, self._random)
        if reason.retry_after is not None:
            delay = max(delay, min(_LONGEST_WAIT, reason.retry_after) + self._random.random())
        return delay

    async def _follow(self) -> None:
        """List if need be, then watch until the server ends the watch at the time agreed.

        Raises:
            ApiError: It ended before.
        """
        if not self._version:
            await self._list()
        seconds = self._random.randint(self._settings.shortest_seconds, self._settings.longest_seconds)
        started = self._clock.monotonic()
        self.watches += 1
        async with self._client.watch(
            self.resource,
            resource_version=self._version,
            namespace=self.namespace,
            **self._selectors,
            timeout_seconds=seconds,
            silence_seconds=self._settings.silence_seconds,
        ) as lines:
            self._alive = self._opened = self._clock.monotonic()
            self._permitted()
            async for line in lines:
                self._alive = self._clock.monotonic()
                self._observe(line)
        lasted = self._clock.monotonic() - started
        if lasted < seconds - _SLACK_SECONDS:
            raise ConnectionLost(f"the watch ended after {lasted:.1f} s of {seconds} s")

    async def _list(self) -> None:
        items: list[T] = []
        unreadable: dict[Key, str] = {}
        version = ""
        self.lists += 1
        async for page in self._client.pages(
            self.resource,
            decode=self._kind,
            namespace=self.namespace,
            **self._selectors,
            limit=self._settings.page_size,
        ):
            self._alive = self._clock.monotonic()
            items.extend(page.items)
            unreadable |= page.unreadable
            version = page.meta.resource_version
        if unreadable:
            self.unreadable += len(unreadable)
            (namespace, name), why = next(iter(unreadable.items()))
            logger.warning("%s: %d objects cannot be read, %s/%s: %s", self, len(unreadable), namespace, name, why)
        self._store.replace(items, version, namespace=self.namespace, keep=unreadable.keys())
        self._version = version
        self.synced.set()
        self.answered.set()
        self.refusal = None
        self._changed()

    def _permitted(self) -> None:
        if self.refusal is not None:
            self.refusal = None
            self._changed()

    def _refused(self, error: Forbidden) -> None:
        now = self._clock.monotonic()
        if self.refusal is None:
            self.refusal, self._refused_at = error, now
            logger.info("%s: %s", self, error)
            self.answered.set()
            self._changed()
        elif self._optional and self._version and now - self._refused_at >= self._settings.forget_seconds:
            self._store.replace((), self._version, namespace=self.namespace)
            self._version = ""

    def _observe(self, line: bytes) -> None:
        self.events += 1
        try:
            event = self._events.decode(line)
        except UnreadableObject as error:
            # The store keeps an older version: it is better than none, and the next one may be readable.
            self.unreadable += 1
            self._version = error.resource_version or self._version
            logger.warning("%s: %s cannot be read: %s", self, "/".join(error.key), error)
            if error.gone:
                self._store.remove_unread(error.key, error.uid, error.resource_version)
            return
        self._version = event.resource_version or self._version
        if event.item is None:
            return
        if event.gone:
            self._store.remove(event.item)
        else:
            self._store.put(event.item)

    def __str__(self) -> str:
        return f"watch of {self.resource.plural} in {self.namespace or 'all namespaces'}"
