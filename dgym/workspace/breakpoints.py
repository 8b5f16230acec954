"""Breakpoints follow their line when a file changes; those whose line is gone are dropped.

An edit of known lines is arithmetic, which is exact even where lines repeat. A change of unknown origin (a shell
command, the program itself) is found by comparing the texts.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from dgym.wire import Breakpoint
from dgym.workspace.text import LineMatcher, split_lines

Shifted = tuple[tuple[Breakpoint, ...], tuple[Breakpoint, ...]]
"""Those that stay, at their new lines, and those that were dropped, at their old ones."""


def shift_for_edit(
    breakpoints: Iterable[Breakpoint],
    path: str,
    start: int,
    end: int,
    new_line_count: int,
    *,
    replaced: Sequence[str] = (),
    replacement: Sequence[str] = (),
) -> Shifted:
    """Follow the replacement of lines ``start`` to ``end`` of ``path`` by ``new_line_count`` lines.

    ``end`` is ``start - 1`` for an insertion. A breakpoint within the range is dropped, unless the lines themselves
    are given and its line is among the new ones unchanged.
    """
    growth = new_line_count - (end - start + 1)
    inside = _alignment(replaced, replacement)

    def follow(line: int) -> int | None:
        if line < start:
            return line
        if line > end:
            return line + growth
        offset = inside(line - start + 1)
        return None if offset is None else start - 1 + offset

    return _shift(breakpoints, path, follow)


def shift_for_change(breakpoints: Iterable[Breakpoint], path: str, old_text: str, new_text: str) -> Shifted:
    """Follow the change of ``path`` from ``old_text`` to ``new_text``; line endings do not count."""
    return _shift(breakpoints, path, _alignment(_bare_lines(old_text), _bare_lines(new_text)))


def _bare_lines(text: str) -> list[str]:
    return [line.rstrip("\r\n") for line in split_lines(text)]


def _alignment(before: Sequence[str], after: Sequence[str]) -> Callable[[int], int | None]:
    places = {
        block.a + offset + 1: block.b + offset + 1
        for block in LineMatcher(before, after).get_matching_blocks()
        for offset in range(block.size)
    }
    return places.get


def _shift(breakpoints: Iterable[Breakpoint], path: str, follow: Callable[[int], int | None]) -> Shifted:
    kept: list[Breakpoint] = []
    dropped: list[Breakpoint] = []
    for breakpoint_ in breakpoints:
        line = follow(breakpoint_.line) if breakpoint_.file == path else breakpoint_.line
        if line is None:
            dropped.append(breakpoint_)
        elif line == breakpoint_.line:
            kept.append(breakpoint_)
        else:
            kept.append(msgspec.structs.replace(breakpoint_, line=line))
    return tuple(kept), tuple(dropped)
