"""The tool ``bash``, a persistent shell in the sandbox."""

import signal
from typing import Annotated

from msgspec import Meta

from dgym.sandbox import RunResult
from dgym.tools._base import Tool
from dgym.tools._context import OUTPUT_BYTES, OutputBytes, ToolContext, ToolResult, cut_notice

_ADVICE = "write the output to a file and show parts of it, for example with sed -n 100,200p"


class Bash(Tool):
    """Run a command in bash. Directory, variables, functions and aliases persist between calls.

    Background jobs do not: they end with the call. Standard input is empty. Changes to read-only files do not count.
    """

    verbatim = "command"
    examples = ("bash python -m pytest -x -q tests/test_calc.py", "bash grep -rn TODO src | head")

    def __init__(self, *, output_bytes: OutputBytes = OUTPUT_BYTES) -> None:
        """Configure.

        Args:
            output_bytes: How much of a command's output is shown; more loses its middle.
        """
        self._output_bytes = output_bytes

    async def use(
        self,
        context: ToolContext,
        command: str,
        timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None,
    ) -> ToolResult:
        """Run.

        Args:
            context: The episode's files, breakpoints and sandbox.
            command: One or more lines of bash.
            timeout_seconds: When the command is stopped. Default: 30, unless the task has another value.
        """
        timeout = context.settings.bash_timeout_seconds if timeout_seconds is None else timeout_seconds
        run = await context.sandbox.shell(command, timeout_seconds=timeout, output_limit=self._output_bytes)
        notices = await context.follow_edits()
        output = run.text.rstrip("\n")
        cut = cut_notice(run.truncated_bytes, _ADVICE)
        parts = [output or "(no output)", cut, describe_end(run, timeout), *notices]
        return ToolResult(
            text="\n".join(part for part in parts if part),
            ok=run.ended_by == "exit",
            truncated_bytes=run.truncated_bytes,
            exit_status=run.exit_status,
            breakpoints=context.breakpoints,
        )


def describe_end(run: RunResult, timeout_seconds: float) -> str:
    """Return a sentence about how a command ended; empty if its exit status is 0."""
    if run.ended_by == "timeout":
        return f"Stopped after {timeout_seconds:g} s; the output until then is shown."
    if run.ended_by == "memory":
        return "Killed: it used more memory than the sandbox has."
    if run.exit_status is None:
        return "The command could not be started."
    if run.exit_status < 0:
        return f"Killed by {signal_name(-run.exit_status)}."
    return f"Exit status {run.exit_status}." if run.exit_status else ""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
