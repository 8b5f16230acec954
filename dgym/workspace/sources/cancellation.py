"""Long work beside the event loop that can be given up.

Fetching a repository waits for networks and processes. It runs in a daemon thread, unlike asyncio's own, which would
hold the program at its end until the last download has timed out; cancelling the waiting task tells the thread.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dgym.errors import SourceFailed

Outcome = TypeVar("Outcome")


class Work:
    """What a thread asks now and then: whether anybody still waits for it."""

    def __init__(self) -> None:
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._given_up.set()

    def check(self) -> None:
        """Raise when nobody waits any more."""
        if self._given_up.is_set():
            raise SourceFailed("fetching was cancelled")

    def pause(self, seconds: float) -> None:
        """Sleep, unless told to give up."""
        self._given_up.wait(seconds)
        self.check()


async def in_thread(work: Callable[[Work], Outcome]) -> Outcome:
    """Run ``work`` in a daemon thread; cancellation tells it to give up and does not wait for it."""
    future: Future[Outcome] = Future()
    order = Work()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(order))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dgym-source", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        order.give_up()
