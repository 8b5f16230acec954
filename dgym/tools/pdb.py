"""The debugger, as an agent sees it.

The debugger itself runs in the sandbox; this file hands it the session's breakpoints and writes its structured answer
in a form that a model reads easily.
"""

from typing import Annotated

from msgspec import Meta

from dgym.sandbox.protocol import DebugRequest, DebugResult
from dgym.tools.base import Tool, ToolResult
from dgym.tools.bash import signal_name
from dgym.tools.context import ToolContext
from dgym.tools.text import numbered

_OUTPUT_BYTES = 28 * 1024
"""For each of the debugger's and the program's output: both and the source fit into one observation."""

_LISTING = frozenset({"l", "list", "ll", "longlist", "source"})


class Pdb(Tool):
    """Debug the program with Python's pdb; the first command starts it and waits before its first line.

    All commands of pdb work but interact, debug and source: b, tbreak, cl, condition, ignore, commands, n, s, c, r,
    unt, j, u, d, w, l, ll, a, p, pp, whatis, display and !statement. Set breakpoints, then continue to them.
    Breakpoints stay when the program ends or is restarted and follow their line when files change. After the
    program's end, `q`, `run` or a change of a file the next command starts the program again.
    """

    verbatim = "command"
    examples = ("pdb b calc.py:12, total > 10", "pdb c", "pdb p items[:3], total")

    def __init__(
        self,
        *,
        persistent_breakpoints: bool | None = None,
        auto_list: bool = True,
        after_rewrites: Annotated[int, Meta(ge=0)] = 0,
    ) -> None:
        self._persistent = persistent_breakpoints
        self._auto_list = auto_list
        self.after_rewrites = after_rewrites

    async def use(self, context: ToolContext, command: str, entrypoint: str | None = None) -> ToolResult:
        """Debug.

        Args:
            context: The episode's files, breakpoints and sandbox.
            command: One pdb command, or a statement of one or more lines.
            entrypoint: What to debug instead of the task's own, such as `python -m pytest tests/test_calc.py -k total`
                or `python main.py`. Another one than before restarts the program; without it, the last one stays.
        """
        notices = await context.follow_edits()
        result = await context.sandbox.debug(self._request(context, command, entrypoint))
        if not result.refused:
            await context.table.replace(result.breakpoints)
        if self._forgets(context) and result.state != "stopped" and result.breakpoints:
            context.table.clear()
            notices.append("The breakpoints were cleared with the program's end.")
        listed = command.split(maxsplit=1)[0] in _LISTING if command.strip() else False
        text = render(result, context.settings.pdb_timeout_seconds, source=self._auto_list and not listed)
        return ToolResult(
            text="\n\n".join([text, *notices]),
            ok=not result.refused,
            truncated_bytes=result.truncated_bytes,
            exit_status=result.exit_status,
            frame=result.frame,
            breakpoints=context.breakpoints,
        )

    async def on_rewrite(self, context: ToolContext, path: str) -> str | None:  # noqa: ARG002 - any file counts
        """Without persistent breakpoints a rewrite is the end of them."""
        if self._forgets(context) and context.breakpoints:
            context.table.clear()
            return "The breakpoints were cleared by the change."
        return None

    def _forgets(self, context: ToolContext) -> bool:
        persistent = context.settings.persistent_breakpoints if self._persistent is None else self._persistent
        return not persistent

    def _request(self, context: ToolContext, command: str, entrypoint: str | None) -> DebugRequest:
        settings = context.settings
        if entrypoint is not None:
            context.debugged = entrypoint
        return DebugRequest(
            command=command,
            entrypoint=context.debugged or settings.debug_entrypoint or settings.entrypoint,
            breakpoints=context.breakpoints,
            timeout_seconds=settings.pdb_timeout_seconds,
            output_limit=_OUTPUT_BYTES,
        )


def render(result: DebugResult, timeout_seconds: float, *, source: bool = True) -> str:
    """The answer as text: what pdb said, what the program wrote, where it stands, what to know."""
    parts = [result.output.rstrip("\n")]
    if result.program_output:
        parts.append("Program output:\n" + result.program_output.rstrip("\n"))
    if result.interrupted:
        parts.append(f"Interrupted: the command ran longer than {timeout_seconds:g} s.")
    if not result.refused:
        parts.append(_where(result, source=source))
    parts.append("\n".join(result.notices))
    return "\n\n".join(part for part in parts if part.strip("\n"))


def _where(result: DebugResult, *, source: bool) -> str:
    frame = result.frame
    if result.state == "stopped" and frame is not None:
        place = f"At {frame.file}:{frame.line} in {frame.function}"
        if not (source and result.source):
            return place
        marked = {point.line for point in result.breakpoints if point.file == frame.file}
        lines = numbered(result.source, result.source_start, breakpoints=marked, current=frame.line)
        return "\n".join([f"{place}:", *lines])
    return _end(result)


def _end(result: DebugResult) -> str:
    status = result.exit_status
    again = "The next command starts it again."
    if result.state == "idle":
        return f"No program runs. {again}"
    if result.state == "killed" or (status is not None and status < 0):
        how = f" by {signal_name(-status)}" if status is not None and status < 0 else ""
        return f"The program was killed{how}. {again}"
    if result.state == "ended":
        with_status = "" if status is None else f" with exit status {status}"
        return f"The program ended{with_status}. {again}"
    return ""
