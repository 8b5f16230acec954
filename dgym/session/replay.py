"""Replay: the mutating calls of recorded steps, executed again in a new sandbox.

A sandbox that dies under a step poisons that step: no replay executes it again. A call whose replay has another exit
status, outcome or change of a file than the recorded one, or leaves another workspace, has diverged, which is noted and
ends nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from dgym.errors import SandboxLost
from dgym.session.execution import Execution, execute
from dgym.tools import Tool, ToolContext
from dgym.wire import Breakpoint, Observation, Step, ToolCall

REPLAY_TIMEOUT_SECONDS = 600.0
"""What a replay may take beyond twice the recorded durations of its calls."""
LAST_DEATH = 2
"""A second sandbox that dies under the agent's steps ends the episode."""

_COMPARED = ("ok", "exit_status", "diff", "workspace_digest")
_SHOWN = {"diff": "the change of the file is another", "workspace_digest": "other files were left"}


class RecordedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of an earlier attempt, the reset first; ``poisoned`` are the numbers of those no replay executes.

    A reset without text was not recorded.
    """

    steps: tuple[Step, ...]
    poisoned: tuple[int, ...] = ()

    def after(self, reset: Observation) -> "RecordedHistory":
        """This history, with ``reset`` in the place of one that was not recorded."""
        recorded, *others = self.steps
        if recorded.observation.text:
            return self
        return msgspec.structs.replace(self, steps=(msgspec.structs.replace(recorded, observation=reset), *others))

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The breakpoints after the last step."""
        recorded = (step.observation.breakpoints for step in reversed(self.steps))
        return next((breakpoints for breakpoints in recorded if breakpoints is not None), ())

    @property
    def focus_file(self) -> str | None:
        """The file in focus after the last step."""
        recorded = (step.observation.focus_file for step in reversed(self.steps))
        return next((focus_file for focus_file in recorded if focus_file is not None), None)


class ReplayTimeout(Exception):
    """The replay took too long; ``seq`` is the step under which its time ran out."""

    def __init__(self, seq: int, seconds: float) -> None:
        super().__init__(f"replaying the episode took longer than {seconds:.0f} s")
        self.seq = seq


Replayed = Callable[[Step, Execution | None], Awaitable[None]]
"""Called after each step with its new execution; None for a step that is not executed again."""


async def replay(
    available: Callable[[], Mapping[str, Tool]],
    context: ToolContext,
    steps: Sequence[Step],
    replayed: Replayed,
    *,
    left_out: Collection[int] = (),
) -> int | None:
    """Execute the mutating calls of ``steps`` but those ``left_out``, each with the tools that are ``available`` then.

    The digest of the workspace is taken where the record has one, until the first that differs: after it all would.

    Returns the number of the step under which this sandbox died; None when all were executed.

    Raises:
        ReplayTimeout: It took longer than ``REPLAY_TIMEOUT_SECONDS`` beyond twice the recorded durations.
    """
    seconds = REPLAY_TIMEOUT_SECONDS + 2 * sum(step.observation.duration_seconds for step in steps)
    seq, same = 0, True
    try:
        async with asyncio.timeout(seconds):
            for step in steps:
                seq, call = step.seq, step.call
                tool = available().get(call.tool) if call is not None else None
                execution = None
                if call is not None and tool is not None and tool.mutates and seq not in left_out:
                    execution = await execute(available(), context, call)
                    if same and (recorded := step.observation.workspace_digest):
                        digest = (await context.sandbox.digest()).sha256
                        same = digest == recorded
                        observation = msgspec.structs.replace(execution.observation, workspace_digest=digest)
                        execution = msgspec.structs.replace(execution, observation=observation)
                await replayed(step, execution)
    except SandboxLost:
        return seq
    except TimeoutError:
        raise ReplayTimeout(seq, seconds) from None
    return None


def divergence(step: Step, execution: Execution | None) -> str | None:
    """How the replay of ``step`` differs from its record, as a sentence; None where it does not."""
    if execution is None:
        return None
    before, after = step.observation, execution.observation
    differing = [name for name in _COMPARED if getattr(before, name) != getattr(after, name)]
    if not after.workspace_digest and "workspace_digest" in differing:
        differing.remove("workspace_digest")
    if not differing:
        return None
    shown = (
        _SHOWN.get(name) or f"{name.replace('_', ' ')} {getattr(after, name)} in place of {getattr(before, name)}"
        for name in differing
    )
    return f"the replay of step {step.seq} ({before.tool}) diverged: {', '.join(shown)}"


def death_observation(call: ToolCall, death: object, killer: int | None = None) -> Observation:
    """The observation of ``call``, under which a sandbox died, and ``killer``, under which the next one did."""
    if killer is None:
        text = (
            f"sandbox killed ({death}). A new one was started and your earlier changes were made again in it; "
            "this call was not repeated."
        )
    else:
        text = f"sandbox killed ({death}). A new one was killed by step {killer}, which was made again in it."
    return Observation(text=text, tool=call.tool, ok=False)
