"""Exactly-once execution: requests in flight are joined by equal ones, and the journal records every step.

The client numbers the steps. A number that was seen with the same call is answered with the recorded observation, or
joins the execution in flight; with another call, or when a number was left out, it is a conflict. A client that lost
an answer (a dropped connection, a crash) repeats the request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from dgym.errors import ConflictError
from dgym.wire import EndReason, Observation, Step, ToolCall

T = TypeVar("T")
Execute = Callable[[ToolCall], Awaitable[Observation]]

_KEPT_OUTCOMES = 16


class Requests:
    """The requests in flight, found by equality.

    An execution goes on when its callers are cancelled. Its outcome, an error included, is kept until a caller has
    received it, so that a client which polls never starts the same request again.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    async def once(self, kind: str, key: object, execute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The outcome of ``execute``, or of an equal request's execution whose outcome no caller has received yet."""
        entry = next((entry for entry in self._entries if (entry.kind, entry.key) == (kind, key)), None)
        if entry is None:
            self._drop_unclaimed()
            entry = _Entry(kind, key, asyncio.create_task(execute(), name=f"dgym-{kind}"))
            entry.task.add_done_callback(_retrieve)
            self._entries.append(entry)
        await asyncio.wait([entry.task])
        self._entries = [other for other in self._entries if other is not entry]
        outcome: T = entry.task.result()
        return outcome

    def running(self, kind: str) -> list[Any]:
        """The keys of the requests of a kind that are being executed."""
        return [entry.key for entry in self._entries if entry.kind == kind and not entry.task.done()]

    async def settled(self, kind: str) -> None:
        """Wait for the end of the requests of a kind that are being executed."""
        if tasks := [entry.task for entry in self._entries if entry.kind == kind]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel what is being executed and wait for its end."""
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.task.cancel()
        await asyncio.gather(*(entry.task for entry in entries), return_exceptions=True)

    def _drop_unclaimed(self) -> None:
        """Drop the oldest outcomes that no caller came back for."""
        done = [entry for entry in self._entries if entry.task.done()]
        for entry in done[:-_KEPT_OUTCOMES]:
            self._entries.remove(entry)


class _Entry(NamedTuple):
    kind: str
    key: Any
    task: asyncio.Task[Any]


class Journal:
    """The steps of one session, in order, numbered from 0 (the reset).

    Args:
        requests: Executes the steps.
        changed: Called when a step begins to be executed, and when that is over.
    """

    def __init__(self, requests: Requests, changed: Callable[[], None] = lambda: None) -> None:
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
        """The observation of step ``seq`` if it is recorded.

        Raises:
            ConflictError: It is recorded with another call, or a number before it is missing.
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
        """Wait for the end of the step that is being executed, if one is."""
        await self._requests.settled("step")

    def end(self, reason: EndReason) -> Observation:
        """Record that the last step ended the episode; returns its observation."""
        last = self._steps[-1]
        observation = msgspec.structs.replace(last.observation, end_reason=reason)
        self._steps[-1] = msgspec.structs.replace(last, observation=observation)
        return observation

    def restore(self, steps: Iterable[Step]) -> None:
        """Begin with ``steps``: the reset, number 0, and those that an earlier attempt recorded after it."""
        self._steps[:] = steps


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the error of a request that no caller came back for."""
    if not task.cancelled():
        task.exception()


def _describe(call: ToolCall | None) -> str:
    return "reset" if call is None else call.tool
