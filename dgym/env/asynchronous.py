"""``AsyncRepoEnv``: an episode with Gymnasium's vocabulary, for code that runs in an event loop."""

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env.opening import Opening, open_source, open_task, suite_cache
from dgym.env.views import info_view, observation_view
from dgym.errors import EpisodeOver, PluginError
from dgym.sandbox.container_choice import SandboxKind
from dgym.sandbox.container_engine import EngineName
from dgym.session import EpisodeLimits, Session
from dgym.tools.base import Tool
from dgym.tools.registry import load_tools
from dgym.wire import EndReason, Observation, Result, Step, ToolCall

DEFAULT_TOOLS = ("listdir", "view", "grep", "eval", "pdb", "rewrite", "bash", "submit")

Action = ToolCall | Mapping[str, Any] | str


class AsyncRepoEnv:
    """One repository with a bug, as an environment; see ``RepoEnv``, which is the same without ``await``.

    Args:
        task: A ``DebugTask``, or the path of a manifest that holds one.
        tools: Names, ``{"name": …, "options": …}`` or ``Tool`` objects. Default: all that ship with dgym.
        sandbox: "bubblewrap", "container", "none", or "auto": a container where the task names an image and an engine
            answers, else bubblewrap where it works, else a container, else none with a warning.
        engine: The engine of containers: "docker", "podman", or "auto" for the first that answers.
        python: An interpreter or a virtual environment for the task's programs, in place of ``requirements``.
        max_steps: Steps until truncation.
        max_rewrites: Rewrites until truncation; None: unbounded.
        deadline_seconds: Wall-clock seconds from the reset until truncation; None: unbounded.
        render_mode: None or "ansi".
        progress: Called with a sentence when something takes long (installing requirements, pulling an image).

    Raises:
        ManifestError: ``task`` is wrong.
        PluginError: A tool does not exist or cannot be loaded.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

    def __init__(
        self,
        task: DebugTask | str | Path,
        *,
        tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool] = DEFAULT_TOOLS,
        sandbox: SandboxKind = "auto",
        engine: EngineName = "auto",
        python: str | None = None,
        max_steps: int = 50,
        max_rewrites: int | None = None,
        deadline_seconds: float | None = 3600.0,
        render_mode: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f'render_mode is {render_mode!r}; it must be None or "ansi"')
        self.task = open_task(task)
        self.render_mode = render_mode
        self.limits = EpisodeLimits(max_steps=max_steps, max_rewrites=max_rewrites, deadline_seconds=deadline_seconds)
        self._tool_specs = tuple(_tool_spec(tool) for tool in tools)
        self._opening = Opening(sandbox=sandbox, engine=engine, python=python, progress=progress)
        load_tools(self._tool_specs)
        self._session: Session | None = None
        self._resources = contextlib.AsyncExitStack()
        self._last: Observation | None = None

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a fresh episode and return its first observation and info.

        ``options``: ``{"eval": True}`` adds the output of the tests; ``{"task": …}`` changes the task from now on.
        ``seed`` is accepted as Gymnasium asks; the environment itself draws nothing at random.
        """
        del seed
        options = _known_options(options)
        if "task" in options:
            self.task = open_task(options["task"])
        await self._discard()
        session = await self._open_session()
        try:
            self._last = await session.reset(evaluate=bool(options.get("eval", False)))
        except BaseException:
            await self._discard()
            raise
        self._session = session
        return observation_view(self._last), self.info

    async def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute one call: ``{"tool": …, "arguments": {…}}`` or a line of text.

        Returns observation, reward, terminated, truncated, info. The reward is 0 until the last step, then
        score / max_score of the final scoring.

        Raises:
            EpisodeOver: The episode has ended or was never reset.
            InfrastructureError: Something that is not the agent's doing.
        """
        session = self._require_session()
        self._last = await session.step(session.next_seq, action)
        ended = self._last.end_reason
        result = self.result
        reward = result.score / result.max_score if ended and result is not None and result.max_score else 0.0
        truncated = ended is not None and ended.is_truncation
        return observation_view(self._last), reward, ended is not None and not truncated, truncated, self.info

    async def peek(self, action: Action) -> dict[str, Any]:
        """The answer of ``view`` or ``listdir``, or of another tool that changes nothing, without a step."""
        return observation_view(await self._require_session().peek(action))

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode now and score it; the result of the episode if it has ended already."""
        return await self._require_session().finish(reason)

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self._session.result if self._session is not None else None

    @property
    def info(self) -> dict[str, Any]:
        """What ``reset`` and ``step`` return last."""
        return info_view(self._require_session(), self._last, self.result)

    async def patch(self) -> str:
        """What the agent has changed, as ``git apply`` takes it; bytes that are not UTF-8 travel in base 85."""
        if self.result is not None:
            return self.result.patch
        return (await self._require_session().changes()).patch.decode("utf-8", "surrogateescape")

    def history(self) -> list[Step]:
        """The steps so far; number 0 is the reset."""
        return self._require_session().history()

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution; for the ``solution`` agent, which checks tasks."""
        return await self._require_session().apply_solution()

    def render(self) -> str | None:
        """The last observation's text in render mode "ansi"."""
        return self._last.text if self.render_mode == "ansi" and self._last is not None else None

    async def close(self) -> None:
        """End everything, without scoring what was not finished. Idempotent."""
        await self._discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _require_session(self) -> Session:
        if self._session is None:
            raise EpisodeOver("call reset() first")
        return self._session

    async def _open_session(self) -> Session:
        directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="dgym-source-")))
        opened = await self._opening.open(self.task)
        source = await open_source(self.task, directory)
        session = Session(
            self.task,
            provider=opened.provider,
            tools=load_tools(self._tool_specs),
            source=source,
            limits=self.limits,
            suite_cache=suite_cache(self.task, source, opened.programs),
        )
        self._resources.push_async_callback(session.close)
        return session

    async def _discard(self) -> None:
        self._session = self._last = None
        resources, self._resources = self._resources, contextlib.AsyncExitStack()
        await resources.aclose()


def _tool_spec(tool: str | Mapping[str, Any] | ToolSpec | Tool) -> str | ToolSpec | Tool:
    if not isinstance(tool, Mapping):
        return tool
    try:
        return msgspec.convert(tool, ToolSpec)
    except msgspec.ValidationError as error:
        raise PluginError(
            f'{dict(tool)!r} is not a tool: {error}; write "name" or {{"name": …, "options": …}}'
        ) from None


def _known_options(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    unknown = set(options or ()) - {"eval", "task"}
    if unknown:
        raise ValueError(f"unknown options {sorted(unknown)}; reset() knows 'eval' and 'task'")
    return options or {}
