"""Seeing which files there are."""

from typing import Annotated

from msgspec import Meta

from dgym.sandbox.protocol import FileStat
from dgym.tools.base import Tool, ToolError
from dgym.tools.context import ToolContext
from dgym.tools.text import plural

SHOWN_ENTRIES = 500
_HIDDEN = frozenset({".git", "__pycache__"})


class ListDir(Tool):
    """List a directory as a tree. Directories end with a slash; what cannot be rewritten is marked read-only."""

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
        entries = await visible_entries(context, resolved.path, depth)
        lines = [_line(context, resolved.path, entry) for entry in entries[:SHOWN_ENTRIES]]
        if not entries:
            lines = ["  (empty)"]
        if len(entries) > SHOWN_ENTRIES:
            lines.append(f"{plural(len(entries) - SHOWN_ENTRIES, 'entry')} more; list a directory below, or less deep.")
        marks = " (read-only)" if resolved.read_only else ""
        return "\n".join([f"{resolved.shown}/{marks}", *lines])


async def visible_entries(context: ToolContext, path: str, depth: int) -> list[FileStat]:
    """What a listing of ``path`` may show, each directory directly before what it holds."""
    entries = await context.sandbox.list_directory(path, depth=depth)
    shown = [
        entry
        for entry in entries
        if _HIDDEN.isdisjoint(entry.path.split("/"))
        and not entry.path.endswith((".pyc", ".pyo"))
        and context.visible(join(path, entry.path), entry)
    ]
    return sorted(shown, key=lambda entry: entry.path.split("/"))


def join(directory: str, name: str) -> str:
    """``name`` below ``directory``, relative to the workspace."""
    return name if directory == "." else f"{directory}/{name}"


def _line(context: ToolContext, directory: str, entry: FileStat) -> str:
    *above, name = entry.path.split("/")
    ending = {"directory": "/", "symlink": f" -> {entry.target}", "other": " (special file)"}.get(entry.type, "")
    is_directory = entry.type == "directory"
    mark = " (read-only)" if context.policy.read_only(join(directory, entry.path), is_directory) else ""
    return "  " * (len(above) + 1) + name + ending + mark
