"""What an agent is: something that drives an environment until it is done.

An agent sees the environment and the public part of the task. It knows neither where the sandbox is nor who stores
what it does, so the same class runs on a laptop and in an agent pod.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dgym.api import ToolSpec
from dgym.errors import ManifestError
from dgym.wire import EndReason, Observation, Step, ToolCall

if TYPE_CHECKING:
    from dgym.agents.chat import Chat
    from dgym.env import InfoDict, ObservationDict
    from dgym.llm import Reply

STANDARD_TOOLS = ("listdir", "view", "grep", "eval", "pdb", "rewrite", "bash", "submit")

Action = ToolCall | Mapping[str, Any] | str
Tools = tuple[str | ToolSpec, ...]


class StopEpisode(Exception):
    """The agent is done for a reason that the environment cannot know; what is in the workspace is scored."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


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
    """What an agent is told besides its environment.

    ``parameters`` are ``agent.parameters`` of the manifest, ``seed`` is ``agent.seed``; relative paths in
    parameters start from ``base``; None: they name no files, since whoever wrote them must not read this machine's.
    ``tools`` are the names of the episode's tools, as the manifest has them. ``solution`` is the gold patch, given only
    to agents that set ``needs_solution``; ``chat`` is the conversation with the model, given only to agents that set
    ``uses_model``, and ``said`` what the model said before each step that an earlier worker took, where that is known.
    ``log`` writes a line to the episode's log; ``note`` adds a sentence to the result's ``notes`` too.
    """

    task_name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    tools: tuple[str, ...] = ()
    seed: int | None = None
    base: Path | None = Path()
    solution: str | None = None
    chat: "Chat | None" = None
    said: "Mapping[int, Reply]" = field(default_factory=dict)
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
        """The tools as they are."""
        return tools


def find_file(reference: str, base: Path | None) -> Path:
    """The file beside the manifest, or, as with a path typed at the prompt, in the current directory.

    Raises:
        ManifestError: There is no ``base``: the agent runs where the author of its parameters may read no files.
    """
    if base is None:
        raise ManifestError(
            f"agent.parameters name the file {reference[:200]!r}, and an agent in a cluster reads none;"
            " write its text into the manifest where the parameter takes it"
        )
    path = Path(reference).expanduser()
    return path if not (base / path).exists() and path.exists() else base / path
