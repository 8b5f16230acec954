"""The journal: every step is executed exactly once, however often it is asked for.

The driver numbers the steps. A number that was seen with the same call answers with the recorded observation, and
waits for it while it still runs; with another call, or when a number was left out, it is a conflict. So a driver
that lost an answer (a dropped connection, a crash) simply asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dgym.errors import ConflictError
from dgym.wire import Observation, Step, ToolCall

Execute = Callable[[ToolCall], Awaitable[Observation]]


class Journal:
    """The steps of one session, in order, numbered from 0 (the reset)."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._running: tuple[ToolCall, asyncio.Task[Observation]] | None = None

    @property
    def steps(self) -> list[Step]:
        """A copy of what was recorded so far."""
        return list(self._steps)

    @property
    def busy(self) -> bool:
        """Whether a step runs now."""
        return self._running is not None

    @property
    def next_seq(self) -> int:
        """The number that the next new step must have."""
        return len(self._steps)

    def recorded(self, seq: int, call: ToolCall | None) -> Observation | None:
        """The observation of step ``seq`` if it is known.

        Raises:
            ConflictError: It is known with another call, or a number before it is missing.
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
        """Execute ``call`` as step ``seq``, or answer from the record.

        The execution goes on when the caller is cancelled: the step is what was promised, not the connection.
        """
        known = self.recorded(seq, call)
        if known is not None:
            return known
        if self._running is not None:
            running_call, task = self._running
            if running_call != call:
                raise ConflictError(f"step {seq} is running as another call ({_describe(running_call)})")
        else:
            task = asyncio.create_task(self._execute(seq, call, execute), name=f"dgym-step-{seq}")
            self._running = (call, task)
        return await asyncio.shield(task)

    async def _execute(self, seq: int, call: ToolCall, execute: Execute) -> Observation:
        try:
            observation = await execute(call)
            self._steps.append(Step(seq=seq, call=call, observation=observation))
            return observation
        finally:
            self._running = None

    async def settled(self) -> None:
        """Wait for the end of the step that runs now, if one does."""
        if self._running is not None:
            await asyncio.wait([self._running[1]])

    def record_reset(self, observation: Observation) -> None:
        """Write down the reset as step 0."""
        self._steps[:] = [Step(seq=0, call=None, observation=observation)]

    async def abandon(self) -> None:
        """Cancel a step that still runs and wait for its end; it is not recorded."""
        if self._running is None:
            return
        _, task = self._running
        task.cancel()
        await asyncio.wait([task])
        # A task that is cancelled before it began runs nothing of its body, its ``finally`` included.
        self._running = None


def _describe(call: ToolCall | None) -> str:
    return "reset" if call is None else call.tool
