"""``AsyncRepoEnv``: an episode with Gymnasium's vocabulary, for code that runs in an event loop.

A wrong argument is refused by name before anything starts. Type annotations do not suffice: many callers pass what they
read from a command line or a notebook.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, get_args

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env.http_client import Patience
from dgym.env.local import LocalEpisodes, Opening, open_task
from dgym.env.remote import RemoteEpisode
from dgym.env.telemetry import execute_tool
from dgym.env.views import (
    CommandDict,
    InfoDict,
    ObservationDict,
    command_view,
    info_view,
    observation_view,
    tools_view,
)
from dgym.errors import ArgumentError, EpisodeOver, PluginError
from dgym.sandbox import EngineName, SandboxKind
from dgym.session import EpisodeLimits, Session
from dgym.tools import Tool, load_tools
from dgym.wire import EndReason, Observation, Result, Step
from dgym.wire.episode import Action, Episode
from dgym.wire.http import Epochs, Usage
from dgym.wire.provenance import RunEnvironment

Opener = Callable[[DebugTask | None], Awaitable[Episode]]
"""Opens the episode of the next reset; with a task, that of this task from now on."""

DEFAULT_TOOLS = ("listdir", "view", "grep", "eval", "pdb", "rewrite", "bash", "submit")


class AsyncRepoEnv:
    """One repository with a bug, as an environment; see ``RepoEnv``, which is the same without ``await``.

    Args:
        task: A ``DebugTask``, the path of a manifest with one DebugTask or one Episode, or the name of a bundled task.
        tools: Names, ``{"name": …, "options": …}`` or ``Tool`` objects. Default: all that ship with dgym.
        sandbox: "bubblewrap", "container", "none", or "auto": a container where the task names an image and an engine
            answers, else bubblewrap where it works, else a container.
        engine: The engine of containers: "docker", "podman", or "auto" for the first that answers.
        python: An interpreter or a virtual environment for the task's programs, in place of ``requirements``.
        build_requirements: Build the source distributions among ``requirements``, which runs their code on this
            machine, outside the sandbox. By default only wheels are installed.
        max_steps: Steps until truncation.
        max_rewrites: Rewrites until truncation; None: unbounded.
        deadline_seconds: Wall-clock seconds from the reset until truncation; None: unbounded.
        render_mode: None or "ansi".
        progress: Called with a sentence when something takes long (installing requirements, pulling an image).

    Raises:
        ArgumentError: Another argument has no valid value.
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
        _check_callable("progress", progress)
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
        self._episode: Episode | None = None
        self._last: Observation | None = None
        self._observers: list[Callable[[Step], None]] = []
        self._senders: list[Callable[[int, Action], None]] = []
        self._observed = 0
        self._offered: tuple[str, ...] = ()

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
        patience: Patience | None = None,
        context: str | None = None,
        wait_seconds: float = 900.0,
    ) -> Self:
        """An episode that runs in a pod, by its sidecar; nothing is sent before ``reset``, which works once.

        Args:
            url: The address of the sidecar, such as ``http://10.0.0.7:8080``; or, without a token, the Episode without
                ``agent`` in a cluster, as ``NAMESPACE/NAME``, or ``NAME`` in the namespace of the kubeconfig's context.
            token: The token of the role "drive". That of an Episode in a cluster is read from its Secret.
            epochs: Those of the assignment under which an agent pod drives it; None for other drivers.
            prepare_token: The token of the role "prepare", for ``apply_solution`` alone.
            reset_key: The idempotency key of the reset. A later driver that resets under the same key resumes the
                episode: ``history()`` has all of its steps, and ``reset`` returns the last observation.
            render_mode: None or "ansi".
            patience: How long requests without an answer are repeated; None: a minute.
            context: The context of the kubeconfig; None: the current one.
            wait_seconds: How long ``reset`` waits until an Episode in a cluster can be driven.
        """
        _check_render_mode(render_mode)
        _check_seconds("wait_seconds", wait_seconds)
        patience = patience or Patience()
        if token is None:
            return cls._in_cluster(url, context, wait_seconds, reset_key, patience, render_mode)
        episode = RemoteEpisode(
            url, token, epochs=epochs, prepare_token=prepare_token, reset_key=reset_key, patience=patience
        )

        async def opener(task: DebugTask | None) -> Episode:
            if task is not None:
                raise ArgumentError("the task of an episode in a pod cannot be changed")
            return episode

        env = cls.__new__(cls)
        env._set_up(opener, render_mode)
        return env

    @classmethod
    def _in_cluster(
        cls,
        name: str,
        context: str | None,
        wait_seconds: float,
        reset_key: str | None,
        patience: Patience,
        render_mode: str | None,
    ) -> Self:
        if "://" in name:
            raise ArgumentError(f"token: the sidecar at {name} needs one; an Episode in a cluster is NAMESPACE/NAME")

        async def opener(task: DebugTask | None) -> Episode:
            if task is not None:
                raise ArgumentError("the task of an episode in a pod cannot be changed")
            from dgym.env.cluster import find_sidecar

            found = await find_sidecar(name, context=context, wait_seconds=wait_seconds)
            return RemoteEpisode(found.route, found.token, reset_key=reset_key or found.reset_key, patience=patience)

        env = cls.__new__(cls)
        env._set_up(opener, render_mode)
        return env

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Start a fresh episode and return its first observation and info.

        ``options``: ``{"eval": True}`` adds the output of the tests; ``{"task": …}`` changes the task from now on.
        ``seed`` is accepted as Gymnasium asks; the environment itself draws nothing at random.
        """
        del seed
        options = _known_options(options)
        task = open_task(options["task"]) if "task" in options else None
        await self.close()
        self._episode = episode = await self._open(task)
        self._observed = 0
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

        Returns observation, reward, terminated, truncated, info. The reward is 0 until the last step, then
        score / max_score of the final scoring. ``info`` has ``tools`` only where they are not those of the last time.

        Raises:
            EpisodeOver: The episode has ended or was never reset.
            InfrastructureError: Something that is not the agent's doing.
        """
        episode = self._running()
        seq = len(episode.history())
        for sending in self._senders:
            sending(seq, action)
        try:
            self._last = await execute_tool(episode, seq, action)
        finally:
            self._report()
        ended = self._last.end_reason
        result = self.result
        reward = result.score / result.max_score if ended and result is not None and result.max_score else 0.0
        truncated = ended is not None and ended.is_truncation
        info = self._info(episode, self._last)
        return observation_view(self._last), reward, ended is not None and not truncated, truncated, info

    async def peek(self, action: Action) -> ObservationDict:
        """The answer of ``view`` or ``listdir``, or of another tool that changes nothing, without a step."""
        return observation_view(await self._running().peek(action))

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode now and score it; the result of the episode if it has ended already."""
        try:
            return await self._running().finish(reason)
        finally:
            self._report()

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self._episode.result if self._episode is not None else None

    @property
    def info(self) -> InfoDict:
        """The info of the last observation, the tools included."""
        episode = self._running()
        assert self._last is not None
        return {**info_view(episode, self._last), "tools": tools_view(episode.toolset)}

    async def patch(self) -> str:
        """The agent's changes, as ``git apply`` takes it; bytes that are not UTF-8 travel in base 85."""
        return await self._running().changes()

    def history(self) -> list[Step]:
        """The steps so far; number 0 is the reset."""
        return self._running().history()

    async def run(self, command: str, *, timeout_seconds: float = 60.0) -> CommandDict:
        """Run a shell line in the sandbox of the episode, for you rather than for the agent; not in a pod.

        It is not a step and not in the history, and the deadline goes on. What it changes is part of the workspace: the
        agent sees it, and ``patch`` and the verdict have it. A new sandbox, after one that died, does not.

        Raises:
            ArgumentError: The episode runs in a pod, or an argument has no valid value.
            EpisodeOver: The episode has ended or was never reset.
        """
        if not isinstance(command, str) or not command.strip():
            _refuse("command", command, "a shell line")
        _check_seconds("timeout_seconds", timeout_seconds)
        session = self._here("run()", "give the agent the tool bash, or use kubectl exec -c sandbox")
        return command_view(await session.run(command, timeout_seconds=float(timeout_seconds)))

    async def restore(self, paths: str | Sequence[str] = ".") -> list[str]:
        """Make files of the workspace those of the untouched repository again; not in a pod.

        ``paths``: files, and directories with everything below; default: all. Files that the repository does not have
        are deleted. It is not a step and not in the history. Returns the files that were changed.

        Raises:
            ArgumentError: The episode runs in a pod, or an argument has no valid value.
            EpisodeOver: The episode has ended or was never reset.
            PathError: A path leads outside of the workspace, or never was a file or directory in it.
        """
        wanted = [paths] if isinstance(paths, str) else paths
        if not isinstance(wanted, Sequence) or not all(isinstance(path, str) for path in wanted):
            _refuse("paths", paths, 'a path or a sequence of paths, such as ["src/calc.py"]')
        session = self._here("restore()", "the agent can restore files by its tools rewrite and bash")
        return list(await session.restore(wanted))

    async def add_tool(self, tool: str | Mapping[str, Any] | ToolSpec | Tool) -> None:
        """Add a tool to the running episode, if there is one, and to later ones; not in a pod.

        Raises:
            ArgumentError: The episode runs in a pod.
            PluginError: It does not exist, cannot be loaded, or has the name of another.
            SetupFailed: One of its ``setup_commands`` failed in the running episode.
        """
        local, spec = self._local_episodes("add_tool()"), _tool_spec(tool)
        made = load_tools((*local.tools, spec))[-1]
        if isinstance(self._episode, Session) and not self._episode.ending.is_set():
            await self._episode.add_tool(made)
        local.tools = (*local.tools, spec)

    def remove_tool(self, name: str) -> Tool:
        """Remove a tool from the running episode, if there is one, and from later ones; returns it. Not in a pod.

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
        """The tools of the next episode, as they were given; not in a pod."""
        return self._local_episodes("tools").tools

    def _local_episodes(self, what: str) -> LocalEpisodes:
        if self._local is None:
            _refuse_in_pod(what, "its tools are those of the Episode's spec.tools")
        return self._local

    def _here(self, what: str, remedy: str) -> Session:
        """The running session of this process."""
        if self._local is None:
            _refuse_in_pod(what, remedy)
        episode = self._running()
        assert isinstance(episode, Session)
        return episode

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution; for the ``solution`` agent, which checks tasks."""
        if self._episode is None:
            raise EpisodeOver("call reset() first")
        return await self._episode.apply_solution()

    def observe(
        self, observer: Callable[[Step], None], *, sending: Callable[[int, Action], None] | None = None
    ) -> None:
        """Call ``observer`` with every step that is recorded from now on; number 0 is the reset.

        A step that the episode recorded by itself, such as one that its deadline ended, is reported by the next call.
        Steps of drivers before this one are reported by the reset. ``sending`` gets each step before it is executed.
        """
        self._observers.append(observer)
        self._senders += [sending] if sending is not None else []

    @property
    def environment(self) -> RunEnvironment | None:
        """Where the programs of the task run, and what the sandbox reports of it; None where a pod does not report it.

        Raises:
            EpisodeOver: The episode was never reset.
        """
        return self._running().toolset.environment

    @property
    def usage(self) -> Usage:
        """Tokens of the model and their price, as drivers of this episode recorded them."""
        return (self._episode.state.usage if self._episode is not None else None) or Usage()

    def record_usage(self, *, input_tokens: int, output_tokens: int, price: str | None = None) -> None:
        """Record the tokens that the model has used so far; in a pod they travel with the next step.

        ``price`` is what they have cost, such as ``"0.25"``; None where that is not known.
        """
        self._running().record_usage(Usage(input_tokens=input_tokens, output_tokens=output_tokens, price=price))

    def render(self) -> str | None:
        """The last observation's text in render mode "ansi"."""
        return self._last.text if self.render_mode == "ansi" and self._last is not None else None

    async def close(self) -> None:
        """End everything, without scoring what was not finished. Idempotent.

        Of an episode in a pod only the connection ends.
        """
        episode, self._episode, self._last = self._episode, None, None
        if episode is not None:
            await episode.close()

    def _running(self) -> Episode:
        if self._episode is None or self._last is None:
            raise EpisodeOver("call reset() first")
        return self._episode

    def _info(self, episode: Episode, last: Observation) -> InfoDict:
        """The info that surrounds ``last``, with the tools where they are not those that an info gave before."""
        info = info_view(episode, last)
        before, self._offered = self._offered, episode.state.tools
        if self._offered != before:
            info["tools"] = tools_view(episode.toolset)
        return info

    def _report(self) -> None:
        """Show the observers what the history holds beyond what they have seen."""
        if self._episode is None:
            return
        for step in self._episode.history(start=self._observed):
            for observer in self._observers:
                observer(step)
            self._observed += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


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
        raise ArgumentError(f"unknown options {sorted(unknown)}; reset() knows 'eval' and 'task'")
    return options or {}


