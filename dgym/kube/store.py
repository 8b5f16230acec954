"""A cache of one kind of object: what the watch has shown, and our own writes since.

A decision made right after a write must see that write, though the watch shows it only later. So the answers to our own
writes are stored at once, and the watch's older versions of those objects are skipped until the watch has caught up.
The UID of a deleted object is kept for a while, so that a late answer does not bring it back.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from dgym.kube.resources import Key, T, key_of, older
from dgym.kube.throttle import Clock

_GONE_SECONDS = 120.0
"""Longer than any answer or watch event is late: requests have a deadline of seconds, a silent watch is dropped."""


class Source(StrEnum):
    """The source of a change. Changes of a ``LIST`` come by the thousand and can wait."""

    LIST = "list"
    WATCH = "watch"
    OWN = "own"


class Change(msgspec.Struct, Generic[T], frozen=True):
    """An object appeared (no ``old``), changed, or is gone (no ``new``)."""

    key: Key
    old: T | None
    new: T | None
    source: Source

    @property
    def last(self) -> T:
        """The object, or what it was before it was gone."""
        known = self.new if self.new is not None else self.old
        assert known is not None
        return known


V = TypeVar("V", bound=Hashable)
Listener = Callable[[Change[T]], None]


class Index(Generic[T, V]):
    """The objects by values of theirs: their owner, their node."""

    def __init__(self, store: "Store[T]", function: Callable[[T], Iterable[V]]) -> None:
        self._store = store
        self._function = function
        self._keys: dict[V, dict[Key, None]] = {}

    def __getitem__(self, value: V) -> tuple[T, ...]:
        """All objects of that value, in the order they appeared; empty where there is none."""
        found = (self._store.get(key) for key in self._keys.get(value, ()))
        return tuple(item for item in found if item is not None)

    def count(self, value: V) -> int:
        """How many objects have the value."""
        return len(self._keys.get(value, ()))

    def values(self) -> Collection[V]:
        """All values that any object has."""
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


class Store(Generic[T]):
    """The objects of one kind by (namespace, name). Reflectors of several namespaces may share one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[Key, T] = {}
        self._own: dict[Key, str] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()
        self._listed: dict[str, str] = {}
        self._indexes: list[Index[T, Any]] = []
        self._listeners: list[Listener[T]] = []

    def get(self, key: Key) -> T | None:
        """The object, if there is one of that name."""
        return self._objects.get(key)

    def newest(self, namespace: str | None = None) -> str:
        """The highest version of an object of the namespace (None: of all); empty where versions do not compare."""
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
        """All objects, as of now, whatever changes meanwhile."""
        return iter(tuple(self._objects.values()))

    def index(self, function: Callable[[T], Iterable[V]]) -> Index[T, V]:
        """Index the objects by the values that this pure function returns for each."""
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
        # An object that is in no list made since has come and gone unseen.
        latest = known.metadata.resource_version if known is not None else self._listed_version(key[0])
        if self._is_gone(item.metadata.uid) or self._is_behind(key, version) or older(version, latest):
            return
        self._own[key] = version
        self._put(key, item, Source.OWN)

    def assume_deleted(self, key: Key, uid: str) -> None:
        """Remove an object that we deleted and the API server does not have any more."""
        self._bury(uid)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            # Its predecessors of the same name may still be on their way through the watch.
            self._own[key] = known.metadata.resource_version
            self._remove(key, Source.OWN)

    def assume_ended(self, key: Key, uid: str, last: Callable[[T], T]) -> None:
        """Replace an object that the API server does not have any more by what ``last`` makes of it.

        The watch will show its end, and with it a state that may be news.
        """
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            self._objects[key] = last(known)
            self._changed(key, known, self._objects[key], Source.OWN)

    # The watch

    def put(self, item: T) -> None:
        """Store an object that the watch has shown."""
        key = key_of(item)
        if self._is_gone(item.metadata.uid) or self._is_behind(key, item.metadata.resource_version):
            return
        self._own.pop(key, None)
        self._put(key, item, Source.WATCH)

    def remove(self, item: T) -> None:
        """Remove an object that the watch has shown to be gone. A later one of the same name that we made stays."""
        key = key_of(item)
        self._bury(item.metadata.uid)
        if not self._is_behind(key, item.metadata.resource_version):
            self._own.pop(key, None)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == item.metadata.uid:
            # Its last state may be in no other event.
            self._remove(key, Source.WATCH, last=item)

    def remove_unread(self, key: Key, uid: str, resource_version: str) -> None:
        """Remove an object that the watch has shown to be gone and that cannot be decoded."""
        self._bury(uid)
        if not self._is_behind(key, resource_version):
            self._own.pop(key, None)
        known = self._objects.get(key)
        if known is not None and known.metadata.uid == uid:
            self._remove(key, Source.WATCH)

    def replace(
        self, items: Iterable[T], resource_version: str, *, namespace: str | None = None, keep: Collection[Key] = ()
    ) -> None:
        """Replace the objects of the namespace (None: of all) by those of a list.

        ``keep`` names objects that exist but could not be decoded. Our own writes after the list was made stay.
        """
        self._listed[namespace or ""] = resource_version
        seen: set[Key] = set(keep)
        for item in items:
            key = key_of(item)
            seen.add(key)
            if self._is_gone(item.metadata.uid) or self._is_behind(key, item.metadata.resource_version):
                continue
            self._own.pop(key, None)
            self._put(key, item, Source.LIST)
        for key in [key for key in self._objects if key not in seen and _covers(namespace, key)]:
            if not self._is_behind(key, resource_version):
                self._bury(self._objects[key].metadata.uid)
                self._remove(key, Source.LIST)
        for key in [key for key in self._own if _covers(namespace, key)]:
            if not self._is_behind(key, resource_version):
                del self._own[key]

    def _listed_version(self, namespace: str) -> str:
        return self._listed.get(namespace) or self._listed.get("", "")

    def _is_behind(self, key: Key, version: str) -> bool:
        own = self._own.get(key)
        return own is not None and older(version, own)

    def _put(self, key: Key, item: T, source: Source) -> None:
        known = self._objects.get(key)
        if known is not None and known.metadata.resource_version == item.metadata.resource_version:
            return
        self._objects[key] = item
        self._changed(key, known, item, source)

    def _remove(self, key: Key, source: Source, last: T | None = None) -> None:
        known = self._objects.pop(key)
        self._update_indexes(key, known, None)
        self._notify(Change(key, last if last is not None else known, None, source))

    def _changed(self, key: Key, old: T | None, new: T | None, source: Source) -> None:
        self._update_indexes(key, old, new)
        self._notify(Change(key, old, new, source))

    def _update_indexes(self, key: Key, old: T | None, new: T | None) -> None:
        for index in self._indexes:
            index._update(key, old, new)

    def _notify(self, change: Change[T]) -> None:
        for listener in self._listeners:
            listener(change)

    # Deleted objects

    def _is_gone(self, uid: str) -> bool:
        return uid in self._gone

    def _bury(self, uid: str) -> None:
        if not uid:
            return
        now = self._clock.monotonic()
        while self._gone and next(iter(self._gone.values())) <= now - _GONE_SECONDS:
            self._gone.popitem(last=False)
        self._gone[uid] = now
        self._gone.move_to_end(uid)


def _covers(namespace: str | None, key: Key) -> bool:
    return not namespace or namespace == key[0]
