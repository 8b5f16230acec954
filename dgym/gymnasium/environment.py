"""``GymnasiumRepoEnv``: ``RepoEnv`` as a subclass of ``gymnasium.Env`` with spaces."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import msgspec
from gymnasium import spaces

from dgym.api import DebugTask, ToolSpec
from dgym.env.arguments import check_choice
from dgym.env.asynchronous import DEFAULT_TOOLS
from dgym.env.local import open_task
from dgym.env.synchronous import RepoEnv
from dgym.env.views import observation_view
from dgym.gymnasium.spaces import JsonValue, ToolCalls, UnicodeText
from dgym.session import bounded
from dgym.tools import Tool, load_tools
from dgym.wire import Observation, Result


class GymnasiumRepoEnv(gymnasium.Env[dict[str, Any], Any]):
    """One repository with a bug, as ``gymnasium.make("dgym/Repo-v0", task=…)`` makes it.

    Observations are those of ``RepoEnv``: a part that an observation does not have is None, and its space holds None
    too. The one difference is that a diff is bounded as the text is. ``info`` is that of ``RepoEnv`` without the keys
    whose value is None, as vector environments want it.

    Args:
        task: A ``DebugTask``, or the path of a manifest that holds one.
        tools: As of ``RepoEnv``.
        actions: What ``action_space`` holds: "calls" of tools or "texts". ``step`` takes both in any case.
        render_mode: None or "ansi".
        options: The other arguments of ``RepoEnv``: ``max_steps``, ``sandbox`` and so on.

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
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("actions", actions, ("calls", "texts"))
        task = open_task(task)
        self.repo = RepoEnv(task, tools=tools, render_mode=render_mode, **options)
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
        # One that was never reset must not start the thread of blocking calls: AsyncVectorEnv closes such a one just
        # before it forks.
        if self._was_reset:
            self.repo.close()


def observation_space() -> spaces.Dict:
    """The space of every observation of every task, made from the type that observations have."""
    names = observation_view(Observation(text="")).keys()
    fields = [field for field in msgspec.structs.fields(Observation) if field.name in names]
    schemas, definitions = msgspec.json.schema_components([field.type for field in fields])
    definitions = {name: _as_viewed(schema) for name, schema in definitions.items()}
    return spaces.Dict(
        {
            field.name: UnicodeText() if field.type is str else JsonValue(schema, definitions)
            for field, schema in zip(fields, schemas, strict=True)
        }
    )


def _as_viewed(schema: dict[str, Any]) -> dict[str, Any]:
    """A view has snake_case keys, all of them always."""
    if "properties" not in schema:
        return schema
    properties = {re.sub(r"(?=[A-Z])", "_", name).lower(): value for name, value in schema["properties"].items()}
    return {**schema, "properties": properties, "required": list(properties), "additionalProperties": False}


def _calls(tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool], task: DebugTask) -> ToolCalls:
    specs = [msgspec.convert(tool, ToolSpec) if isinstance(tool, Mapping) else tool for tool in tools]
    files = task.spec.source.files if task.spec.source is not None else ()
    return ToolCalls(load_tools(specs), words=[".", *(file.path for file in files)])


def _observation(view: dict[str, Any]) -> dict[str, Any]:
    if view["diff"] is not None:
        view["diff"], _ = bounded(view["diff"])
    return view


def _info(info: dict[str, Any]) -> dict[str, Any]:
    """A copy, since Gymnasium's users keep and change what they get, of what is not None."""
    return {key: deepcopy(value) for key, value in info.items() if value is not None}
