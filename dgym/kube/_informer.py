"""A cache of the objects of one kind, and the reflector that keeps it up to date, as in client-go.

The reflector lists once, then watches. The store contains the watched objects and the results of our own writes.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from enum import StrEnum
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from dgym.kube._client import PAGE_SIZE, Client
from dgym.kube._resources import (
    ApiError,
    ConnectionLost,
    EventDecoder,
    Expired,
    Forbidden,
    Key,
    Resource,
    T,
    TooManyRequests,
    Unauthorized,
    UnreadableAnswer,
    UnreadableObject,
    key_of,
    older,
)
from dgym.kube._throttle import Backoff, Clock

_GONE_SECONDS = 120.0
"""How long the UID of a deleted object is kept.

This is longer than a response or a watch event can be delayed: requests have a deadline of seconds, and a silent watch
is closed.
"""
logger = logging.getLogger(__name__)
_BACKOFF = Backoff(base=1.0, limit=30.0)
_LONGEST_WAIT = 120.0
_HEALTHY_SECONDS = 30.0
"""The back-off is reset after a stream that lasted at least this long."""
_SLACK_SECONDS = 5.0
"""A stream may end this much before its requested time without counting as a failure."""


class ChangeSource(StrEnum):
    """The source of a change. A ``LIST`` may cause thousands of changes at once, which have low priority."""

    LIST = "list"
    WATCH = "watch"
    OWN = "own"


class ObjectChange(msgspec.Struct, Generic[T], frozen=True):
    """A change of an object. ``old`` is None if the object was added, ``new`` is None if it was removed."""

    key: Key
    old: T | None
    new: T | None
    source: ChangeSource

    @property
    def last(self) -> T:
        """The object, or its last state if it was removed."""
        known = self.new if self.new is not None else self.old
        assert known is not None
        return known


V = TypeVar("V", bound=Hashable)

Listener = Callable[[ObjectChange[T]], None]


class Index(Generic[T, V]):
    """Finds the objects of a store by a derived value, such as their owner or node."""

    def __init__(self, store: "InformerStore[T]", function: Callable[[T], Iterable[V]]) -> None:
        self._store = store
        self._function = function
        self._keys: dict[V, dict[Key, None]] = {}

    def __getitem__(self, value: V) -> tuple[T, ...]:
        """Return all objects with the value, in the order in which they were added."""
        found = (self._store.get(key) for key in self._keys.get(value, ()))
        return tuple(item for item in found if item is not None)

    def count(self, value: V) -> int:
        """Return the number of objects with the value."""
        return len(self._keys.get(value, ()))

    def values(self) -> Collection[V]:
        """Return all values of at least one object."""
        return self._keys.keys()

    def _update(self, key: Key, old: T | None, new: T | None) -> None:
        before = set(self._function(old)) if old is not None else set()
        after = dict.fromkeys(self._function(new)) if new is not None else {}
        for value in before - after.keys():
            keys = self._keys[value]
            del keys[key]
            if not keys:
                del self._keys[value]
        for value in after:
            if value not in before:
                self._keys.setdefault(value, {})[key] = None


class InformerStore(Generic[T]):
    """The objects of one kind by (namespace, name). Reflectors of several namespaces may share a store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[Key, T] = {}
        self._own: dict[Key, str] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()
        self._listed: dict[str, str] = {}
        self._indexes: list[Index[T, Any]] = []
        self._listeners: list[Listener[T]] = []

    def get(self, key: Key) -> T | None:
        """Return the object, or None if it is not in the store."""
        return self._objects.get(key)

    def newest(self, namespace: str | None = None) -> str:
        """Return the highest resourceVersion of the objects in the namespace. None: all namespaces.

        Returns:
            ``0`` for an empty store, and the empty string if versions cannot be compared.
        """
        newest = "0"
        for key, item in self._objects.items():
            if _covers(namespace, key):
                version = item.metadata.resource_version
                if not (older(newest, version) or older(version, newest) or version == newest):
                    return ""
                newest = version if older(newest, version) else newest
        return newest

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        """Iterate over a snapshot of all objects, so that changes during the iteration are safe."""
        return iter(tuple(self._objects.values()))

    def index(self, function: Callable[[T], Iterable[V]]) -> Index[T, V]:
        """Return an index of the objects by the values that ``function`` returns. It must be a pure function."""
        index = Index(self, function)
        for key, item in self._objects.items():
            index._update(key, None, item)
        self._indexes.append(index)
        return index

    def subscribe(self, listener: Listener[T]) -> None:
        """Call ``listener`` after every change. It must not block or raise."""
        self._listeners.append(listener)

    # Own writes

    def assume(self, item: T) -> None:
        """Store the object that the API server returned for our own create, patch or delete."""
        key, version = key_of(item), item.metadata.resource_version
        known = self._objects.get(key)
        # If the object is unknown and a newer list exists, that list did not contain it: it has been deleted since.
        latest = known.metadata.resource_version if known is not None else self._listed_version(key[0])
        if self._is_gone(item.metadata.uid) or self._is_behind(key, version) or older(version, latest):
            return
        self._own[key] = version
        self._put(key, item, ChangeSource.OWN)

    def assume_deleted(self, key: Key, uid: str) -> None:
        """Remove an object that we deleted and that does not exist any more on the API server."""
        self._record_deletion(uid)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            # The watch may still deliver older objects of the same name.
            self._own[key] = known.metadata.resource_version
            self._remove(key, ChangeSource.OWN)

    def assume_ended(self, key: Key, uid: str, last: Callable[[T], T]) -> None:
        """Replace an object that does not exist any more on the API server by ``last(object)``.

        The object stays in the store until the watch delivers its deletion, which may contain a newer last state.
        """
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            self._objects[key] = last(known)
            self._changed(key, known, self._objects[key], ChangeSource.OWN)

    # The watch

    def put(self, item: T) -> None:
        """Store an object that the watch has delivered."""
        key = key_of(item)
        if self._is_gone(item.metadata.uid) or self._is_behind(key, item.metadata.resource_version):
            return
        self._own.pop(key, None)
        self._put(key, item, ChangeSource.WATCH)

    def remove(self, item: T) -> None:
        """Remove an object whose deletion the watch has delivered. A newer object of ours with the same name stays."""
        key = key_of(item)
        self._record_deletion(item.metadata.uid)
        if not self._is_behind(key, item.metadata.resource_version):
            self._own.pop(key, None)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == item.metadata.uid:
            # Pass on the object of the deletion event: its last state may not be in any other event.
            self._remove(key, ChangeSource.WATCH, last=item)

    def remove_unread(self, key: Key, uid: str, resource_version: str) -> None:
        """Remove an object whose deletion the watch has delivered, but whose last state cannot be decoded."""
        self._record_deletion(uid)
        if not self._is_behind(key, resource_version):
            self._own.pop(key, None)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            self._remove(key, ChangeSource.WATCH)

    def replace(
        self, items: Iterable[T], resource_version: str, *, namespace: str | None = None, keep: Collection[Key] = ()
    ) -> None:
        """Replace the objects of the namespace by those of a list. Our own writes that are newer than the list stay.

        Args:
            items: The objects of the list.
            resource_version: The version of the list.
            namespace: The namespace that was listed. None: all namespaces.
            keep: Objects that exist but could not be decoded. They stay in the store as they are.
        """
        self._listed[namespace or ""] = resource_version
        seen: set[Key] = set(keep)
        for item in items:
            key = key_of(item)
            seen.add(key)
            if self._is_gone(item.metadata.uid) or self._is_behind(key, item.metadata.resource_version):
                continue
            self._own.pop(key, None)
            self._put(key, item, ChangeSource.LIST)
        for key in [key for key in self._objects if key not in seen and _covers(namespace, key)]:
            if not self._is_behind(key, resource_version):
                self._record_deletion(self._objects[key].metadata.uid)
                self._remove(key, ChangeSource.LIST)
        for key in [key for key in self._own if _covers(namespace, key)]:
            if not self._is_behind(key, resource_version):
                del self._own[key]

    def _listed_version(self, namespace: str) -> str:
        return self._listed.get(namespace) or self._listed.get("", "")

    def _is_behind(self, key: Key, version: str) -> bool:
        own = self._own.get(key)
        return own is not None and older(version, own)

    def _put(self, key: Key, item: T, source: ChangeSource) -> None:
        known = self._objects.get(key)
        if known is not None and known.metadata.resource_version == item.metadata.resource_version:
            return
        self._objects[key] = item
        self._changed(key, known, item, source)

    def _remove(self, key: Key, source: ChangeSource, last: T | None = None) -> None:
        self._changed(key, self._objects.pop(key), None, source, last)

    def _changed(self, key: Key, old: T | None, new: T | None, source: ChangeSource, last: T | None = None) -> None:
        """Update the indexes and call the listeners. ``last`` is passed on to the listeners in place of ``old``."""
        for index in self._indexes:
            index._update(key, old, new)
        change = ObjectChange(key, last if last is not None else old, new, source)
        for listener in self._listeners:
            listener(change)

    # Deleted objects

    def _is_gone(self, uid: str) -> bool:
        return uid in self._gone

    def _record_deletion(self, uid: str) -> None:
        if not uid:
            return
        now = self._clock.monotonic()
        while self._gone and next(iter(self._gone.values())) <= now - _GONE_SECONDS:
            self._gone.popitem(last=False)
        self._gone[uid] = now
        self._gone.move_to_end(uid)


