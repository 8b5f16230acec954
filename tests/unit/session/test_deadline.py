"""Tests of the deadline clock: start, pause and expiry."""

import asyncio

from dgym.session._execution import Deadline


async def test_a_clock_that_was_not_started_or_is_paused_keeps_what_is_left():
    deadline = Deadline(5.0)
    assert deadline.remaining == 5.0
    deadline.pause()
    assert deadline.remaining == 5.0
    deadline.run()
    assert deadline.remaining <= 5.0
    deadline.pause()
    left = deadline.remaining
    await asyncio.sleep(0)
    assert deadline.remaining == left


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_deadline_passes_only_while_its_clock_runs():
    deadline = Deadline(0.01)
    passed = asyncio.ensure_future(deadline.passed())
    await turns()
    assert not passed.done()
    deadline.run()
    async with asyncio.timeout(90):
        await passed


async def test_a_pause_stops_the_wait_for_the_deadline():
    deadline = Deadline(3600.0)
    deadline.run()
    passed = asyncio.ensure_future(deadline.passed())
    await turns()
    deadline.pause()
    await turns()
    assert not passed.done()
    passed.cancel()


async def test_without_a_limit_it_never_passes():
    deadline = Deadline(None)
    deadline.run()
    assert deadline.remaining is None
    passed = asyncio.ensure_future(deadline.passed())
    await turns()
    assert not passed.done()
    passed.cancel()
