"""``AsyncRepoEnv``: an episode with Gymnasium's API, for code that runs in an event loop.

Arguments are checked before anything starts, and errors contain the name of the argument. Type annotations are not
sufficient, because many callers pass values from a command line or a notebook.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar, get_args

import msgspec

from dgym.api import STANDARD_TOOLS, DebugTask, ToolSpec
from dgym.env._local import LocalEpisodes, Opening, open_task
from dgym.env._remote import RemoteEpisode
from dgym.env._views import (
    CommandDict,
    InfoDict,
    ObservationDict,
    command_view,
    info_view,
    observation_view,
    tools_view,
)
from dgym.errors import ArgumentError, EpisodeOver, PluginError, SandboxLost
from dgym.sandbox import EngineName, SandboxKind
from dgym.session import EpisodeLimits, Session
from dgym.tools import Tool, load_tools
from dgym.tracing import OpenSpan, capturing, genai_span
from dgym.wire import EndReason, Observation, Result, Step, checked_action
from dgym.wire.client import RetryLimits
from dgym.wire.episode import Action, EpisodeHandle
from dgym.wire.http import Epochs, Usage
from dgym.wire.outcome import RunEnvironment

T = TypeVar("T")
Opener = Callable[[DebugTask | None], Awaitable[EpisodeHandle]]
"""Opens the episode of the next reset. A given task replaces the current task."""

_CONTENT_CHARACTERS = 16_384
_MOST_LOSSES = 2
"""Maximum number of lost sandboxes that a step has not killed, like ``backoffLimit`` in a cluster."""


class AsyncRepoEnv:
    """An environment with one repository that has a bug. ``RepoEnv`` is the same without ``await``.

    Args:
        task: A ``DebugTask``, the path of a manifest with one DebugTask or one Episode, or the name of a bundled task.
        tools: Names, ``{"name": …, "options": …}`` or ``Tool`` objects. Default: all that ship with dgym.
        sandbox: "bubblewrap", "container", "none", or "auto": a container if the task has an image and an engine
            answers, else bubblewrap if it works, else a container.
        engine: The container engine: "docker", "podman", or "auto" for the first that answers.
        python: An interpreter or a virtual environment for the task's programs, instead of ``requirements``.
        build_requirements: Build the source distributions among ``requirements``, which runs their code on this
            machine, outside of the sandbox. By default only wheels are installed.
        max_steps: Number of steps until truncation.
        max_rewrites: Number of rewrites until truncation. None: unlimited.
        deadline_seconds: Wall-clock seconds from the reset until truncation. None: unlimited.
        render_mode: None or "ansi".
        progress: Called with a message when an operation takes long (installing requirements, pulling an image).

    Raises:
        ArgumentError: The value of another argument is invalid.
        ManifestError: ``task`` is invalid.
        PluginError: A tool does not exist or cannot be loaded.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

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
        _check_render_mode(render_mode)
        check_choice("sandbox", sandbox, get_args(SandboxKind))
        check_choice("engine", engine, get_args(EngineName))
        _check_count("max_steps", max_steps, least=1)
        _check_count("max_rewrites", max_rewrites, least=0, optional=True)
        _check_seconds("deadline_seconds", deadline_seconds)
        _check_tools(tools)
        _check_python(python)
        _check_progress(progress)
        specs = tuple(_tool_spec(tool) for tool in tools)
        load_tools(specs)
        local = LocalEpisodes(
            open_task(task),
            tools=specs,
            limits=EpisodeLimits(max_steps=max_steps, max_rewrites=max_rewrites, deadline_seconds=deadline_seconds),
            opening=Opening(
                sandbox=sandbox,
                engine=engine,
                python=python,
                build_requirements=build_requirements,
                progress=progress,
            ),
        )
        self._set_up(local.open, render_mode, local)

    def _set_up(self, opener: Opener, render_mode: str | None, local: LocalEpisodes | None = None) -> None:
        self.render_mode = render_mode
        self._open = opener
        self._local = local
        self._episode: EpisodeHandle | None = None
        self._last: Observation | None = None
        self._observers: list[Callable[[Step], None]] = []
        self._senders: list[Callable[[int, Action], None]] = []
        self._observed = 0
        self._offered: tuple[str, ...] = ()
        self._resuming = asyncio.Lock()
        self._losses = 0

    @classmethod
    def over(cls, episodes: LocalEpisodes) -> Self:
        """Create an environment for episodes of this process."""
        env = cls.__new__(cls)
        env._set_up(episodes.open, None, episodes)
        return env

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
        """Connect to an episode that runs in a pod. Nothing is sent before ``reset``, which may be called once.

        Args:
            url: The address of the sidecar, such as ``http://10.0.0.7:8080``. Without a token: the name of an Episode
                without ``agent`` in a cluster, as ``NAMESPACE/NAME``, or ``NAME`` in the namespace of the kubeconfig's
                context.
            token: The token of the role "drive". For an Episode in a cluster it is read from the Episode's Secret.
            epochs: The epochs of the assignment if an agent pod drives the episode. None for other drivers.
            prepare_token: The token of the role "prepare", which only ``apply_solution`` needs.
            reset_key: The idempotency key of the reset. A later driver that resets with the same key resumes the
                episode: ``trajectory()`` has all of its steps, and ``reset`` returns the last observation.
            render_mode: None or "ansi".
            retry_limits: How long requests without a response are repeated. None: a minute.
            context: The context of the kubeconfig. None: the current context.
            wait_seconds: How long ``reset`` waits until an Episode in a cluster can be driven.
        """
        _check_render_mode(render_mode)
        _check_seconds("wait_seconds", wait_seconds)
        waiting = retry_limits or RetryLimits()
        if token is None and "://" in url:
            raise ArgumentError(f"the sidecar at {url} requires a token; an Episode in a cluster is NAMESPACE/NAME")
        episode = None
        if token is not None:
            episode = RemoteEpisode(
                url, token, epochs=epochs, prepare_token=prepare_token, reset_key=reset_key, retry_limits=waiting
            )

        async def opener(task: DebugTask | None) -> EpisodeHandle:
            if task is not None:
                raise ArgumentError("the task of an episode in a pod cannot be changed")
            if episode is not None:
                return episode
            from dgym.env._cluster import find_sidecar

            found = await find_sidecar(url, context=context, wait_seconds=wait_seconds)
            return RemoteEpisode(found.route, found.token, reset_key=reset_key or found.reset_key, retry_limits=waiting)

        env = cls.__new__(cls)
        env._set_up(opener, render_mode)
        return env

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Start a new episode and return its first observation and info.

        Args:
            seed: Ignored, because the environment is not random. Gymnasium's API requires it.
            options: ``{"eval": True}`` adds the output of the tests. ``{"task": …}`` changes the task of this and later
                episodes.
        """
        del seed
        options = _known_options(options)
        task = open_task(options["task"]) if "task" in options else None
        await self.close()
        self._episode = episode = await self._open(task)
        self._observed = self._losses = 0
        try:
            self._last = await episode.reset(evaluate=bool(options.get("eval", False)))
        except BaseException:
            await episode.close()
            raise
        self._report()
        self._offered = ()
        return observation_view(self._last), self._info(episode, self._last)

    async def step(self, action: Action) -> tuple[ObservationDict, float, bool, bool, InfoDict]:
        """Execute one call: ``{"tool": …, "arguments": {…}}`` or a line of text.

        Returns observation, reward, terminated, truncated, info. The reward is 0 until the last step, whose reward is
        score / max_score of the final scoring. ``info`` has ``tools`` only if they have changed since the last info.

        Raises:
            EpisodeOver: The episode has ended or was never reset.
            InfrastructureError: A failure that the agent did not cause.
        """
        episode = await self._resumed()
        action, seq = checked_action(action), len(episode.trajectory())
        for sending in self._senders:
            sending(seq, action)
        try:
            with genai_span("execute_tool", "") as running:
                self._last = await self._call_resumed(lambda episode: episode.step(seq, action))
                episode = self._running()
                if running is not None:
                    _describe(running, seq, self._last, episode.trajectory(start=seq)[:1])
        finally:
            self._report()
        ended = self._last.end_reason
        result = self.result
        reward = result.score / result.max_score if ended and result is not None and result.max_score else 0.0
        truncated = ended is not None and ended.is_truncation
        info = self._info(episode, self._last)
        return observation_view(self._last), reward, ended is not None and not truncated, truncated, info

    async def peek(self, action: Action) -> ObservationDict:
        """Call ``view``, ``listdir`` or another tool that changes nothing, without a step."""
        return observation_view(await (await self._resumed()).peek(checked_action(action)))

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode now and score it. If it has ended already, return its result."""
        try:
            return await self._call_resumed(lambda episode: episode.finish(reason))
        finally:
            self._report()

    @property
    def result(self) -> Result | None:
        """The result of the episode; None until it has ended."""
        return self._episode.result if self._episode is not None else None

    @property
    def info(self) -> InfoDict:
        """The info of the last observation, including the tools."""
        episode = self._running()
        assert self._last is not None
        return {**info_view(episode, self._last), "tools": tools_view(episode.toolset)}

    async def patch(self) -> str:
        """The agent's changes in the format of ``git apply``. Bytes that are not UTF-8 are encoded in base 85."""
        return await (await self._resumed()).patch()

    def trajectory(self) -> list[Step]:
        """The steps so far; number 0 is the reset."""
        return self._running().trajectory()

    async def run(self, command: str, *, timeout_seconds: float = 60.0) -> CommandDict:
        """Run a shell command in the sandbox of the episode, for you rather than for the agent. Not available in a pod.

        The command is not a step and not in the trajectory, and the deadline clock continues. Its changes are part of
        the workspace: they are visible to the agent and part of the patch and the score. If the sandbox dies, the new
        sandbox does not have them.

        Raises:
            ArgumentError: The episode runs in a pod, or the value of an argument is invalid.
            EpisodeOver: The episode has ended or was never reset.
            SandboxLost: The sandbox died during the command. The steps were replayed in a new one.
        """
        if not isinstance(command, str) or not command.strip():
            _refuse("command", command, "a shell line")
        _check_seconds("timeout_seconds", timeout_seconds)
        session = await self._here("run()", "give the agent the tool bash, or use kubectl exec -c sandbox")
        try:
            return command_view(await session.run(command, timeout_seconds=float(timeout_seconds)))
        except SandboxLost as death:
            await self._resumed()
            text = f"the command ended the sandbox ({death}); a new one has the steps, but no changes by run()"
            raise SandboxLost(text) from None

    async def restore(self, paths: str | Sequence[str] = ".") -> list[str]:
        """Restore files of the workspace from the untouched repository. Not available in a pod.

        This is not a step and not in the trajectory. Files that the repository does not have are deleted. Returns the
        changed files.

        Args:
            paths: Files, and directories with all files below. Default: all.

        Raises:
            ArgumentError: The episode runs in a pod, or the value of an argument is invalid.
            EpisodeOver: The episode has ended or was never reset.
            PathError: A path is outside of the workspace, or was never a file or directory in it.
        """
        wanted = [paths] if isinstance(paths, str) else paths
        if not isinstance(wanted, Sequence) or not all(isinstance(path, str) for path in wanted):
            _refuse("paths", paths, 'a path or a sequence of paths, such as ["src/calc.py"]')
        session = await self._here("restore()", "the agent can restore files by its tools rewrite and bash")
        return list(await session.restore(wanted))

    async def add_tool(self, tool: str | Mapping[str, Any] | ToolSpec | Tool) -> None:
        """Add a tool to the current episode, if there is one, and to later ones. Not available in a pod.

        Raises:
            ArgumentError: The episode runs in a pod.
            PluginError: The tool does not exist, cannot be loaded, or has the name of another tool.
            SetupFailed: One of its ``setup_commands`` failed in the current episode.
        """
        local, spec = self._local_episodes("add_tool()"), _tool_spec(tool)
        made = load_tools((*local.tools, spec))[-1]
        if isinstance(self._episode, Session) and not self._episode.ending.is_set():
            await self._episode.add_tool(made)
        local.tools = (*local.tools, spec)

    def remove_tool(self, name: str) -> Tool:
        """Remove a tool from the current episode, if there is one, and from later ones. Return the tool.

        Not available in a pod.

        Raises:
            ArgumentError: The episode runs in a pod.
            PluginError: The next episode has no tool of this name.
        """
        local = self._local_episodes("remove_tool()")
        tools = load_tools(local.tools)
        names = [tool.name for tool in tools]
        if name not in names:
            raise PluginError(f"The episode has no tool {name!r} to remove. Tools: {', '.join(names)}.")
        index = names.index(name)
        local.tools = (*local.tools[:index], *local.tools[index + 1 :])
        if isinstance(self._episode, Session):
            self._episode.remove_tool(name)
        return tools[index]

    @property
    def tools(self) -> tuple[str | ToolSpec | Tool, ...]:
        """The tools of the next episode, as they were given. Not available in a pod."""
        return self._local_episodes("tools").tools

    def _local_episodes(self, what: str) -> LocalEpisodes:
        if self._local is None:
            _refuse_in_pod(what, "its tools are those of the Episode's spec.tools")
        return self._local

    async def _here(self, what: str, remedy: str) -> Session:
        """The current session of this process."""
        if self._local is None:
            _refuse_in_pod(what, remedy)
        episode = await self._resumed()
        assert isinstance(episode, Session)
        return episode

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution. Used by the ``solution`` agent, which checks tasks."""
        if self._episode is None:
            raise EpisodeOver("call reset() first")
        return await self._episode.apply_solution()

    def observe(
        self, observer: Callable[[Step], None], *, sending: Callable[[int, Action], None] | None = None
    ) -> None:
        """Call ``observer`` with every step that is recorded from now on. Step 0 is the reset.

        If the episode itself recorded a step, for example because the deadline passed, the next call of the environment
        reports it. The reset reports the steps of earlier drivers. ``sending`` is called with each step before it is
        executed.
        """
        self._observers.append(observer)
        self._senders += [sending] if sending is not None else []

    @property
    def environment(self) -> RunEnvironment | None:
        """The environment of the task's programs, as the sandbox reports it. None if a pod does not report it.

        Raises:
            EpisodeOver: The episode was never reset.
        """
        return self._running().toolset.environment

    @property
    def usage(self) -> Usage:
        """The model's tokens and their price, as the drivers of this episode recorded them."""
        return (self._episode.state.usage if self._episode is not None else None) or Usage()

    def record_usage(self, *, input_tokens: int, output_tokens: int, price: str | None = None) -> None:
        """Record the tokens that the model has used so far. In a pod they are sent with the next step.

        ``price`` is their price, such as ``"0.25"``. None if it is not known.
        """
        self._running().record_usage(Usage(input_tokens=input_tokens, output_tokens=output_tokens, price=price))

    def render(self) -> str | None:
        """The text of the last observation in render mode "ansi", else None."""
        return self._last.text if self.render_mode == "ansi" and self._last is not None else None

    async def close(self) -> None:
        """Discard the episode without scoring it, unless it has finished. Idempotent.

        For an episode in a pod this only closes the connection.
        """
        episode, self._episode, self._last = self._episode, None, None
        if episode is not None:
            await episode.close()

    def _running(self) -> EpisodeHandle:
        if self._episode is None or self._last is None:
            raise EpisodeOver("call reset() first")
        return self._episode

    async def _resumed(self) -> EpisodeHandle:
        """The current episode. If its sandbox in this process has died, a new session that has replayed the steps."""
        async with self._resuming:
            episode = self._running()
            if self._local is not None and isinstance(episode, Session) and episode.death is not None:
                resumed = await self._local.resume(episode)
                if self._episode is not episode:
                    await resumed.close()  # The environment was closed during the replay.
                    return self._running()
                self._episode = episode = resumed
            return episode

    async def _call_resumed(self, call: Callable[[EpisodeHandle], Awaitable[T]]) -> T:
        """The result of ``call``, which is repeated if its sandbox dies.

        If the call had started, the session that has replayed the steps returns its recorded observation.
        """
        while True:
            episode = await self._resumed()
            try:
                return await call(episode)
            except SandboxLost:
                if not isinstance(episode, Session) or episode.death is None:
                    raise
                if not episode.own_poisoned_steps and not episode.ending.is_set():
                    self._losses += 1
                    if self._losses > _MOST_LOSSES:
                        raise

    def _info(self, episode: EpisodeHandle, last: Observation) -> InfoDict:
        """The info for ``last``, with the tools if they have changed since the last info."""
        info = info_view(episode, last)
        before, self._offered = self._offered, episode.state.tools
        if self._offered != before:
            info["tools"] = tools_view(episode.toolset)
        return info

    def _report(self) -> None:
        """Call the observers with the steps that they have not received yet."""
        if self._episode is None:
            return
        for step in self._episode.trajectory(start=self._observed):
            for observer in self._observers:
                observer(step)
            self._observed += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _describe(running: OpenSpan, seq: int, observation: Observation, recorded: Sequence[Step]) -> None:
    """Set the attributes of a step's span by the OpenTelemetry GenAI conventions for executing a tool."""
    tool = observation.tool or "no call"
    running.rename(f"execute_tool {tool}")
    running.set("gen_ai.tool.name", tool)
    running.set("gen_ai.tool.type", "function")
    running.set("dgym.step", seq)
    if not observation.ok:
        running.fail("tool_error")
    if capturing():
        call = next((step.call for step in recorded), None)
        arguments = msgspec.json.encode(call.arguments, enc_hook=repr).decode() if call is not None else ""
        running.set("gen_ai.tool.call.arguments", arguments[:_CONTENT_CHARACTERS])
        running.set("gen_ai.tool.call.result", observation.text[:_CONTENT_CHARACTERS])


