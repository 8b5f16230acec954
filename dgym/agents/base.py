"""The interface of agents, and the registry: an agent drives an environment until the episode ends.

An agent sees the environment and the public part of the task. It has no access to the sandbox and to the results
store, so the same class runs on a laptop and in an agent pod.
"""

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from dgym.agents.chat import Chat
from dgym.api import ToolSpec
from dgym.errors import ManifestError, PluginError
from dgym.llm import Reply
from dgym.wire import EndReason, Observation, Step, ToolCall

if TYPE_CHECKING:
    from dgym.env import InfoDict, ObservationDict

STANDARD_TOOLS = ("listdir", "view", "grep", "eval", "pdb", "rewrite", "bash", "submit")

Action = ToolCall | Mapping[str, Any] | str
Tools = tuple[str | ToolSpec, ...]


class Env(Protocol):
    """The part of ``AsyncRepoEnv`` that agents use."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> "tuple[ObservationDict, InfoDict]":
        """Start the session."""
        ...

    async def step(self, action: Action) -> "tuple[ObservationDict, float, bool, bool, InfoDict]":
        """Make one call: a line of text, or ``{"tool", "arguments"}``."""
        ...

    async def peek(self, action: Action) -> "ObservationDict":
        """The answer of ``view`` or ``listdir`` without a step."""
        ...

    async def patch(self) -> str:
        """The changes so far as ``git apply`` takes them."""
        ...

    def history(self) -> list[Step]:
        """Every step so far, reset included."""
        ...

    async def apply_solution(self) -> Observation:
        """Apply the task's gold patch; for agents that check tasks, never offered to a model."""
        ...


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """What an agent gets besides its environment.

    Attributes:
        parameters: ``agent.parameters`` of the manifest.
        model: The name of the model in its configuration.
        tools: The names of the episode's tools, as the manifest has them.
        seed: ``agent.seed`` of the manifest.
        base: Where relative paths in parameters start. None: parameters name no files, because the manifest's author
            must not read files of this machine.
        solution: The gold patch, for agents that set ``needs_solution``.
        chat: The conversation with the model, for agents that set ``uses_model``.
        said: The model's reply before each step that an earlier worker took, by the step's ``seq``, where it is known.
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
    said: Mapping[int, Reply] = field(default_factory=dict)
    log: Callable[[str], None] = logging.getLogger("dgym.agents").info
    note: Callable[[str], None] = logging.getLogger("dgym.agents").warning


class Agent(Protocol):
    """The interface of agents. Register a class under the entry-point group ``dgym.agents``.

    ``default_tools`` are used where the manifest names none; ``banned_tools`` are taken away even where it does.
    An ``interactive`` agent talks to the terminal and therefore runs alone, in the main process. An episode of an
    agent that ``uses_model`` must name a model.
    """

    name: ClassVar[str]
    default_tools: ClassVar[tuple[str, ...]]
    banned_tools: ClassVar[tuple[str, ...]]
    interactive: ClassVar[bool]
    needs_solution: ClassVar[bool]
    uses_model: ClassVar[bool]

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:
        """The episode's tools with the options this agent gives them.

        Called before anything runs, so that wrong ``parameters`` are found there.

        Raises:
            ManifestError: ``parameters`` are wrong.
        """
        ...

    @classmethod
    def check_files(cls, parameters: Mapping[str, Any], base: Path | None) -> None:
        """Read the files that ``parameters`` name, relative to ``base``; called before anything runs.

        Raises:
            ManifestError: A file cannot be used.
        """
        ...

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset ``env`` and drive it until it has ended or the agent is done.

        The caller scores whatever is left in the workspace. A reason is returned (or raised as ``StopEpisode``) only
        for ends that the environment cannot know: the user cancelled, the token budget is used up.
        """
        ...


class BaseAgent:
    """Defaults for the class attributes of ``Agent``."""

    name: ClassVar[str] = ""
    default_tools: ClassVar[tuple[str, ...]] = STANDARD_TOOLS
    banned_tools: ClassVar[tuple[str, ...]] = ()
    interactive: ClassVar[bool] = False
    needs_solution: ClassVar[bool] = False
    uses_model: ClassVar[bool] = False

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:  # noqa: ARG003 - for subclasses
        """The tools unchanged."""
        return tools

    @classmethod
    def check_files(cls, parameters: Mapping[str, Any], base: Path | None) -> None:
        """Nothing: the parameters name no files."""

    @classmethod
    def prompt_digests(cls, parameters: Mapping[str, Any], base: Path | None) -> dict[str, str]:  # noqa: ARG003
        """Digests of the templates of the agent's prompts, by name, for the record of an episode."""
        return {}


def find_file(reference: str, base: Path | None) -> Path:
    """The file beside the manifest, or, as with a path typed at the prompt, in the current directory.

    Raises:
        ManifestError: ``base`` is None: the agent runs in a cluster, where parameters name no files.
    """
    if base is None:
        raise ManifestError(
            f"agent.parameters name the file {reference[:200]!r}, and an agent in a cluster reads none;"
            " write its text into the manifest where the parameter takes it"
        )
    path = Path(reference).expanduser()
    return path if not (base / path).exists() and path.exists() else base / path


_GROUP = "dgym.agents"


def agent_names() -> list[str]:
    """Every agent installed, sorted."""
    return sorted({point.name for point in entry_points(group=_GROUP)})


def load_agent(name: str) -> type[Agent]:
    """The agent's class.

    Raises:
        PluginError: No such agent, or it cannot be imported, or it is no agent; the message names it.
    """
    from dgym.tools import import_dotted

    target = name if ":" in name else _entry_point(name).value
    try:
        found = import_dotted(target)
    except Exception as error:
        raise PluginError(f"agent {name!r} cannot be loaded from {target}: {type(error).__name__}: {error}") from error
    return _checked(name, found)


def _entry_point(name: str) -> EntryPoint:
    found = {point.name: point for point in entry_points(group=_GROUP)}
    if name in found:
        return found[name]
    nearest = difflib.get_close_matches(name, found, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    known = ", ".join(sorted(found)) or "none"
    raise PluginError(
        f"there is no agent {name!r}{hint} (installed: {known}; a class of your own: package.module:Class)"
    )


def _checked(name: str, found: Any) -> type[Agent]:
    needed = ("name", "default_tools", "banned_tools", "interactive", "needs_solution", "uses_model", "run")
    missing = [attribute for attribute in needed if not hasattr(found, attribute)]
    if not isinstance(found, type) or missing:
        what = f"it has no {', '.join(missing)}" if missing else "it is not a class"
        raise PluginError(f"agent {name!r} is not an agent: {what}; derive it from dgym.agents.BaseAgent")
    return cast("type[Agent]", found)
