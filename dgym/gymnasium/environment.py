"""``GymnasiumRepoEnv``: ``RepoEnv`` as a subclass of ``gymnasium.Env`` with spaces."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import gymnasium
import msgspec
from gymnasium import spaces

from dgym.api import DebugTask, ToolSpec
from dgym.env import DEFAULT_TOOLS, InfoDict, ObservationDict, RepoEnv, check_choice, open_task
from dgym.gymnasium.spaces import JsonValue, ToolCalls, UnicodeText
from dgym.sandbox import EngineName, SandboxKind
from dgym.session import bounded
from dgym.tools import Tool, load_tools
from dgym.wire import EndReason, Result

_BREAKPOINT = {
    "number": 1,
    "file": "calc.py",
    "line": 2,
    "condition": "a > 1",
    "ignore_count": 0,
    "hits": 1,
    "enabled": True,
    "temporary": False,
}
_EXAMPLES: dict[str, tuple[Any, ...]] = {
    "ok": (True, False),
    "truncated_bytes": (0, 4096),
    "exit_status": (None, 0, 1, -9),
    "frame": (None, {"file": "calc.py", "line": 2, "function": "add"}),
    "breakpoints": (None, [], [_BREAKPOINT], [{**_BREAKPOINT, "condition": None, "temporary": True}]),
    "diff": (None, "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a\n+b\n"),
    "score": (None, {"score": 1, "max_score": 3}),
    "focus_file": (None, "calc.py", "src/größe.py"),
    "end_reason": (None, *(reason.value for reason in EndReason if reason.is_verdict)),
}
"""Examples of an observation's parts: the samples of its space."""


class GymnasiumRepoEnv(gymnasium.Env[dict[str, Any], Any]):
    """One repository with a bug, as ``gymnasium.make("dgym/Repo-v0", task=…)`` makes it.

    Observations are those of ``RepoEnv``: a part that an observation does not have is None, and its space holds None
    too. The one difference is that a diff is bounded as the text is. ``info`` is that of ``RepoEnv`` without the keys
    whose value is None, as vector environments want it.

    Args:
        task: A ``DebugTask``, the path of a manifest with one DebugTask or one Episode, or the name of a bundled task.
        actions: What ``action_space`` holds: "calls" of tools or "texts". ``step`` takes both in any case.

    The other arguments are those of ``RepoEnv``.

    Attributes:
        repo: The ``RepoEnv`` inside, for ``patch()``, ``history()`` and ``result``.
    """

    # Frames a second mean nothing here, but Gymnasium's check asks for them.
    metadata: ClassVar[dict[str, Any]] = {**RepoEnv.metadata, "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self,
        task: DebugTask | str | Path,
        *,
        tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool] = DEFAULT_TOOLS,
        actions: Literal["calls", "texts"] = "calls",
        sandbox: SandboxKind = "auto",
        engine: EngineName = "auto",
        python: str | None = None,
        build_requirements: bool = False,
        max_steps: int = 50,
        max_rewrites: int | None = None,
        deadline_seconds: float | None = 3600.0,
        render_mode: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        check_choice("actions", actions, ("calls", "texts"))
        task = open_task(task)
        self.repo = RepoEnv(
            task,
            tools=tools,
            sandbox=sandbox,
            engine=engine,
            python=python,
            build_requirements=build_requirements,
            max_steps=max_steps,
            max_rewrites=max_rewrites,
            deadline_seconds=deadline_seconds,
            render_mode=render_mode,
            progress=progress,
        )
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = UnicodeText() if actions == "texts" else _calls(tools, task)
        self._was_reset = False

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self.repo.result

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a fresh episode; ``options`` are those of ``RepoEnv.reset``."""
        super().reset(seed=seed)
        self._was_reset = True
        observation, info = self.repo.reset(seed=seed, options=options)
        return _observation(observation), _info(info)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute one call: ``{"tool": …, "arguments": {…}}`` or a line of text."""
        observation, reward, terminated, truncated, info = self.repo.step(action)
        return _observation(observation), reward, terminated, truncated, _info(info)

    def render(self) -> str | None:
        """The last observation's text in render mode "ansi"."""
        return self.repo.render()

    def close(self) -> None:
        """End everything, without scoring what was not finished. Idempotent."""
        # Before the first reset there must be no thread for blocking calls: AsyncVectorEnv closes such an environment
        # just before it forks.
        if self._was_reset:
            self.repo.close()


def observation_space() -> spaces.Dict:
    """The space of every observation of every task, made from the type that observations have."""
    return spaces.Dict(
        {
            name: UnicodeText() if kind is str else JsonValue(kind, _EXAMPLES[name])
            for name, kind in get_type_hints(ObservationDict).items()
        }
    )


def _calls(tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool], task: DebugTask) -> ToolCalls:
    specs = [msgspec.convert(tool, ToolSpec) if isinstance(tool, Mapping) else tool for tool in tools]
    files = task.spec.source.files if task.spec.source is not None else ()
    return ToolCalls(load_tools(specs), words=[".", *(file.path for file in files)])


def _observation(view: ObservationDict) -> dict[str, Any]:
    bounds = {} if view["diff"] is None else {"diff": bounded(view["diff"])[0]}
    return {**view, **bounds}


def _info(info: InfoDict) -> dict[str, Any]:
    """A copy without None: Gymnasium's users keep and change what they get."""
    return {key: deepcopy(value) for key, value in info.items() if value is not None}
