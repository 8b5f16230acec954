"""Reading a file."""

from typing import Annotated

from msgspec import Meta

from dgym.tools.base import Tool
from dgym.tools.context import ToolContext, ToolError, ToolResult, as_text
from dgym.tools.text import numbered, plural
from dgym.workspace import split_lines

_SHOWN_BYTES = 56 * 1024
"""What fits into an observation with its header; a longer file is cut at a line, and the answer says where."""


class View(Tool):
    """Show a file, or lines of it. Breakpoints are marked B; files that cannot be rewritten are marked read-only."""

    mutates = False
    examples = ("view calc.py", "view calc.py 1 40")

    async def use(
        self,
        context: ToolContext,
        path: str,
        start: Annotated[int, Meta(ge=1)] | None = None,
        end: Annotated[int, Meta(ge=1)] | None = None,
        include_line_numbers_and_breakpoints: bool = True,
    ) -> ToolResult:
        """Read.

        Args:
            context: The episode's files, breakpoints and sandbox.
            path: The file, relative to the workspace.
            start: First line; lines count from 1. Default: the first.
            end: Last line, itself shown. Default: the last.
            include_line_numbers_and_breakpoints: Whether lines are numbered and breakpoints marked.
        """
        resolved = await context.resolve(path)
        text = as_text(await context.read_resolved(resolved), resolved.shown)
        notices = await context.follow_edits()
        lines = [line.rstrip("\r\n") for line in split_lines(text)]
        first, last = _range(resolved.shown, start, end, len(lines))
        chosen = lines[first - 1 : last]
        if include_line_numbers_and_breakpoints:
            chosen = numbered(chosen, first, breakpoints=context.breakpoint_lines(resolved.path))
        chosen, cut = _fitting(chosen)
        marks = " (read-only)" if resolved.read_only else ""
        shown = f"lines {first} to {first + len(chosen) - 1} of {len(lines)}" if lines else "an empty file"
        if cut:
            notices = [f"{plural(cut, 'line')} more: view them from line {first + len(chosen)} on.", *notices]
        context.focus_file = resolved.path
        return ToolResult(
            text="\n".join([f"{resolved.shown}{marks}, {shown}:", *chosen, *notices]),
            breakpoints=context.breakpoints,
            focus_file=resolved.path,
        )


def _range(shown: str, start: int | None, end: int | None, count: int) -> tuple[int, int]:
    first, last = start or 1, count if end is None else min(end, count)
    if first > max(count, 1):
        raise ToolError(f"`start` is {first}, but `{shown}` has {plural(count, 'line')}.")
    if end is not None and end < first:
        raise ToolError(f"`end` is {end}, before `start`, which is {first}; give the first and the last line.")
    return first, last


def _fitting(lines: list[str]) -> tuple[list[str], int]:
    """As many lines as an observation holds, and how many are left out; a single huge line is shortened."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > _SHOWN_BYTES:
            kept = lines[:index] or [lines[0][: _SHOWN_BYTES // 4] + " [line cut]"]
            return kept, len(lines) - len(kept)
    return lines, 0
