"""Calls that may take longer than a connection should be held for: one execution, however often it is asked for."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar, cast

T = TypeVar("T")


_KEPT_OUTCOMES = 16


class StillRunning(Exception):
    """The call has not ended yet; ask the same again."""


class Ongoing:
    """What runs now, by what was asked for.

    The outcome of an execution waits for the next who asks the same, even when it is an error: whoever was told to
    ask again gets the answer to the question they asked, and a call that takes long is not begun again each time.
    """

    def __init__(self, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        self._tasks: dict[Hashable, asyncio.Task[object]] = {}

    async def answer(self, key: Hashable, execute: Callable[[], Awaitable[T]]) -> T:
        """What ``execute`` returns or raises.

        Raises:
            StillRunning: It takes longer; it goes on.
        """
        task = self._tasks.get(key)
        if task is None:
            self._forget_unwanted()
            task = self._tasks[key] = asyncio.ensure_future(_run(execute))
            task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=self._answer_seconds)
        if not task.done():
            raise StillRunning
        if self._tasks.get(key) is task:
            del self._tasks[key]
        return cast("T", task.result())

    def _forget_unwanted(self) -> None:
        """Drop the oldest outcomes that nobody came back for."""
        done = [key for key, task in self._tasks.items() if task.done()]
        for key in done[:-_KEPT_OUTCOMES]:
            del self._tasks[key]

    async def close(self) -> None:
        """Cancel whatever runs and wait for it."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _retrieve(task: asyncio.Task[object]) -> None:
    """An error that nobody comes back for is not a fault of ours."""
    if not task.cancelled():
        task.exception()


async def _run(execute: Callable[[], Awaitable[object]]) -> object:
    return await execute()
