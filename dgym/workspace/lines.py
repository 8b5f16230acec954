"""Which lines two texts have in common.

``difflib`` finds good matches but needs time that grows with the product of the lengths. Common ends are cut off
first; what is left and still large is divided at lines that occur exactly once on both sides (as patience diff does),
and a stretch that stays too large is taken as replaced. The result is always a valid alignment, only longer than
necessary for texts that have next to nothing in common.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Generic, NamedTuple, TypeVar

Line = TypeVar("Line", str, bytes)

_AFFORDABLE = 400_000
"""Product of the numbers of lines up to which difflib is asked: some tenths of a second at worst."""


class Block(NamedTuple):
    """``size`` lines from ``before[i]`` on equal those from ``after[j]`` on."""

    i: int
    j: int
    size: int


def matching_blocks(before: Sequence[Line], after: Sequence[Line]) -> list[Block]:
    """Maximal runs of equal lines, ascending in both texts, none of them empty."""
    found: list[Block] = []
    pending = [_Stretch(before, after, 0, len(before), 0, len(after))]
    while pending:
        stretch = pending.pop()
        found.extend(stretch.trim())
        if stretch.i == stretch.i_end or stretch.j == stretch.j_end:
            continue
        if stretch.cost <= _AFFORDABLE:
            found.extend(stretch.ask_difflib())
        else:
            pending.extend(stretch.divide())
    return _merge(sorted(found))


class _Stretch(Generic[Line]):
    """``before[i:i_end]`` and ``after[j:j_end]``, still to be aligned."""

    def __init__(self, before: Sequence[Line], after: Sequence[Line], i: int, i_end: int, j: int, j_end: int) -> None:
        self.before: Sequence[Line] = before
        self.after: Sequence[Line] = after
        self.i, self.i_end, self.j, self.j_end = i, i_end, j, j_end

    @property
    def cost(self) -> int:
        return (self.i_end - self.i) * (self.j_end - self.j)

    def trim(self) -> list[Block]:
        """Cut the common head and tail off."""
        before, after = self.before, self.after
        i, j = self.i, self.j
        while i < self.i_end and j < self.j_end and before[i] == after[j]:
            i, j = i + 1, j + 1
        head = Block(self.i, self.j, i - self.i)
        self.i, self.j = i, j
        i_end, j_end = self.i_end, self.j_end
        while i < i_end and j < j_end and before[i_end - 1] == after[j_end - 1]:
            i_end, j_end = i_end - 1, j_end - 1
        tail = Block(i_end, j_end, self.i_end - i_end)
        self.i_end, self.j_end = i_end, j_end
        return [block for block in (head, tail) if block.size]

    def ask_difflib(self) -> list[Block]:
        matcher = SequenceMatcher(
            None, self.before[self.i : self.i_end], self.after[self.j : self.j_end], autojunk=False
        )
        return [Block(self.i + a, self.j + b, size) for a, b, size in matcher.get_matching_blocks() if size]

    def divide(self) -> list["_Stretch[Line]"]:
        """The stretches between lines that occur once on each side; nothing when there is no such line."""
        anchors: list[tuple[int, int]] = self._anchors()
        if not anchors:
            return []
        starts = [(self.i, self.j), *anchors]
        ends = [*anchors, (self.i_end, self.j_end)]
        return [
            _Stretch(self.before, self.after, i, i_end, j, j_end)
            for (i, j), (i_end, j_end) in zip(starts, ends, strict=True)
            if i < i_end and j < j_end
        ]

    def _anchors(self) -> list[tuple[int, int]]:
        before, after = self.before[self.i : self.i_end], self.after[self.j : self.j_end]
        in_before, in_after = Counter(before), Counter(after)
        places = {line: self.j + offset for offset, line in enumerate(after) if in_after[line] == 1}
        pairs = [
            (self.i + offset, places[line])
            for offset, line in enumerate(before)
            if in_before[line] == 1 and line in places
        ]
        return _longest_ascending(pairs)


def _longest_ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence that ascends in its second part as it does in its first."""
    lowest: list[int] = []
    holders: list[int] = []
    previous: list[int] = []
    for index, (_, value) in enumerate(pairs):
        rank = bisect_left(lowest, value)
        previous.append(holders[rank - 1] if rank else -1)
        if rank == len(lowest):
            lowest.append(value)
            holders.append(index)
        else:
            lowest[rank] = value
            holders[rank] = index
    chain: list[tuple[int, int]] = []
    index = holders[-1] if holders else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]


def _merge(blocks: list[Block]) -> list[Block]:
    merged: list[Block] = []
    for block in blocks:
        if merged:
            last = merged[-1]
            if last.i + last.size == block.i and last.j + last.size == block.j:
                merged[-1] = Block(last.i, last.j, last.size + block.size)
                continue
        merged.append(block)
    return merged
