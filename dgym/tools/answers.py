"""Answers of a tool: a result, or an error that the model can correct."""

import msgspec

from dgym.wire import Breakpoint, Frame, Score


class ToolError(Exception):
    """The tool cannot do what was asked; the message tells the model what was wrong and what is valid."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer with structured fields beside its text.

    ``rewrote`` counts against ``maxRewrites`` and fires ``on_rewrite`` with ``focus_file``; ``submitted`` ends the
    episode; ``evaluation`` is what the task's tests said, for agents that keep it in view. The other fields go into
    the observation under the same name.
    """

    text: str
    ok: bool = True
    truncated_bytes: int = 0
    exit_status: int | None = None
    frame: Frame | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    diff: str | None = None
    score: Score | None = None
    focus_file: str | None = None
    rewrote: bool = False
    submitted: bool = False
    evaluation: str | None = None
