"""Debugging episodes: one agent, one buggy Python repository, one sandbox.

::

    import dgym

    with dgym.RepoEnv(dgym.load("task.yaml")[0]) as env:
        observation, info = env.reset()
        observation, reward, terminated, truncated, info = env.step("pdb b calc.py:12")

Names are loaded on first use, so that ``import dgym`` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgym.api import DebugTask, Episode, EpisodeSet, load
    from dgym.env import AsyncRepoEnv, RepoEnv, connect
    from dgym.errors import DgymError
    from dgym.tools import Tool, ToolContext, ToolError, ToolResult

__version__ = "0.1.0"

__all__ = [
    "AsyncRepoEnv",
    "DebugTask",
    "DgymError",
    "Episode",
    "EpisodeSet",
    "RepoEnv",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "connect",
    "load",
]

_HOMES = {
    "AsyncRepoEnv": "dgym.env",
    "DebugTask": "dgym.api",
    "DgymError": "dgym.errors",
    "Episode": "dgym.api",
    "EpisodeSet": "dgym.api",
    "RepoEnv": "dgym.env",
    "Tool": "dgym.tools",
    "ToolContext": "dgym.tools",
    "ToolError": "dgym.tools",
    "ToolResult": "dgym.tools",
    "connect": "dgym.env",
    "load": "dgym.api",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dgym' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
