"""The tool ``view``, which shows a file."""

from typing import Annotated

from msgspec import Meta

from dgym.tools._base import Tool
from dgym.tools._context import (
    OUTPUT_BYTES,
    OutputBytes,
    ToolContext,
    ToolError,
    ToolResult,
    as_text,
    numbered,
    plural,
)
from dgym.workspace import split_lines


class View(Tool):
    """Show a file, or lines of it. Files that cannot be rewritten are marked read-only."""

    mutates = False
    examples = ("view calc.py", "view calc.py 1 40")

    def __init__(self, *, output_bytes: OutputBytes = OUTPUT_BYTES) -> None:
        """Configure.

        Args:
            output_bytes: How much of a file is shown at once; more loses its middle.
        """
        self._output_bytes = output_bytes

    async def use(
        self,
        context: ToolContext,
        path: str,
        start: Annotated[int, Meta(ge=1)] | None = None,
        end: Annotated[int, Meta(ge=1)] | None = None,
        include_line_numbers: bool = True,
    ) -> ToolResult:
        """Read.

        Args:
            context: The episode's files, breakpoints and sandbox.
            path: The file, relative to the workspace.
            start: First line; lines count from 1. Default: the first.
            end: Last line, itself shown. Default: the last.
            include_line_numbers: Whether lines are numbered.
        """
        resolved = await context.resolve(path)
        text = as_text(await context.read_resolved(resolved), resolved.shown)
        notices = await context.follow_edits()
        lines = [line.rstrip("\r\n") for line in split_lines(text)]
        first, last = _range(resolved.shown, start, end, len(lines))
        chosen = lines[first - 1 : last]
        if include_line_numbers:
            chosen = numbered(chosen, first, breakpoints=context.breakpoint_lines(resolved.path))
        shown = f"lines {first} to {last} of {len(lines)}" if lines else "an empty file"
        marks = " (read-only)" if resolved.read_only else ""
        chosen, cut = _fitting(chosen, first, self._output_bytes)
        focus = resolved.path if start is None and end is None else None
        context.focus_file = focus or context.focus_file
        return ToolResult(
            text="\n".join([f"{resolved.shown}{marks}, {shown}:", *chosen, *notices]),
            truncated_bytes=cut,
            breakpoints=context.breakpoints,
            focus_file=focus,
        )


def _range(shown: str, start: int | None, end: int | None, count: int) -> tuple[int, int]:
    first, last = start or 1, count if end is None else min(end, count)
    if first > max(count, 1):
        raise ToolError(f"`start` is {first}, but `{shown}` has {plural(count, 'line')}.")
    if end is not None and end < first:
        raise ToolError(f"`end` is {end}, before `start`, which is {first}; give the first and the last line.")
    return first, last


def _fitting(lines: list[str], first: int, limit: int) -> tuple[list[str], int]:
    """Shorten the lines to ``limit`` bytes.

    The first and the last lines are kept. A line between them shows the range that is left out. A line that is
    longer than a quarter of ``limit`` is cut at its end.

    Returns:
        The lines, and the number of bytes that were removed.
    """
    whole = sum(map(_size, lines))
    if whole <= limit:
        return lines, 0
    lines = [line if _size(line) <= limit // 4 else f"{_start(line, limit // 4)} [line cut]" for line in lines]
    shown = sum(map(_size, lines))
    if shown <= limit:
        return lines, max(whole - shown, 0)
    head = _count_within(lines, limit // 2)
    tail = _count_within(lines[:head:-1], limit - sum(map(_size, lines[:head])))
    kept = lines[:head] + lines[len(lines) - tail :]
    cut = whole - sum(map(_size, kept))
    kept.insert(
        head, f"[... lines {first + head} to {first + len(lines) - tail - 1} are not shown: view that range ...]"
    )
    return kept, cut


def _size(line: str) -> int:
    return len(line.encode("utf-8", "replace")) + 1


def _start(line: str, size: int) -> str:
    return line.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _count_within(lines: list[str], limit: int) -> int:
    size = 0
    for index, line in enumerate(lines):
        size += _size(line)
        if size > limit:
            return index
    return len(lines)
