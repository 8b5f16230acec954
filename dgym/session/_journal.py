"""The journal of an episode: exactly-once execution of its steps, and their replay in a new sandbox.

The client numbers the steps. A request whose number was used for the same call returns the recorded observation, or
joins the execution in flight. A number that was used for another call, or that leaves a gap, is a conflict. A client
that lost a response (a dropped connection, a crash) repeats the request.

A replay executes the mutating calls of recorded steps again. If a sandbox dies during a step, the step is poisoned: no
replay executes it again. A replayed call has diverged if its exit status, success, file change or resulting workspace
differs from the record. A divergence is noted and does not end the episode.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from dgym.errors import ConflictError, SandboxLost
from dgym.sandbox import Sandbox
from dgym.session._execution import Execution, execute
from dgym.tools import Tool, ToolContext
from dgym.wire import Breakpoint, EndReason, Observation, Step, ToolCall

T = TypeVar("T")
Execute = Callable[[ToolCall], Awaitable[Observation]]

_KEPT_OUTCOMES = 16


class RequestsInFlight:
    """The requests in flight, found by equality.

    An execution continues if its callers are cancelled. Its result or exception is kept until a caller has received it,
    so a client that polls never starts the same request again.
    """

    def __init__(self) -> None:
        self._entries: list[_RequestInFlight] = []

    async def once(self, kind: str, key: object, execute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``execute``, or of an equal request whose result no caller has received yet."""
        entry = next((entry for entry in self._entries if (entry.kind, entry.key) == (kind, key)), None)
        if entry is None:
            self._drop_unclaimed()
            entry = _RequestInFlight(kind, key, asyncio.create_task(execute(), name=f"dgym-{kind}"))
            # asyncio logs exceptions that are never retrieved.
            entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._entries.append(entry)
        await asyncio.wait([entry.task])
        self._entries = [other for other in self._entries if other is not entry]
        outcome: T = entry.task.result()
        return outcome

    def running(self, kind: str) -> list[Any]:
        """The keys of the requests of a kind that are being executed."""
        return [entry.key for entry in self._entries if entry.kind == kind and not entry.task.done()]

    async def settled(self, kind: str) -> None:
        """Wait until the requests of a kind that are being executed have ended."""
        if tasks := [entry.task for entry in self._entries if entry.kind == kind]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel all executions and wait until they have ended."""
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.task.cancel()
        await asyncio.gather(*(entry.task for entry in entries), return_exceptions=True)

    def _drop_unclaimed(self) -> None:
        """Drop the oldest results that were not received by a caller."""
        done = [entry for entry in self._entries if entry.task.done()]
        for entry in done[:-_KEPT_OUTCOMES]:
            self._entries.remove(entry)


class _RequestInFlight(NamedTuple):
    kind: str
    key: Any
    task: asyncio.Task[Any]


class Journal:
    """The steps of one session, in order. Step 0 is the reset.

    Args:
        requests: Executes the steps.
        changed: Called when the execution of a step begins and when it ends.
    """

    def __init__(self, requests: RequestsInFlight, changed: Callable[[], None] = lambda: None) -> None:
        self._requests = requests
        self._changed = changed
        self._steps: list[Step] = []
        self.in_flight: int | None = None
        """The number of the step that is being executed."""

    @property
    def steps(self) -> list[Step]:
        """A copy of the recorded steps."""
        return list(self._steps)

    @property
    def busy(self) -> bool:
        """Whether a step is being executed."""
        return bool(self._requests.running("step"))

    @property
    def next_seq(self) -> int:
        """The number that the next new step must have."""
        return len(self._steps)

    def recorded(self, seq: int, call: ToolCall | None) -> Observation | None:
        """Return the observation of step ``seq``, or None if the step is not recorded.

        Raises:
            ConflictError: The step is recorded with another call, or a number before it is missing.
        """
        if seq < 0 or seq > self.next_seq:
            raise ConflictError(f"step {seq} leaves a gap: the next step is number {self.next_seq}")
        if seq == self.next_seq:
            return None
        step = self._steps[seq]
        if step.call != call:
            raise ConflictError(f"step {seq} was another call ({_describe(step.call)}, not {_describe(call)})")
        return step.observation

    async def once(self, seq: int, call: ToolCall, execute: Execute) -> Observation:
        """Execute ``call`` as step ``seq``, or return the recorded observation.

        Raises:
            ConflictError: The number belongs to another call, or leaves a gap.
        """
        known = self.recorded(seq, call)
        if known is not None:
            return known
        for _, running in self._requests.running("step"):
            if running != call:
                raise ConflictError(f"step {seq} is running as another call ({_describe(running)})")
        return await self._requests.once("step", (seq, call), lambda: self._execute(seq, call, execute))

    async def _execute(self, seq: int, call: ToolCall, execute: Execute) -> Observation:
        self.in_flight = seq
        self._changed()
        try:
            observation = await execute(call)
            self._steps.append(Step(seq=seq, call=call, observation=observation))
        finally:
            self.in_flight = None
            self._changed()
        return observation

    async def settled(self) -> None:
        """Wait until the step that is being executed, if any, has ended."""
        await self._requests.settled("step")

    def end(self, reason: EndReason) -> Observation:
        """Record that the last step ended the episode. Return its observation."""
        last = self._steps[-1]
        observation = msgspec.structs.replace(last.observation, end_reason=reason)
        self._steps[-1] = msgspec.structs.replace(last, observation=observation)
        return observation

    def restore(self, steps: Iterable[Step]) -> None:
        """Start with ``steps``: the reset, number 0, and the steps after it that an earlier session recorded."""
        self._steps[:] = steps


def _describe(call: ToolCall | None) -> str:
    return "reset" if call is None else call.tool


REPLAY_TIMEOUT_SECONDS = 600.0
"""Time allowed for a replay, in addition to twice the recorded durations of its calls."""

_SECONDS_PER_PATH = 40e-6
"""Ten times the cost of one path, so digests take at most a tenth of the time of the calls."""
_COMPARED = ("ok", "exit_status", "diff", "workspace_digest")
_SHOWN = {"diff": "the file was changed differently", "workspace_digest": "different files were left"}


class RecordedTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of an earlier session. The first is the reset; a reset without text was not recorded.

    Args:
        steps: The reset and the calls.
        poisoned: Numbers of the steps during which sandboxes died. Replays skip them.
        misaddressed: Numbers of the steps whose tool was not available. Replays skip them too.
        seconds: Duration of the earlier sessions.
        unread: True if the last sandbox died before its final changes were read. If the next sandbox dies too, the
            episode is not scored.
    """

    steps: tuple[Step, ...]
    poisoned: tuple[int, ...] = ()
    misaddressed: tuple[int, ...] = ()
    seconds: float = 0.0
    unread: bool = False

    def after(self, reset: Observation) -> "RecordedTrajectory":
        """Return this trajectory with ``reset`` as the first step, if the reset was not recorded."""
        recorded, *others = self.steps
        if recorded.observation.text:
            return self
        return msgspec.structs.replace(self, steps=(msgspec.structs.replace(recorded, observation=reset), *others))

    def with_another_death(self, killer: int) -> "RecordedTrajectory":
        """Return this trajectory after the sandbox died during the replay of step ``killer``.

        If the last step is poisoned, its observation also reports that death.
        """
        *others, last = self.steps
        if last.seq not in self.poisoned:
            return self
        text = f"{last.observation.text} The new sandbox was killed by step {killer} when the step was replayed."
        last = msgspec.structs.replace(last, observation=msgspec.structs.replace(last.observation, text=text))
        return msgspec.structs.replace(self, steps=(*others, last))

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The breakpoints after the last step."""
        recorded = (step.observation.breakpoints for step in reversed(self.steps))
        return next((breakpoints for breakpoints in recorded if breakpoints is not None), ())

    @property
    def focus_file(self) -> str | None:
        """The focus file after the last step."""
        recorded = (step.observation.focus_file for step in reversed(self.steps))
        return next((focus_file for focus_file in recorded if focus_file is not None), None)


class ReplayTimeout(Exception):
    """The replay took too long. ``seq`` is the step that was being replayed."""

    def __init__(self, seq: int, seconds: float) -> None:
        super().__init__(f"replaying the episode took longer than {seconds:.0f} s")
        self.seq = seq


Replayed = Callable[[Step, Execution | None], Awaitable[None]]
"""Called after each step with its new execution; None if the step was not executed again."""


async def replay(
    available: Callable[[], Mapping[str, Tool]],
    context: ToolContext,
    steps: Sequence[Step],
    replayed: Replayed,
    *,
    left_out: Collection[int] = (),
) -> int | None:
    """Execute the mutating calls of ``steps`` except ``left_out``, with the tools that are ``available`` at each step.

    The digest of the workspace is compared where the record has one, up to the first difference: all later digests
    would differ too. Returns the number of the step during which this sandbox died, or None if all were executed.

    Raises:
        ReplayTimeout: It took longer than ``REPLAY_TIMEOUT_SECONDS`` plus twice the recorded durations.
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
    """Describe how the replay of ``step`` differs from its record. None if it does not."""
    if execution is None:
        return None
    before, after = step.observation, execution.observation
    differing = [name for name in _COMPARED if getattr(before, name) != getattr(after, name)]
    if not after.workspace_digest and "workspace_digest" in differing:
        differing.remove("workspace_digest")
    if not differing:
        return None
    shown = (
        _SHOWN.get(name) or f"{name.replace('_', ' ')} {getattr(after, name)} instead of {getattr(before, name)}"
        for name in differing
    )
    return f"the replay of step {step.seq} ({before.tool}) diverged: {', '.join(shown)}"