def check_choice(name: str, value: Any, known: Iterable[str | None]) -> None:
    """Refuse a value that is none of ``known``."""
    known = tuple(known)
    # A list is unhashable, and a dictionary's `in` would say so in words of its own.
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        shown = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in known]
        _refuse(name, value, f"{', '.join(shown[:-1])} or {shown[-1]}")


def _check_count(name: str, value: Any, *, least: int, optional: bool = False) -> None:
    """Refuse what is not a whole number from ``least`` on; with ``optional`` None is accepted."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        _refuse(name, value, f"a whole number from {least} on{', or None for no limit' if optional else ''}")


def _check_seconds(name: str, value: Any) -> None:
    """Refuse what is neither None nor a finite number of seconds above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        _refuse(name, value, "a number of seconds above 0, or None for no limit")


def _check_tools(value: Any) -> None:
    """Refuse what is not a sequence; a single name would be read letter by letter."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        _refuse("tools", value, 'a sequence of names, {"name": …, "options": …} or Tool objects, such as ["view"]')


def _check_python(value: Any) -> None:
    """Refuse what is neither None nor the path of a file or directory."""
    if value is not None and not (isinstance(value, str | Path) and str(value)):
        _refuse("python", value, "the path of an interpreter or a virtual environment, or None")


def _check_callable(name: str, value: Any) -> None:
    """Refuse what is neither None nor callable."""
    if value is not None and not callable(value):
        _refuse(name, value, "a function of one text, or None")


def _refuse(name: str, value: Any, valid: str) -> NoReturn:
    raise ArgumentError(f"{name} is {value!r}; it must be {valid}")
