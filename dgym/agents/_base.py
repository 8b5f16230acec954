"""The interface of agents, and their registry. An agent drives an environment until the episode ends.

An agent can use the environment and the public part of the task. It cannot access the sandbox or the results store, so
the same class runs on a laptop and in an agent pod.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dgym.agents._chat import Chat
from dgym.api import STANDARD_TOOLS, ToolSpec
from dgym.errors import ManifestError, PluginError, nearest
from dgym.lazy import installed
from dgym.llm import Reply
from dgym.wire import EndReason, Observation, Step
from dgym.wire.episode import Action

if TYPE_CHECKING:
    from dgym.env import InfoDict, ObservationDict

Tools = tuple[str | ToolSpec, ...]


class Env(Protocol):
    """The part of ``AsyncRepoEnv`` that agents use."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> "tuple[ObservationDict, InfoDict]":
        """Start the session."""
        ...

    async def step(self, action: Action) -> "tuple[ObservationDict, float, bool, bool, InfoDict]":
        """Execute one call: a line of text, or ``{"tool": NAME, "arguments": {...}}``."""
        ...

    async def peek(self, action: Action) -> "ObservationDict":
        """Return the observation of a ``view`` or ``listdir`` call. The call does not count as a step."""
        ...

    async def patch(self) -> str:
        """Return the agent's changes so far, in the format of ``git apply``."""
        ...

    def trajectory(self) -> list[Step]:
        """Return all steps so far, including the reset."""
        ...

    async def apply_solution(self) -> Observation:
        """Apply the task's gold patch. For agents that check tasks; it is never offered to a model."""
        ...


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """The arguments of an agent, apart from the environment.

    Attributes:
        task_name: Name of the task.
        parameters: ``agent.parameters`` of the manifest.
        model: Name of the model in the model configuration.
        tools: Names of the episode's tools, as in the manifest.
        seed: ``agent.seed`` of the manifest.
        base: Directory for relative paths in ``parameters``. None: parameters must not name files, because the author
            of the manifest must not be able to read files of this machine.
        solution: The gold patch, for agents that set ``needs_solution``.
        chat: The conversation with the model, for agents that set ``uses_model``.
        earlier_replies: Replies of the model in an earlier run of a resumed episode. The key is the ``seq`` of the
            step that followed the reply. Replies that were not recorded are missing.
        log: Writes a line to the episode's log.
        note: Writes a line to the log and adds it to the result's ``notes``.
    """

    task_name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    tools: tuple[str, ...] = ()
    seed: int | None = None
    base: Path | None = Path()
    solution: str | None = None
    chat: Chat | None = None
    earlier_replies: Mapping[int, Reply] = field(default_factory=dict)
    log: Callable[[str], None] = logging.getLogger("dgym.agents").info
    note: Callable[[str], None] = logging.getLogger("dgym.agents").warning


class BaseAgent:
    """The base class of agents. Register a subclass under the entry-point group ``dgym.agents``.

    Attributes:
        name: Name of the agent in manifests.
        default_tools: Tools of the episode if the manifest does not list any.
        banned_tools: Tools that are removed even if the manifest lists them.
        interactive: Whether the agent uses the terminal. It then runs alone, in the main process.
        needs_solution: Whether ``AgentContext.solution`` is set.
        uses_model: Whether ``AgentContext.chat`` is set. Episodes of the agent must then name a model.
    """

    name: ClassVar[str] = ""
    default_tools: ClassVar[tuple[str, ...]] = STANDARD_TOOLS
    banned_tools: ClassVar[tuple[str, ...]] = ()
    interactive: ClassVar[bool] = False
    needs_solution: ClassVar[bool] = False
    uses_model: ClassVar[bool] = False

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:  # noqa: ARG003 - for subclasses
        """Return the episode's tools with the agent's options for them. The default implementation changes nothing.

        Called before the sandbox is started, so that invalid ``parameters`` are found early.

        Raises:
            ManifestError: ``parameters`` are invalid.
        """
        return tools

    @classmethod
    def check_files(cls, parameters: Mapping[str, Any], base: Path | None) -> None:
        """Check the files that ``parameters`` name, relative to ``base``. Called before the sandbox is started.

        Raises:
            ManifestError: A file cannot be used.
        """

    @classmethod
    def prompt_digests(cls, parameters: Mapping[str, Any], base: Path | None) -> dict[str, str]:  # noqa: ARG003
        """Return the digests of the agent's prompt templates by name. They are recorded with the episode."""
        return {}

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset ``env`` and execute calls until the episode has ended or the agent is done.

        The caller then scores the workspace.

        Returns:
            The reason of the end, if the environment cannot determine it (such as a cancellation); else None.

        Raises:
            StopEpisode: The same as returning its reason.
        """
        raise NotImplementedError


def find_file(reference: str, base: Path | None) -> Path:
    """Return the path of a file that a parameter names.

    The path is relative to ``base``, the directory of the manifest. If that file does not exist, it may be relative to
    the current directory, because parameters can also be given on the command line.

    Raises:
        ManifestError: ``base`` is None, because the agent runs in a cluster, where parameters must not name files.
    """
    if base is None:
        raise ManifestError(
            f"agent.parameters name the file {reference[:200]!r}, but agents in a cluster do not read"
            " files; write its text into the manifest if the parameter accepts text"
        )
    path = Path(reference).expanduser()
    return path if not (base / path).exists() and path.exists() else base / path


_GROUP = "dgym.agents"


def agent_names() -> list[str]:
    """Return the names of all installed agents, sorted."""
    return sorted(installed(_GROUP))


def load_agent(name: str) -> type[BaseAgent]:
    """Return the class of an agent, by its name or as ``package.module:Class``.

    Raises:
        PluginError: The agent does not exist, cannot be imported, or is not a subclass of ``BaseAgent`` with a method
            ``run``.
    """
    from dgym.tools import import_dotted

    target = name if ":" in name else _installed_path(name)
    try:
        found = import_dotted(target)
    except Exception as error:
        raise PluginError(f"agent {name!r} cannot be loaded from {target}: {type(error).__name__}: {error}") from error
    return _checked(name, found)


def _installed_path(name: str) -> str:
    found = installed(_GROUP)
    if name in found:
        return found[name].value
    guess = nearest(name, found)
    hint = f"; did you mean {guess!r}?" if guess else ""
    known = ", ".join(sorted(found)) or "none"
    raise PluginError(f"unknown agent {name!r}{hint} (installed: {known}; a class of your own: package.module:Class)")


def _checked(name: str, found: Any) -> type[BaseAgent]:
    if not isinstance(found, type) or not issubclass(found, BaseAgent):
        raise PluginError(f"agent {name!r} is not an agent: derive it from dgym.agents.BaseAgent")
    if found.run is BaseAgent.run:
        raise PluginError(f"agent {name!r} is not an agent: it has no method run")
    return found
