"""``RepoEnv``: a blocking environment with Gymnasium's API.

All blocking environments of a process share one event loop in one daemon thread. The caller's own event loop may be
running already (in a notebook), so blocking calls cannot use it. The thread never ends, because bubblewrap's
``--die-with-parent`` kills a sandbox when the *thread* that started it ends.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from dgym.api import STANDARD_TOOLS, DebugTask, ToolSpec
from dgym.env._asynchronous import AsyncRepoEnv
from dgym.env._views import CommandDict, InfoDict, ObservationDict
from dgym.sandbox import EngineName, SandboxKind
from dgym.tools import Tool
from dgym.wire import EndReason, Result, Step
from dgym.wire.client import RetryLimits
from dgym.wire.episode import Action
from dgym.wire.http import Epochs

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_loop_process = 0


class RepoEnv:
    """An environment with one repository that has a bug, with Gymnasium's ``reset`` and ``step``.

    ::

        with RepoEnv("task.yaml") as env:
            observation, info = env.reset()
            observation, reward, terminated, truncated, info = env.step("pdb b calc.py:12")

    ``observation`` is a dictionary. Its ``text`` is the text for a model; it also has frame, breakpoints, diff,
    exit_status and score. ``info`` has resolved, score, max_score, steps, rewrites, reason and instructions (by tool).
    The info of ``reset``, and of a step that changes the available tools, also has tools (name, description, JSON
    Schema of the parameters). The arguments and exceptions are those of ``AsyncRepoEnv``. An environment can be
    pickled; the copy must be reset.
    """

    metadata: ClassVar[dict[str, Any]] = AsyncRepoEnv.metadata

    def __init__(
        self,
        task: DebugTask | str | Path,
        *,
        tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool] = STANDARD_TOOLS,
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
        options: dict[str, Any] = {
            "tools": tools,
            "sandbox": sandbox,
            "engine": engine,
            "python": python,
            "build_requirements": build_requirements,
            "max_steps": max_steps,
            "max_rewrites": max_rewrites,
            "deadline_seconds": deadline_seconds,
            "render_mode": render_mode,
            "progress": progress,
        }
        self._recipe: tuple[Callable[..., RepoEnv], tuple[Any, ...], dict[str, Any]] = (RepoEnv, (task,), options)
        self._env = AsyncRepoEnv(task, **options)

    @classmethod
    def connect(
        cls,
        url: str,
        token: str | None = None,
        *,
        epochs: Epochs | None = None,
        prepare_token: str | None = None,
        reset_key: str | None = None,
        render_mode: str | None = None,
        retry_limits: RetryLimits | None = None,
        context: str | None = None,
        wait_seconds: float = 900.0,
    ) -> Self:
        """Connect to an episode that runs in a pod; see ``AsyncRepoEnv.connect``."""
        options: dict[str, Any] = {
            "epochs": epochs,
            "prepare_token": prepare_token,
            "reset_key": reset_key,
            "render_mode": render_mode,
            "retry_limits": retry_limits,
            "context": context,
            "wait_seconds": wait_seconds,
        }
        env = cls.__new__(cls)
        env._recipe = (cls.connect, (url, token), options)
        env._env = AsyncRepoEnv.connect(url, token, **options)
        return env

    @property
    def render_mode(self) -> str | None:
        """None or "ansi"."""
        return self._env.render_mode

    @property
    def result(self) -> Result | None:
        """The result of the episode; None until it has ended."""
        return self._env.result

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Start a new episode; see ``AsyncRepoEnv.reset``."""
        return _wait_for(self._env.reset(seed=seed, options=options))

    def step(self, action: Action) -> tuple[ObservationDict, float, bool, bool, InfoDict]:
        """Execute one call; see ``AsyncRepoEnv.step``."""
        return _wait_for(self._env.step(action))

    def peek(self, action: Action) -> ObservationDict:
        """Call a tool without a step; see ``AsyncRepoEnv.peek``."""
        return _wait_for(self._env.peek(action))

    def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode now and score it."""
        return _wait_for(self._env.finish(reason))

    def patch(self) -> str:
        """The agent's changes in the format of ``git apply``."""
        return _wait_for(self._env.patch())

    def run(self, command: str, *, timeout_seconds: float = 60.0) -> CommandDict:
        """Run a shell command in the sandbox without a step; see ``AsyncRepoEnv.run``."""
        return _wait_for(self._env.run(command, timeout_seconds=timeout_seconds))

    def restore(self, paths: str | Sequence[str] = ".") -> list[str]:
        """Restore files from the untouched repository; see ``AsyncRepoEnv.restore``."""
        return _wait_for(self._env.restore(paths))

    def add_tool(self, tool: str | Mapping[str, Any] | ToolSpec | Tool) -> None:
        """Add a tool to this episode and later ones; see ``AsyncRepoEnv.add_tool``."""
        _wait_for(self._env.add_tool(tool))
        self._recipe[2]["tools"] = self._env.tools

    def remove_tool(self, name: str) -> Tool:
        """Remove a tool from this episode and later ones; see ``AsyncRepoEnv.remove_tool``."""
        removed = self._env.remove_tool(name)
        self._recipe[2]["tools"] = self._env.tools
        return removed

    def trajectory(self) -> list[Step]:
        """The steps so far; number 0 is the reset."""
        return self._env.trajectory()

    def render(self) -> str | None:
        """The last observation's text in render mode "ansi"."""
        return self._env.render()

    def close(self) -> None:
        """Discard the episode without scoring it, unless it has finished. Idempotent."""
        _wait_for(self._env.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, self._recipe


def connect(
    episode: str, *, context: str | None = None, wait_seconds: float = 900.0, render_mode: str | None = None
) -> RepoEnv:
    """Connect to an Episode without ``agent`` in a cluster, ``NAMESPACE/NAME``; see ``AsyncRepoEnv.connect``."""
    return RepoEnv.connect(episode, context=context, wait_seconds=wait_seconds, render_mode=render_mode)


def _remake(make: Callable[..., RepoEnv], arguments: tuple[Any, ...], options: dict[str, Any]) -> RepoEnv:
    return make(*arguments, **options)


def _wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` in the shared loop and wait for it. An interrupt (Ctrl-C) also cancels it there."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _shared_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _shared_loop() -> asyncio.AbstractEventLoop:
    """The loop. It is created on first use, and again after a fork because threads do not survive it."""
    global _loop, _loop_process
    with _lock:
        if _loop is None or _loop_process != os.getpid():
            _loop = asyncio.new_event_loop()
            _loop_process = os.getpid()
            threading.Thread(target=_loop.run_forever, name="dgym-loop", daemon=True).start()
        return _loop
