"""The children of a set by their index, and intervals of indexes.

Both are updated incrementally. A decision about a set of ten thousand episodes costs time in proportion to the children
that changed since the last decision, and not to all children.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from dgym.api import INDEX_LABEL, EpisodeSetStatus
from dgym_operator.objects import EpisodeView

Key = tuple[str, str]
"""Namespace and name."""
_ITEM = re.compile(r"^(\d+)(?:-(\d+))?$", re.ASCII)


class Indexes(msgspec.Struct, frozen=True):
    """A set of indexes as intervals, in the notation of an Indexed Job: ``0-5,7,9-12``. Both ends are included.

    The intervals are in ascending order. They do not overlap and are not adjacent.
    """

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Indexes":
        """Parse intervals in any order. Invalid text is ignored, so that a bad status does not stop the controller."""
        found = (_ITEM.match(item.strip()) for item in text.split(","))
        pairs = [(int(item[1]), int(item[2] or item[1])) for item in found if item is not None]
        return cls(tuple(_merged(sorted(pair for pair in pairs if pair[0] <= pair[1]))))

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.intervals)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self.last_of(index) is not None

    def last_of(self, index: int) -> int | None:
        """Return the last index of the interval that contains the index, or None."""
        place = bisect_right(self.intervals, (index, float("inf"))) - 1
        last = self.intervals[place][1] if place >= 0 else -1
        return last if index <= last else None

    def covers(self, other: "Indexes") -> bool:
        """True if this set contains all indexes of the other."""
        found = ((self.last_of(first), last) for first, last in other.intervals)
        return all(end is not None and last <= end for end, last in found)

    def minus(self, other: "Indexes") -> Iterator[int]:
        """Yield the indexes that are not in the other, in ascending order. This set must cover the other."""
        place = 0
        for first, last in self.intervals:
            begin = first
            while place < len(other.intervals) and other.intervals[place][0] <= last:
                yield from range(begin, other.intervals[place][0])
                begin = other.intervals[place][1] + 1
                place += 1
            yield from range(begin, last + 1)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.intervals:
            yield from range(first, last + 1)

    def without(self, other: "Indexes") -> "Indexes":
        """Return the indexes that are not in the other."""
        return Indexes().plus(index for index in self if index not in other)

    def plus(self, indexes: Iterable[int]) -> "Indexes":
        """Return the union with the indexes."""
        return Indexes(tuple(_merged(sorted(chain(self.intervals, ((index, index) for index in indexes))))))


def _merged(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for first, last in pairs:
        if current is not None and first <= current[1] + 1:
            current = (current[0], max(current[1], last))
            continue
        if current is not None:
            yield current
        current = (first, last)
    if current is not None:
        yield current


def child_index(child: EpisodeView) -> int | None:
    """Return the child's index in its set, or None if its label is missing or invalid."""
    text = child.metadata.labels.get(INDEX_LABEL, "")
    return int(text) if text.isdecimal() else None


def is_counted(status: EpisodeSetStatus, child: EpisodeView) -> bool:
    """True if the set's completed indexes contain the child, so that it may be deleted after its time to live."""
    index = child_index(child)
    return index is not None and index in Indexes.parse(status.completed_indexes)


class Children:
    """The children of one set. If several children have the same index, the last added child is used.

    Args:
        views: The children, in the order in which they were observed.
    """

    def __init__(self, views: Iterable[EpisodeView] = ()) -> None:
        self._views: dict[Key, EpisodeView] = {}
        self._keys: dict[int, tuple[Key, ...]] = {}
        self._text = ""
        self._completed = Indexes()
        self._unfinished: dict[int, EpisodeView] = {}
        self._finished: dict[int, EpisodeView] = {}
        self._suspended = 0
        self._lowest = 0
        """Every index below this index is completed or has a child."""
        self._highest = -1
        for view in views:
            self.put(view)

    def put(self, view: EpisodeView) -> None:
        """Add a child or replace its state."""
        self._replace(view.key, view)

    def remove(self, key: Key) -> None:
        """Remove a child that no longer exists."""
        self._replace(key, None)

    def at(self, index: int) -> EpisodeView | None:
        """Return the child with the index, or None."""
        keys = self._keys.get(index)
        return self._views[keys[-1]] if keys else None

    def completed(self, text: str) -> Indexes:
        """Parse and return the completed indexes of the set's status. The last text is cached.

        ``finished``, ``unfinished`` and ``missing`` exclude the completed indexes of the last call.
        """
        if text != self._text:
            before, self._completed, self._text = self._completed, Indexes.parse(text), text
            grown = self._completed.covers(before)
            if grown and len(self._completed) - len(before) < len(self._keys):
                changed: Iterable[int] = self._completed.minus(before)
            else:
                changed = tuple(self._keys)
                self._lowest = 0
            for index in changed:
                self._place(index)
        return self._completed

    def finished(self, total: int) -> Mapping[int, EpisodeView]:
        """Return the finished children that are not completed, by index. Only indexes below ``total`` are included."""
        if self._highest < total:
            return self._finished
        return {index: child for index, child in self._finished.items() if index < total}

    def unfinished(self, total: int) -> tuple[EpisodeView, ...]:
        """Return the unfinished children with an index below ``total``, in ascending order."""
        return tuple(child for index, child in sorted(self._unfinished.items()) if index < total)

    def count_unfinished(self, total: int) -> tuple[int, int]:
        """Return the number of unfinished children, and the number of suspended children among them."""
        if self._highest < total:
            return len(self._unfinished), self._suspended
        found = self.unfinished(total)
        return len(found), sum(child.spec.suspend for child in found)

    def missing(self, total: int, creating: Collection[int]) -> Iterator[int]:
        """Yield in ascending order the indexes below ``total`` for which a child is missing.

        These are not completed, have no child and are not in ``creating``.
        """
        self._lowest = next(self._gaps(self._lowest))
        for index in self._gaps(self._lowest):
            if index >= total:
                return
            if index not in creating:
                yield index

    def __contains__(self, index: object) -> bool:
        return index in self._keys

    def _gaps(self, index: int) -> Iterator[int]:
        """Yield the indexes from ``index`` on that are not completed and have no child."""
        while True:
            last = self._completed.last_of(index)
            if last is not None:
                index = last
            elif index not in self._keys:
                yield index
            index += 1

    def _replace(self, key: Key, view: EpisodeView | None) -> None:
        old = self._views.pop(key, None) if view is None else self._views.get(key)
        before = child_index(old) if old is not None else None
        after = child_index(view) if view is not None else None
        if view is not None:
            self._views[key] = view
        if before is not None and before != after:
            self._keys[before] = tuple(each for each in self._keys[before] if each != key)
            if not self._keys[before]:
                del self._keys[before]
                self._lowest = min(self._lowest, before)
            self._place(before)
        if after is not None:
            if before != after:
                self._keys[after] = (*self._keys.get(after, ()), key)
                self._highest = max(self._highest, after)
            self._place(after)

    def _place(self, index: int) -> None:
        """Move the child with the index to the group that fits its current state."""
        self._finished.pop(index, None)
        before = self._unfinished.pop(index, None)
        if before is not None:
            self._suspended -= before.spec.suspend
        child = self.at(index)
        if child is None or index in self._completed:
            return
        if child.is_finished:
            self._finished[index] = child
        else:
            self._unfinished[index] = child
            self._suspended += child.spec.suspend
