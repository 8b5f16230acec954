"""Debugging episodes: an agent debugs a Python repository in a sandbox.

::

    import dgym

    with dgym.RepoEnv(dgym.load("task.yaml")[0]) as env:
        observation, info = env.reset()
        observation, reward, terminated, truncated, info = env.step("pdb b calc.py:12")

Modules are imported when a name is first used, so that ``import dgym`` is fast.
"""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names

if TYPE_CHECKING:
    from dgym.api import DebugTask, Episode, EpisodeSet, SandboxPool, load
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
    "SandboxPool",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "connect",
    "load",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dgym.api": ("DebugTask", "Episode", "EpisodeSet", "SandboxPool", "load"),
        "dgym.env": ("AsyncRepoEnv", "RepoEnv", "connect"),
        "dgym.errors": ("DgymError",),
        "dgym.tools": ("Tool", "ToolContext", "ToolError", "ToolResult"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
