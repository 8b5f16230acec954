"""The tool ``grep``, which searches the visible files.

The model's regular expression is executed in the sandbox with a timeout, because catastrophic backtracking must not
block the trusted side. The list of files is computed outside of the sandbox, by the policy, and passed in.
"""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dgym.sandbox import RunResult
from dgym.tools._base import Tool
from dgym.tools._context import ToolContext, ToolError, plural, require_file

TIMEOUT_SECONDS = 20.0
_DEPTH = 64


class _Match(msgspec.Struct, frozen=True):
    path: str
    line: int
    text: str


class _End(msgspec.Struct, frozen=True):
    """The last line of the report of a search.

    Attributes:
        error: The error in the pattern; empty if the pattern is valid.
        more: Whether more lines match than were reported.
        skipped: Number of files that were not searched.
    """

    error: str = ""
    more: bool = False
    skipped: int = 0


class Grep(Tool):
    """Search files with a Python regular expression, line by line. Binary files are skipped."""

    mutates = False
    examples = ("grep 'def .*total' src", r"grep 'cache\[' . 20")

    async def use(
        self,
        context: ToolContext,
        pattern: str,
        path: str = ".",
        max_results: Annotated[int, Meta(ge=1, le=500)] = 100,
    ) -> str:
        """Search.

        Args:
            context: The episode's files, breakpoints and sandbox.
            pattern: The regular expression; it begins with (?i) to ignore case.
            path: A file or directory, relative to the workspace.
            max_results: How many matching lines are shown.
        """
        if not pattern:
            raise ToolError("`pattern` is empty; give a regular expression.")
        paths, complete = await _searched(context, path)
        matches, end, timed_out = await _search(context, pattern, paths, max_results)
        if end.error:
            raise ToolError(f"The pattern is not a regular expression: {end.error}.")
        lines = [f"{match.path}:{match.line}: {match.text}" for match in matches]
        if timed_out:
            lines.append(
                f"The search was stopped after {TIMEOUT_SECONDS:g} s; simplify the pattern or narrow the path."
            )
        elif not matches:
            lines.append(f"No line matches in {plural(len(paths), 'file')}.")
        elif end.more:
            lines.append(f"Only the first {plural(len(matches), 'match')} shown.")
        if not complete:
            lines.append(f"Only {plural(len(paths), 'file')} were searched; there are more: narrow the path.")
        if end.skipped:
            lines.append(f"{plural(end.skipped, 'file')} skipped: binary, very large or unreadable.")
        return "\n".join(lines)


async def _searched(context: ToolContext, path: str) -> tuple[list[str], bool]:
    """Return the visible files below ``path``, and whether the list is complete."""
    resolved = await context.resolve(path)
    if resolved.type == "directory":
        listing = await context.list_visible(resolved.path, _DEPTH)
        return [path for path, entry in listing.entries if entry.type == "file"], listing.complete
    require_file(resolved)
    return [resolved.path], True


async def _search(
    context: ToolContext, pattern: str, paths: list[str], max_results: int
) -> tuple[list[_Match], _End, bool]:
    question = json.dumps({"pattern": pattern, "paths": paths, "max_results": max_results})
    run = await context.sandbox.run(
        [context.settings.interpreter, "-I", "-S", "-c", _script()],
        stdin=question.encode(),
        timeout_seconds=TIMEOUT_SECONDS,
        output_limit=4096,
        report=True,
    )
    matches, end = _read(run.report, max_results)
    timed_out = run.ended_by == "timeout"
    if end is None and not timed_out:
        raise ToolError(f"The search could not run.{_describe_failure(run)}")
    return matches, end or _End(), timed_out


def _read(report: bytes, max_results: int) -> tuple[list[_Match], _End | None]:
    """Decode the report of the search. Invalid lines are skipped: the last one may be incomplete after a timeout."""
    matches: list[_Match] = []
    end: _End | None = None
    for line in report.splitlines():
        try:
            entry: Any = json.loads(line)
            if isinstance(entry, list):
                matches.append(_Match(*msgspec.convert(entry, tuple[str, int, str])))
            else:
                end = msgspec.convert(entry, _End)
        except (ValueError, RecursionError):
            continue
    return matches[:max_results], end


def _describe_failure(run: RunResult) -> str:
    return f" {run.text.strip()[-500:]}" if run.text.strip() else f" It ended by {run.ended_by}."


@cache
def _script() -> str:
    return Path(__file__).with_name("search_script.py").read_text(encoding="utf-8")