def death_observation(call: ToolCall, death: object) -> Observation:
    """The observation of ``call`` if the sandbox died during it."""
    text = (
        f"The sandbox was killed ({death}). A new sandbox was started and your earlier changes were made again in it. "
        "This call was not repeated."
    )
    return Observation(text=text, tool=call.tool, ok=False)


class WorkspaceDigests:
    """Takes the digest of the workspace after calls, unless the workspace is large and the calls were short.

    A digest covers all changes since the baseline, so the next digest includes the changes of a call without one.
    """

    def __init__(self, sandbox: Sandbox, paths: int) -> None:
        self._sandbox = sandbox
        self._paths = paths
        self._seconds = 0.0

    @classmethod
    async def begin(cls, sandbox: Sandbox) -> "WorkspaceDigests":
        """Make the current state of the workspace the baseline."""
        return cls(sandbox, (await sandbox.digest(begin=True)).paths)

    async def after(self, execution: Execution) -> Execution:
        """Return ``execution`` with the digest of the workspace, if it is time for one.

        Raises:
            SandboxLost: The digest showed that the sandbox has died.
        """
        self._seconds += execution.observation.duration_seconds
        if self._seconds < self._paths * _SECONDS_PER_PATH:
            return execution
        self._seconds = 0.0
        digest = await self._sandbox.digest()
        self._paths = digest.paths
        observation = msgspec.structs.replace(execution.observation, workspace_digest=digest.sha256)
        return msgspec.structs.replace(execution, observation=observation)
