"""What drives an episode, wherever its session is: the seam between ``AsyncRepoEnv`` and what it stands before."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from dgym.api import DebugTask
from dgym.wire import Breakpoint, EndReason, Observation, Result, Step, ToolCall
from dgym.wire.http import Usage

Action = ToolCall | Mapping[str, Any] | str


class EpisodeView(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds an observation.

    ``instructions`` are the task's under ``task`` and each tool's under its name; ``tools`` are as function-calling
    APIs take them.
    """

    steps: int
    rewrites: int
    evaluation: str | None
    breakpoints: tuple[Breakpoint, ...]
    focus_file: str | None
    notices: tuple[str, ...]
    instructions: dict[str, str]
    tools: tuple[dict[str, Any], ...]


class Driver(Protocol):
    """One environment's episodes, one after the other."""

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        ...

    async def reset(self, *, evaluate: bool, task: DebugTask | None) -> Observation:
        """Start an episode, or take up the one that runs; ``task`` changes what it is about."""
        ...

    async def step(self, action: Action) -> Observation:
        """Execute the next step."""
        ...

    async def peek(self, action: Action) -> Observation:
        """Look without a step."""
        ...

    async def finish(self, reason: EndReason) -> Result:
        """End the episode and score it."""
        ...

    async def patch(self) -> str:
        """What the agent has changed."""
        ...

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution."""
        ...

    def history(self) -> list[Step]:
        """The steps so far; number 0 is the reset."""
        ...

    def view(self) -> EpisodeView:
        """Where the episode stands."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens of the model that drivers before this one have noted."""
        ...

    def note_usage(self, *, input_tokens: int, output_tokens: int) -> None:
        """Tokens of the model so far, for who keeps account of them."""
        ...

    async def close(self) -> None:
        """End everything this driver holds. Idempotent."""
        ...