def _refuse_in_pod(what: str, remedy: str) -> NoReturn:
    raise ArgumentError(f"{what} works for episodes of this process, not for one in a pod: {remedy}")


def _check_render_mode(render_mode: str | None) -> None:
    check_choice("render_mode", render_mode, (None, *AsyncRepoEnv.metadata["render_modes"]))


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
    if unknown := set(options or ()) - {"eval", "task"}:
        raise ArgumentError(f"unknown options {sorted(unknown)}; reset() accepts 'eval' and 'task'")
    return options or {}


def check_choice(name: str, value: Any, known: Iterable[str | None]) -> None:
    """Raise ArgumentError if the value is not in ``known``."""
    known = tuple(known)
    # Compare one by one, because ``in`` raises TypeError for an unhashable value such as a list.
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        shown = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in known]
        _refuse(name, value, f"{', '.join(shown[:-1])} or {shown[-1]}")


def _check_count(name: str, value: Any, *, least: int, optional: bool = False) -> None:
    """Raise ArgumentError if the value is not an integer of at least ``least`` or, if ``optional``, None."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        _refuse(name, value, f"a whole number from {least} on{', or None for no limit' if optional else ''}")


def _check_seconds(name: str, value: Any) -> None:
    """Raise ArgumentError if the value is neither None nor a finite number above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        _refuse(name, value, "a number of seconds above 0, or None for no limit")


def _check_tools(value: Any) -> None:
    """Raise ArgumentError if the value is not a sequence. A string would be read as a sequence of letters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        _refuse("tools", value, 'a sequence of names, {"name": …, "options": …} or Tool objects, such as ["view"]')


def _check_python(value: Any) -> None:
    """Raise ArgumentError if the value is neither None nor a path."""
    if value is not None and not (isinstance(value, str | Path) and str(value)):
        _refuse("python", value, "the path of an interpreter or a virtual environment, or None")


def _check_progress(value: Any) -> None:
    if value is not None and not callable(value):
        _refuse("progress", value, "a function of one text, or None")


def _refuse(name: str, value: Any, valid: str) -> NoReturn:
    raise ArgumentError(f"{name} is {value!r}; it must be {valid}")
