import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dgym.kube import Backoff, QueueClosed, WorkQueue
from tests.fakes.kube_clocks import ManualClock, settle


@pytest.fixture
def queue(clock: ManualClock, random: Random) -> WorkQueue[str]:
    return WorkQueue(clock=clock, random=random, backoff=Backoff(base=1.0, limit=60.0))


async def test_a_key_added_many_times_is_processed_once(queue: WorkQueue[str]) -> None:
    for _ in range(100):
        queue.add("a")
    queue.add("b")
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_it_is_processed_is_processed_again_afterwards(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    async with queue.take() as key:
        assert key == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        assert queue.active == 1
    assert len(queue) == 1
    async with queue.take():
        pass
    assert (len(queue), queue.active) == (0, 0)


async def test_a_worker_that_raises_releases_its_key(queue: WorkQueue[str]) -> None:
    queue.add("a")
    with pytest.raises(ZeroDivisionError):
        async with queue.take():
            raise ZeroDivisionError
    assert queue.active == 0


async def test_workers_wait_for_keys(queue: WorkQueue[str]) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    queue.add("a")
    queue.add("b")
    await settle()
    assert [worker.done() for worker in workers] == [True, True, False]
    queue.close()
    with pytest.raises(QueueClosed):
        await workers[2]


async def test_a_cancelled_worker_does_not_lose_a_key(queue: WorkQueue[str]) -> None:
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    await settle()
    assert second.done()
    assert second.result() == "a"


async def test_keys_with_low_priority_wait_for_other_keys_except_every_tenth(queue: WorkQueue[str]) -> None:
    for number in range(30):
        queue.add(f"low-{number}", low_priority=True)
    for number in range(15):
        queue.add(f"high-{number}")
    order = [await queue.get() for _ in range(45)]
    assert order.index("low-0") == 9
    assert [key for key in order[:16] if key.startswith("high")] == [f"high-{number}" for number in range(15)]


async def test_a_key_is_promoted_from_low_to_normal_priority(queue: WorkQueue[str]) -> None:
    queue.add("a", low_priority=True)
    queue.add("b", low_priority=True)
    queue.add("b")
    queue.add("b", low_priority=True)
    assert [await queue.get(), await queue.get()] == ["b", "a"]


async def test_delays_end_in_their_order(queue: WorkQueue[str], clock: ManualClock) -> None:
    queue.add("late", 20)
    queue.add("soon", 5)
    assert (len(queue), queue.delayed) == (0, 2)
    await clock.advance(4.9)
    assert len(queue) == 0
    await clock.advance(0.2)
    assert await queue.get() == "soon"
    await clock.advance(15)
    assert await queue.get() == "late"
    assert queue.delayed == 0


async def test_the_shortest_of_several_delays_applies(queue: WorkQueue[str], clock: ManualClock) -> None:
    queue.add("a", 50)
    queue.add("a", 5)
    queue.add("a", 70)
    await clock.advance(6)
    assert await queue.get() == "a"
    queue.done("a")
    await clock.advance(100)
    assert len(queue) == 0


async def test_a_delay_may_end_while_a_worker_looks(queue: WorkQueue[str], clock: ManualClock) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a", 5)
    await clock.advance(6)
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1


async def test_repeated_delays_do_not_use_more_memory(queue: WorkQueue[str], clock: ManualClock) -> None:
    for _ in range(200):
        queue.add("a", 10_000)
        queue.add("a", 1)
        await clock.advance(2)
        await queue.get()
        queue.done("a")
    assert len(queue._heap) < 100


async def test_failures_back_off_up_to_a_limit_and_success_forgets_them(queue: WorkQueue[str]) -> None:
    delays = [queue.retry("a") for _ in range(12)]
    assert all(0.5 * full <= delay <= full for delay, full in zip(delays, [1, 2, 4, 8, 16, 32] + [60] * 6, strict=True))
    assert queue.failures("a") == 12
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") <= 1.0


async def test_the_age_of_the_oldest_key(queue: WorkQueue[str], clock: ManualClock) -> None:
    assert queue.oldest_age == 0.0
    queue.add("a", low_priority=True)
    await clock.advance(3)
    queue.add("b")
    queue.add("a")
    await clock.advance(4)
    assert queue.oldest_age == pytest.approx(7)


async def test_a_closed_queue_ignores_keys_and_raises_in_get(queue: WorkQueue[str], clock: ManualClock) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("b", 5)
    queue.close()
    queue.done("a")
    queue.add("c")
    await clock.advance(10)
    assert len(queue) == 0
    with pytest.raises(QueueClosed):
        await queue.get()


KEYS = st.sampled_from("abc")


class QueueAsTold(RuleBasedStateMachine):
    """Compares the queue with a model of the queued, delayed and active keys, in any order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.queue: WorkQueue[str] = WorkQueue(clock=self.clock, random=Random(1))
        self.wanted: set[str] = set()
        self.due: dict[str, float] = {}
        self.active: set[str] = set()

    def teardown(self) -> None:
        self.loop.close()

    @rule(key=KEYS, low=st.booleans())
    def add(self, key: str, low: bool) -> None:
        self.queue.add(key, low_priority=low)
        self.wanted.add(key)

    @rule(key=KEYS, low=st.booleans(), after=st.integers(1, 9))
    def add_later(self, key: str, low: bool, after: int) -> None:
        self.queue.add(key, after, low_priority=low)
        self.due[key] = min(self.due.get(key, float("inf")), self.clock.time + after)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.loop.run_until_complete(self.clock.advance(seconds))
        for key, due in list(self.due.items()):
            if due <= self.clock.time:
                self.wanted.add(key)
                del self.due[key]

    @precondition(lambda self: self.wanted - self.active)
    @rule()
    def take(self) -> None:
        key = self.loop.run_until_complete(asyncio.wait_for(self.queue.get(), 5))
        assert key in self.wanted
        assert key not in self.active
        self.wanted.remove(key)
        self.active.add(key)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.queue.done(key)
        self.active.remove(key)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == len(self.wanted - self.active)
        assert self.queue.active == len(self.active)
        assert self.queue.delayed == len(self.due)


def test_no_order_of_calls_loses_a_key_or_gives_it_to_two_workers() -> None:
    run_state_machine_as_test(QueueAsTold, settings=settings(max_examples=30, stateful_step_count=30))


@given(failures=st.integers(1, 10_000), seed=st.integers())
def test_no_number_of_failures_waits_longer_than_the_limit(failures: int, seed: int) -> None:
    assert 30.0 <= Backoff(base=60.0, limit=60.0).delay(failures, Random(seed)) <= 60.0
