"""The tool ``pdb``.

The debugger runs in the sandbox. This module sends it the command and the session's breakpoints, and renders its
structured result as text for the model.
"""

from typing import Annotated

from msgspec import Meta

from dgym.sandbox import DebugRequest, DebugResult, without_escapes
from dgym.tools._base import Tool
from dgym.tools._context import OUTPUT_BYTES, OutputBytes, ToolContext, ToolResult, cut_notice, numbered
from dgym.tools.bash import signal_name

_ADVICE = "print parts of a value, or run less of the program, to see the rest"

_LISTING = frozenset({"l", "list", "ll", "longlist", "source"})


class Pdb(Tool):
    """Debug the program with Python's pdb; the first command starts it and waits before its first line.

    All commands of pdb work but interact, debug and source: b, tbreak, cl, condition, ignore, commands, n, s, c, r,
    unt, j, u, d, w, l, ll, a, p, pp, whatis, display and !statement. Set breakpoints, then continue to them.
    Breakpoints stay when the program ends or is restarted and follow their line when files change. After the
    program's end, `q`, `run` or a change of a file the next command starts the program again. A command is interrupted
    after 60 s by default. The entrypoint `python -m pytest --pdb tests` stops where a test fails. Child processes run
    without the debugger: give their command as the entrypoint.
    """

    verbatim = "command"
    examples = ("pdb b calc.py:12, total > 10", "pdb b 'two words.py':3", "pdb c", "pdb p items[:3], total")

    def __init__(
        self,
        *,
        persistent_breakpoints: bool = True,
        auto_list: bool = True,
        after_rewrites: Annotated[int, Meta(ge=0)] = 0,
        timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None,
        output_bytes: OutputBytes = OUTPUT_BYTES,
    ) -> None:
        """Configure.

        Args:
            persistent_breakpoints: Whether breakpoints outlive the program's end and changes of files.
            auto_list: Whether source lines are shown where the program stops at another place than before.
            after_rewrites: Successful rewrites before the tool becomes available.
            timeout_seconds: When a command is interrupted. Default: 60.
            output_bytes: How much of the debugger's and the program's output is shown; more loses its middle.
        """
        self._persistent = persistent_breakpoints
        self._auto_list = auto_list
        self.after_rewrites = after_rewrites
        self._timeout_seconds = timeout_seconds
        self._output_bytes = output_bytes

    async def use(
        self,
        context: ToolContext,
        command: str,
        entrypoint: str | None = None,
        stdin: Annotated[str, Meta(max_length=1_000_000)] | None = None,
    ) -> ToolResult:
        """Debug.

        Args:
            context: The episode's files, breakpoints and sandbox.
            command: One pdb command, or a statement of one or more lines.
            entrypoint: Command to debug instead of the task's, such as `python -m pytest tests/test_calc.py -k total`,
                `python main.py` or `python main.py < input.txt`. Another command than before restarts the program;
                without it, the last command stays. A refused command changes nothing.
            stdin: Standard input of the program. Another text than before restarts the program; without
                it, the last text stays. Default: empty.
        """
        notices = await context.follow_edits()
        listed = command.split(maxsplit=1)[0] in _LISTING if command.strip() else False
        request = self._request(context, command, entrypoint, stdin, listing=self._auto_list and not listed)
        result = await context.sandbox.debug(request)
        if not result.refused:
            context.debugged = context.debugged if entrypoint is None else entrypoint
            context.debugged_stdin = context.debugged_stdin if stdin is None else stdin
            await context.table.replace(result.breakpoints)
        if not self._persistent and result.state != "stopped" and result.breakpoints:
            context.table.clear()
            notices.append("The breakpoints were cleared with the program's end.")
        text = render(result, request.timeout_seconds, source=request.listing)
        return ToolResult(
            text="\n\n".join([text, *notices]),
            ok=not (result.refused or result.failed),
            truncated_bytes=result.truncated_bytes,
            exit_status=result.exit_status,
            frame=result.frame,
            breakpoints=context.breakpoints,
        )

    async def on_rewrite(self, context: ToolContext, path: str) -> str | None:  # noqa: ARG002 - any file counts
        """Clear the breakpoints, unless they are persistent."""
        if not self._persistent and context.breakpoints:
            context.table.clear()
            return "The breakpoints were cleared by the change."
        return None

    def _request(
        self, context: ToolContext, command: str, entrypoint: str | None, stdin: str | None, *, listing: bool
    ) -> DebugRequest:
        settings = context.settings
        debugged = context.debugged if entrypoint is None else entrypoint
        text = context.debugged_stdin if stdin is None else stdin
        return DebugRequest(
            command=command,
            entrypoint=debugged or settings.debug_entrypoint or settings.entrypoint,
            stdin=text.encode(),
            breakpoints=context.breakpoints,
            timeout_seconds=self._timeout_seconds or settings.pdb_timeout_seconds,
            output_limit=self._output_bytes,
            listing=listing,
        )


def render(result: DebugResult, timeout_seconds: float, *, source: bool = True) -> str:
    """Render a result as text: output of pdb, output of the program, current line, notices."""
    parts = [without_escapes(result.output).rstrip("\n")]
    program_output = without_escapes(result.program_output).rstrip("\n")
    if program_output:
        parts.append(f"Program output:\n{program_output}")
    if result.interrupted:
        parts.append(f"Interrupted: the command ran longer than {timeout_seconds:g} s.")
    if not result.refused:
        parts.append(_describe_position(result, source=source))
    parts.append(cut_notice(result.truncated_bytes, _ADVICE))
    parts.append("\n".join(result.notices))
    return "\n\n".join(part for part in parts if part.strip("\n"))


def _describe_position(result: DebugResult, *, source: bool) -> str:
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
