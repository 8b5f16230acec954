"""The tool ``rewrite``, which replaces lines of a file or a whole file."""

import re
from typing import Annotated, Any

from msgspec import Meta

from dgym.errors import EditError
from dgym.tools._base import Tool
from dgym.tools._context import Resolved, ToolContext, ToolError, ToolResult, require_file, split_words
from dgym.workspace import decode_text, line_count, resolve_span, rewrite_text
from dgym.workspace.patches import unified_diff

_RANGE = re.compile(r"\A(\d{1,9})(?::(\d{1,9}))?\Z")
_USAGE = "The text form is: rewrite PATH START:END <c>new code</c>, or without START:END for the whole file."


class Rewrite(Tool):
    """Replace lines of a file, insert lines, replace a whole file or make a new one.

    With `start` and `end` those lines are replaced (both included); with `start` alone, that line; with neither, the
    whole file. `end` = `start` - 1 inserts before `start`; `start` = last line + 1 appends. Everything else in the
    file stays as it is. The answer is the difference.
    """

    examples = (
        "rewrite calc.py 3:5 <c>    return sum(items)</c>",
        "rewrite notes/new.py <c>print('hello')</c>",
    )

    async def use(
        self,
        context: ToolContext,
        path: str,
        start: Annotated[int, Meta(ge=1)] | None = None,
        end: Annotated[int, Meta(ge=0)] | None = None,
        *,
        new_code: str,
    ) -> ToolResult:
        """Rewrite.

        Args:
            context: The episode's files, breakpoints and sandbox.
            path: The file, relative to the workspace; missing directories are made.
            start: First line to replace; lines count from 1.
            end: Last line to replace.
            new_code: The new text, with its indentation; empty to delete the lines.
        """
        notices = await context.follow_edits()
        resolved = await context.resolve(path, for_writing=True, must_exist=False)
        old = await _old_content(context, resolved, start, end)
        new = _edited(resolved.shown, old, start, end, new_code)
        if new == old and resolved.exists:
            raise ToolError(f"`{resolved.shown}` already has this text; nothing was changed.")
        await context.write_resolved(resolved, new)
        span = resolve_span(line_count(old), start, end)
        moved = await context.table.follow_rewrite(resolved.path, span, decode_text(old), new_code)
        context.focus_file = resolved.path
        diff = unified_diff(resolved.shown, old, new)
        return ToolResult(
            text="\n".join([_summary(resolved), diff.rstrip("\n"), *notices, *moved]),
            breakpoints=context.breakpoints,
            diff=diff,
            focus_file=resolved.path,
            rewrote=True,
        )

    def parse_text(self, rest: str) -> dict[str, Any]:
        """Parse ``PATH [START[:END]] <c>new code</c>``. A line break directly after ``<c>`` is not part of the code."""
        head, opened, code = rest.partition("<c>")
        code = code.rstrip()
        if not opened or not code.endswith("</c>"):
            raise ToolError(f"rewrite: the new code must stand between <c> and </c>. {_USAGE}")
        try:
            words = split_words(head)
        except ValueError as error:
            raise ToolError(f"rewrite: {error} {_USAGE}") from None
        lines = _RANGE.match(words[1]) if len(words) == 2 else None
        if not words or len(words) > 2 or (len(words) == 2 and lines is None):
            raise ToolError(f"rewrite: a path and optionally a range such as 3:5 must precede <c>. {_USAGE}")
        code = code.removesuffix("</c>").removeprefix("\r\n" if code.startswith("\r\n") else "\n")
        arguments: dict[str, Any] = {"path": words[0], "new_code": code}
        if lines is not None:
            arguments["start"] = int(lines[1])
            if lines[2] is not None:
                arguments["end"] = int(lines[2])
        return arguments


async def _old_content(context: ToolContext, resolved: Resolved, start: int | None, end: int | None) -> bytes:
    if resolved.exists:
        require_file(resolved)
        return await context.read_resolved(resolved)
    if end is not None or start not in (None, 1):
        raise ToolError(f"`{resolved.shown}` does not exist; leave `start` and `end` out to make it.")
    return b""


def _edited(shown: str, old: bytes, start: int | None, end: int | None, new_code: str) -> bytes:
    try:
        return rewrite_text(old, start, end, new_code)
    except EditError as error:
        raise ToolError(f"`{shown}` was not changed: {error}.") from None


def _summary(resolved: Resolved) -> str:
    return f"{'Rewrote' if resolved.exists else 'Created'} {resolved.shown}."
