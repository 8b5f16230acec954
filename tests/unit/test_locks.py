"""Tests of locks: one caller at a time works while others wait, and a cancelled caller waits for its thread."""

import asyncio
import threading

import pytest

from dgym.errors import SetupFailed
from dgym.locks import hold_lock, whole_in_thread


async def test_one_at_a_time(tmp_path):
    order, waited = [], []

    async def work(number):
        waiting = lambda: waited.append(number)  # noqa: E731
        async with hold_lock(tmp_path / "locks/work", waiting=waiting, timeout_seconds=60.0, error=SetupFailed):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(work(number) for number in range(4)))
    assert order[::2] == order[1::2]
    assert len(waited) == 3


async def test_waiting_for_a_lock_times_out(tmp_path):
    path = tmp_path / "work"
    async with hold_lock(path, waiting=list, timeout_seconds=60.0, error=SetupFailed):
        with pytest.raises(SetupFailed, match=r"another process has held .*work for 0 s"):
            async with hold_lock(path, waiting=list, timeout_seconds=0.0, error=SetupFailed):
                pass


async def test_a_caller_that_is_cancelled_waits_for_its_thread():
    began, may_end, ended = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def work():
        loop.call_soon_threadsafe(began.set)
        may_end.wait(60)
        ended.append(True)

    working = asyncio.create_task(whole_in_thread(work))
    await began.wait()
    working.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not working.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ended