def _covers(namespace: str | None, key: Key) -> bool:
    return not namespace or namespace == key[0]


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a reflector.

    The server sends a bookmark about once a minute. A connection that is silent for ``silence_seconds`` is dead.
    """

    page_size: int = PAGE_SIZE
    shortest_seconds: int = 240
    longest_seconds: int = 300
    silence_seconds: float = 90.0
    backoff: Backoff = _BACKOFF
    forget_seconds: float = 300.0
    """The objects of an optional namespace are dropped after its requests were refused for this time."""
    tries: int | None = None
    """``run`` raises the last error after more consecutive failures than this. None: it never does."""


_DEFAULTS = WatchSettings()


class Reflector(Generic[T]):
    """Keeps the objects of one kind, in one namespace or in all, in a store.

    Args:
        client: For the API server. Reads are not throttled.
        resource: The kind.
        decode: The struct that objects are decoded into.
        store: Filled by this reflector. Reflectors of several namespaces may share a store.
        clock: For pauses and ages.
        random: For jitter.
        namespace: Default: all namespaces.
        label_selector: Selects the objects to keep.
        field_selector: Selects the objects to keep.
        settings: Durations and sizes.
        optional: Whether the namespace may be absent. Deleting a namespace also deletes the roles in it, so requests
            are then refused with 403. The objects are dropped after ``forget_seconds`` of refusals.
        changed: Called after every list, and whenever ``refusal`` changes.

    Attributes:
        synced: Set when the store has been filled for the first time.
        answered: Set when the first list has got a response, even a refusal.
        refusal: The error, if the last response was 403 (Forbidden); None otherwise.
        lists: Number of lists so far.
        watches: Number of watches so far.
        events: Number of watch events so far.
        unreadable: Number of objects so far that could not be decoded.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        decode: type[T],
        store: InformerStore[T],
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
        """The resourceVersion up to which the store is complete; empty before the first list."""
        return self._version

    @property
    def staleness(self) -> float:
        """Seconds since the API server last sent anything to this reflector, or since the reflector was created."""
        return self._clock.monotonic() - self._alive

    async def run(self) -> None:
        """Keep the store up to date until cancelled.

        Raises:
            ApiError: Only if ``settings.tries`` is set: the first list failed, the server refused a request, or there
                were too many consecutive failures.
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
        """List if necessary, then watch until the requested time has passed.

        Raises:
            ApiError: The watch ended early.
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
            # Keep the older version in the store. The next version may be readable again.
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
