"""The tool ``listdir``, which lists a directory."""

from typing import Annotated

from msgspec import Meta

from dgym.sandbox import FileStat
from dgym.tools._base import Tool
from dgym.tools._context import ToolContext, ToolError, plural

SHOWN_ENTRIES = 500


class ListDir(Tool):
    """List a directory as a tree. Directories end with a slash; files that cannot be rewritten are marked read-only."""

    name = "listdir"
    mutates = False
    examples = ("listdir", "listdir src 2")

    async def use(self, context: ToolContext, path: str = ".", depth: Annotated[int, Meta(ge=1, le=20)] = 1) -> str:
        """List.

        Args:
            context: The episode's files, breakpoints and sandbox.
            path: The directory, relative to the workspace.
            depth: How many levels are shown.
        """
        resolved = await context.resolve(path)
        if resolved.type != "directory":
            raise ToolError(f"`{resolved.shown}` is a file, not a directory; view shows its content.")
        listing = await context.list_visible(resolved.path, depth)
        above = 0 if resolved.path == "." else resolved.path.count("/") + 1
        entries = listing.entries[:SHOWN_ENTRIES]
        lines = [_line(context, path, entry, path.count("/") - above + 1) for path, entry in entries]
        more = len(listing.entries) - len(entries)
        if more:
            lines.append(f"{'' if listing.complete else 'At least '}{plural(more, 'entry')} more; list less at once.")
        marks = " (read-only)" if resolved.read_only else ""
        return "\n".join([f"{resolved.shown}/{marks}", *(lines or ["  (empty)"])])


def _line(context: ToolContext, path: str, entry: FileStat, level: int) -> str:
    ending = {"directory": "/", "symlink": f" -> {entry.target}", "other": " (special file)"}.get(entry.type, "")
    mark = " (read-only)" if context.policy.read_only(path, entry.type == "directory") else ""
    return "  " * level + path.rpartition("/")[2] + ending + mark
