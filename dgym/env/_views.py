"""The dictionaries that environments return: observations and infos. Pure functions.

The dictionaries have only plain values, without times and process ids.
"""

from typing import Any, NotRequired, TypedDict

import msgspec

from dgym.sandbox import RunResult
from dgym.wire import Observation
from dgym.wire.episode import EpisodeHandle
from dgym.wire.http import ToolsResponse


class FrameDict(TypedDict):
    """The current position of the debugged program."""

    file: str
    line: int
    function: str


class BreakpointDict(TypedDict):
    """A breakpoint with the number and the counts of pdb."""

    number: int
    file: str
    line: int
    condition: str | None
    ignore_count: int
    hits: int
    enabled: bool
    temporary: bool


class ScoreDict(TypedDict):
    """``score`` of ``max_score`` tests passed."""

    score: int
    max_score: int


class ObservationDict(TypedDict):
    """The result of a tool. ``text`` is the text for a model. Parts that an observation does not have are None.

    ``truncated_bytes`` were cut from the middle of ``text``. A negative ``exit_status`` is the signal that ended the
    program. ``end_reason`` is set in the observation that ends the episode.
    """

    text: str
    tool: str
    ok: bool
    truncated_bytes: int
    exit_status: int | None
    frame: FrameDict | None
    breakpoints: list[BreakpointDict] | None
    diff: str | None
    score: ScoreDict | None
    focus_file: str | None
    end_reason: str | None


class CommandDict(TypedDict):
    """The result of a command of ``RepoEnv.run``.

    ``text`` is the output, from whose middle ``truncated_bytes`` were cut. A negative ``exit_status`` is the signal
    that ended the command.
    """

    text: str
    truncated_bytes: int
    exit_status: int | None
    timed_out: bool


class ToolDict(TypedDict):
    """A tool in the format of function-calling APIs. ``parameters`` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class InfoDict(TypedDict):
    """The state of the episode after an observation.

    ``score`` and ``max_score`` are those of the final scoring, before that those of the observation, or None.
    ``instructions`` has the task's instructions under ``task`` and each tool's under its name. ``notices`` are the
    texts of tools that became available. ``evaluation`` is the last output of the task's tests. ``tools`` is only
    present after ``reset``, and after a step that changes the available tools.
    """

    resolved: bool
    score: int | None
    max_score: int | None
    steps: int
    rewrites: int
    reason: str | None
    evaluation: str | None
    breakpoints: list[BreakpointDict]
    focus_file: str | None
    notices: list[str]
    instructions: dict[str, str]
    tools: NotRequired[list[ToolDict]]


def command_view(result: RunResult) -> CommandDict:
    """The result of a command as a dictionary."""
    return {
        "text": result.text,
        "truncated_bytes": result.truncated_bytes,
        "exit_status": result.exit_status,
        "timed_out": result.ended_by == "timeout",
    }


def observation_view(observation: Observation) -> ObservationDict:
    """The observation as a dictionary."""
    end_reason = observation.end_reason
    return {
        "text": observation.text,
        "tool": observation.tool,
        "ok": observation.ok,
        "truncated_bytes": observation.truncated_bytes,
        "exit_status": observation.exit_status,
        "frame": _plain(observation.frame),
        "breakpoints": _plain(observation.breakpoints),
        "diff": observation.diff,
        "score": _plain(observation.score),
        "focus_file": observation.focus_file,
        "end_reason": end_reason.value if end_reason is not None else None,
    }


def info_view(episode: EpisodeHandle, last: Observation) -> InfoDict:
    """The info for ``last``, the last observation of ``episode``, without the tools."""
    result, state, toolset = episode.result, episode.state, episode.toolset
    score = result if result is not None else last.score
    return {
        "resolved": result.resolved if result is not None else False,
        "score": score.score if score is not None else None,
        "max_score": score.max_score if score is not None else None,
        "steps": state.steps,
        "rewrites": state.rewrites,
        "reason": result.reason.value if result is not None else None,
        "evaluation": state.evaluation,
        "breakpoints": _plain(state.breakpoints),
        "focus_file": state.focus_file,
        "notices": list(toolset.notices),
        "instructions": {"task": toolset.instructions, **{tool.name: tool.instructions for tool in toolset.tools}},
    }


def tools_view(toolset: ToolsResponse) -> list[ToolDict]:
    """The tools that are available now."""
    return [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in toolset.tools
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
