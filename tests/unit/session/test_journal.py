"""Tests of the journal: each step is executed exactly once, for any number of requests and callers."""

import asyncio

import pytest

from dgym.errors import ConflictError
from dgym.session._journal import Journal, RequestsInFlight
from dgym.wire import Observation, Step, ToolCall

VIEW = ToolCall(tool="view", arguments={"path": "calc.py"})
EVAL = ToolCall(tool="eval")


class Counting:
    """Executes calls and counts them. If ``go`` is given, each call waits for it."""

    def __init__(self, go: asyncio.Event | None = None) -> None:
        self.calls = 0
        self.go = go

    async def __call__(self, call: ToolCall) -> Observation:
        self.calls += 1
        if self.go is not None:
            await self.go.wait()
        return Observation(text=f"{call.tool} {self.calls}")


@pytest.fixture
def requests() -> RequestsInFlight:
    return RequestsInFlight()


@pytest.fixture
def journal(requests) -> Journal:
    journal = Journal(requests)
    journal.restore([Step(seq=0, call=None, observation=Observation(text="hello"))])
    return journal


async def test_a_repeated_step_answers_from_the_record(journal):
    execute = Counting()
    first = await journal.once(1, VIEW, execute)
    assert await journal.once(1, VIEW, execute) == first
    assert execute.calls == 1
    assert [step.seq for step in journal.steps] == [0, 1]


async def test_a_repetition_while_it_runs_waits_for_the_same_execution(journal):
    go = asyncio.Event()
    execute = Counting(go)
    both = [asyncio.create_task(journal.once(1, VIEW, execute)) for _ in range(2)]
    while not journal.busy:
        await asyncio.sleep(0)
    go.set()
    assert len({observation.text for observation in await asyncio.gather(*both)}) == 1
    assert execute.calls == 1


async def test_the_same_number_with_another_call_is_a_conflict(journal):
    await journal.once(1, VIEW, Counting())
    with pytest.raises(ConflictError, match=r"step 1 was another call \(view, not eval\)"):
        await journal.once(1, EVAL, Counting())


async def test_another_call_while_one_runs_is_a_conflict(journal):
    go = asyncio.Event()
    running = asyncio.create_task(journal.once(1, VIEW, Counting(go)))
    while not journal.busy:
        await asyncio.sleep(0)
    with pytest.raises(ConflictError, match="is running as another call"):
        await journal.once(1, EVAL, Counting())
    go.set()
    await running


@pytest.mark.parametrize("seq", [2, 7, -1])
async def test_a_gap_is_a_conflict(journal, seq):
    with pytest.raises(ConflictError, match="the next step is number 1"):
        await journal.once(seq, VIEW, Counting())


async def test_reset_is_step_zero_and_cannot_be_a_call(journal):
    with pytest.raises(ConflictError, match="step 0 was another call"):
        await journal.once(0, VIEW, Counting())


async def test_a_cancelled_caller_does_not_stop_the_step(journal):
    go = asyncio.Event()
    execute = Counting(go)
    caller = asyncio.create_task(journal.once(1, VIEW, execute))
    while not journal.busy:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()
    assert (await journal.once(1, VIEW, execute)).text == "view 1"
    assert execute.calls == 1


async def test_a_failed_step_is_not_recorded_and_may_be_asked_again(journal):
    async def fail(call: ToolCall) -> Observation:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        await journal.once(1, VIEW, fail)
    assert journal.next_seq == 1
    assert (await journal.once(1, VIEW, Counting())).text == "view 1"


async def test_an_abandoned_step_is_cancelled_and_not_recorded(journal, requests):
    waiting = asyncio.create_task(journal.once(1, VIEW, Counting(asyncio.Event())))
    while not journal.busy:
        await asyncio.sleep(0)
    await requests.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert journal.next_seq == 1
    assert not journal.busy


async def leave(requests, key, execute):
    """Send a request and cancel it while it is executed."""
    caller = asyncio.create_task(requests.once("look", key, execute))
    while not requests.running("look"):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])


async def test_a_request_that_takes_long_is_executed_once_and_answered_later(requests):
    release, executed = asyncio.Event(), []

    async def work():
        executed.append(1)
        await release.wait()
        return "done"

    for _ in range(3):
        await leave(requests, "key", work)
    release.set()
    assert await requests.once("look", "key", work) == "done"
    assert executed == [1]
    assert await requests.once("look", "key", work) == "done"
    assert executed == [1, 1]


async def test_an_error_is_an_outcome_too(requests, journal):
    release = asyncio.Event()

    async def fail(*_call):
        await release.wait()
        raise ValueError("no")

    await leave(requests, "key", fail)
    step = asyncio.create_task(journal.once(1, VIEW, fail))
    while not journal.busy:
        await asyncio.sleep(0)
    step.cancel()
    release.set()
    await requests.settled("look")
    await journal.settled()
    with pytest.raises(ValueError, match="no"):
        await requests.once("look", "key", release.wait)
    with pytest.raises(ValueError, match="no"):
        await journal.once(1, VIEW, Counting())
    assert (await journal.once(1, VIEW, Counting())).text == "view 1"


async def test_results_that_were_not_fetched_are_dropped_beyond_the_limit(requests):
    release = asyncio.Event()
    for number in range(100):
        release.clear()
        await leave(requests, number, release.wait)
        release.set()
        await requests.settled("look")
    assert len(requests._entries) <= 20


async def test_close_cancels_running_requests(requests):
    cancelled = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    caller = asyncio.create_task(requests.once("look", "key", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await requests.close()
    assert cancelled.is_set()
