"""What a Gymnasium user sees of an episode: plain dictionaries that hold no times and no process ids. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgym.env.driver import EpisodeView
from dgym.tools import Tool
from dgym.wire import Observation, Result

_RUN_DEPENDENT = frozenset({"duration_seconds"})


def observation_view(observation: Observation) -> dict[str, Any]:
    """The observation as a dictionary with snake_case keys; ``text`` is what a model reads.

    Keys: text, tool, ok, truncated_bytes, exit_status, frame, breakpoints, diff, score, focus_file, end_reason.
    """
    view = {
        name: _plain(getattr(observation, name)) for name in observation.__struct_fields__ if name not in _RUN_DEPENDENT
    }
    view["end_reason"] = observation.end_reason.value if observation.end_reason is not None else None
    return view


def info_view(episode: EpisodeView, last: Observation | None, result: Result | None) -> dict[str, Any]:
    """What surrounds the observation; see ``RepoEnv``."""
    score = result if result is not None else (last.score if last is not None else None)
    return {
        "resolved": result.resolved if result is not None else False,
        "score": score.score if score is not None else None,
        "max_score": score.max_score if score is not None else None,
        "steps": episode.steps,
        "rewrites": episode.rewrites,
        "reason": result.reason.value if result is not None else None,
        "evaluation": episode.evaluation,
        "breakpoints": _plain(episode.breakpoints),
        "focus_file": episode.focus_file,
        "notices": list(episode.notices),
        "instructions": dict(episode.instructions),
        "tools": list(episode.tools),
    }


def instructions(task: str, tools: Mapping[str, Tool]) -> dict[str, str]:
    """The task's instructions under ``task``, each tool's under its name."""
    return {"task": task, **{name: tool.instructions for name, tool in tools.items()}}


def schema(tool: Tool) -> dict[str, Any]:
    """The tool as function-calling APIs take it."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
