"""What a Gymnasium user sees of an episode: plain dictionaries that hold no times and no process ids. Pure."""

from typing import Any

import msgspec

from dgym.wire import Observation
from dgym.wire.episode import Episode

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


def info_view(episode: Episode, last: Observation | None) -> dict[str, Any]:
    """What surrounds the observation; see ``RepoEnv``."""
    result, state, toolset = episode.result, episode.state, episode.toolset
    score = result if result is not None else (last.score if last is not None else None)
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
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in toolset.tools
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
