"""Sets of indexes as intervals, written like those of an Indexed Job: ``0-5,7,9-12``."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

_ITEM = re.compile(r"^(\d+)(?:-(\d+))?$", re.ASCII)


class Indexes(msgspec.Struct, frozen=True):
    """Intervals in rising order that neither overlap nor touch; both ends belong to them."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Indexes":
        """Read intervals in any order. What is no interval is passed over: no status must stop its controller."""
        found = (_ITEM.match(item.strip()) for item in text.split(","))
        pairs = [(int(item[1]), int(item[2] or item[1])) for item in found if item is not None]
        return cls(tuple(_merged(sorted(pair for pair in pairs if pair[0] <= pair[1]))))

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.intervals)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        place = bisect_right(self.intervals, (index, float("inf"))) - 1
        return place >= 0 and index <= self.intervals[place][1]

    def plus(self, indexes: Iterable[int]) -> "Indexes":
        """These and the ones given."""
        return Indexes(tuple(_merged(sorted(chain(self.intervals, ((index, index) for index in indexes))))))

    def missing(self, total: int) -> Iterator[int]:
        """Those below ``total`` that are not among them, in rising order."""
        begin = 0
        for first, last in self.intervals:
            yield from range(begin, min(first, total))
            begin = last + 1
        yield from range(begin, total)


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
