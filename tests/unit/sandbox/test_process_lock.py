"""What is costly to make is made by one process while the others wait."""

import asyncio

import pytest

from dgym.errors import SetupFailed
from dgym.sandbox.process_lock import only_one


async def test_one_at_a_time(tmp_path):
    order, waited = [], []

    async def work(number):
        waiting = lambda: waited.append(number)  # noqa: E731
        async with only_one(tmp_path / "locks/work", waiting=waiting, timeout_seconds=60.0, error=SetupFailed):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(work(number) for number in range(4)))
    assert order[::2] == order[1::2]
    assert len(waited) == 3


async def test_waiting_has_an_end(tmp_path):
    path = tmp_path / "work"
    async with only_one(path, waiting=list, timeout_seconds=60.0, error=SetupFailed):
        with pytest.raises(SetupFailed, match=r"another process has held .*work for 0 s"):
            async with only_one(path, waiting=list, timeout_seconds=0.0, error=SetupFailed):
                pass
