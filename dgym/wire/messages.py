"""Calls of tools, observations, and positions in a program."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgym.wire.outcome import EndReason

ACTION_LIMIT = 1024**2
"""Maximum number of bytes of one action as JSON. A sidecar accepts bodies of twice that size."""

DEPTH_LIMIT = 200
"""Maximum number of levels of lists and objects in one action. Every supported Python can parse that many levels."""

OBSERVATION_LIMIT = 64 * 1024
"""Maximum number of bytes of text in one observation. The middle of a longer text is removed and replaced by a mark."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The position at which a program is stopped.

    ``file`` is relative to the workspace if it is inside of it, else absolute.
    """

    file: str
    line: int
    function: str


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A breakpoint. Its number is valid for the whole session: restarts and edits do not change it.

    ``file`` is relative to the workspace if it is inside of it, else absolute. ``line`` counts from 1. ``ignore_count``
    is the count as it was set, not the rest of it. ``hits`` counts over all restarts.
    """

    number: int
    file: str
    line: int
    condition: str | None = None
    ignore_count: int = 0
    hits: int = 0
    enabled: bool = True
    temporary: bool = False


_TOO_DEEP = f"The action is nested too deeply; it can have at most {DEPTH_LIMIT} levels."


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One action: a tool and its arguments. Two calls are equal if both parts are equal."""

    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @classmethod
    def invalid(cls, problem: str) -> "ToolCall":
        """Return the record of an invalid call of a model. The observation of its step is ``problem``."""
        return cls(tool="", arguments={"problem": problem})

    @classmethod
    def unread(cls, action: Any) -> "ToolCall":
        """Return the record of an action that is not a call."""
        return cls(tool="", arguments={"action": action})


def checked_action(action: Any) -> Any:
    """Return ``action`` or, if it is too large, too deep or not Unicode, a call that records the problem.

    A driver checks the actions that it sends, and a sidecar those that it receives.
    """
    problem = _problem(action)
    return action if problem is None else ToolCall.invalid(problem)


def _problem(action: Any) -> str | None:
    try:
        size = len(msgspec.json.encode(action, enc_hook=repr))
    except UnicodeEncodeError:
        return "The action contains half of a surrogate pair; it must be valid Unicode text."
    except RecursionError:
        return _TOO_DEEP
    if size > ACTION_LIMIT:
        return f"The action has {size:,} bytes as JSON; it can have at most {ACTION_LIMIT:,}."
    value = action.arguments if isinstance(action, ToolCall) else action
    return _TOO_DEEP if _is_nested_deeper(value, DEPTH_LIMIT) else None


def _is_nested_deeper(value: Any, levels: int) -> bool:
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return levels < 0 or any(_is_nested_deeper(child, levels - 1) for child in children)


class Score(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``score`` of ``max_score`` tests passed.

    With scoring by exit status, ``score`` is 0 or 1 and ``max_score`` is 1.
    """

    score: int
    max_score: int

    @property
    def resolved(self) -> bool:
        """Whether at least one test counted and every counted test passed."""
        return self.score == self.max_score >= 1


class Observation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer of a tool. ``text`` is for the model. The other fields contain the same in a structured form.

    Attributes:
        text: The text for the model, at most 64 KiB.
        tool: The tool that answered; ``reset`` for the first observation.
        ok: False if the tool could not execute the call.
        truncated_bytes: Number of bytes that were cut from the middle of ``text``.
        duration_seconds: Wall-clock time of the call.
        exit_status: Exit status of the command or program; negative: the signal that ended it.
        frame: The position at which the program is stopped: ``file``, ``line`` and ``function``.
        breakpoints: The breakpoints: ``number``, ``file``, ``line``, ``condition``, ``ignoreCount``, ``hits``,
            ``enabled`` and ``temporary``.
        diff: Diff of a rewrite.
        score: ``score`` and ``maxScore`` of an ``eval``.
        focus_file: The file that the call changed, or showed as a whole.
        end_reason: Why the episode ended, on its last observation.
        notes: How a replay before this call differed from the trajectory.
        workspace_digest: SHA-256 of all changes of the workspace since the reset; empty where it was not taken.
    """

    text: str
    tool: str = ""
    ok: bool = True
    truncated_bytes: int = 0
    duration_seconds: float = 0.0
    exit_status: int | None = None
    frame: Frame | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    diff: str | None = None
    score: Score | None = None
    focus_file: str | None = None
    end_reason: EndReason | None = None
    notes: tuple[str, ...] = ()
    workspace_digest: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of an episode's trajectory.

    Attributes:
        seq: 0 for the reset, then 1, 2, ... without a gap.
        call: The call, also if the tool refused it. None for the reset. Its ``tool`` is empty if the reply could not be
            read as a call.
        observation: The observation that the agent received.
    """

    seq: int
    call: ToolCall | None
    observation: Observation

    @property
    def shown_tool(self) -> str:
        """The tool for messages: ``reset`` for the reset, ``no call`` if the reply could not be read as a call."""
        return "reset" if self.call is None else self.call.tool or "no call"
