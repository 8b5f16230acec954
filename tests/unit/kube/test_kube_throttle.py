import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dgym.kube import Priority, TokenBucket
from dgym.kube._throttle import SlowStart
from tests.fakes.kube_clocks import HastyClock, ManualClock, settle


async def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = HastyClock()
    bucket = TokenBucket(qps=10.0, burst=5, clock=clock)
    started = clock.time
    for _ in range(5):
        await bucket.take()
    assert clock.time == started
    for _ in range(50):
        await bucket.take()
    assert clock.time - started == pytest.approx(5.0)


async def test_waiters_are_served_in_order_and_one_that_leaves_gives_its_place_back(clock: ManualClock) -> None:
    bucket = TokenBucket(qps=1.0, burst=1, clock=clock)
    await bucket.take()
    waiters = [asyncio.create_task(bucket.take()) for _ in range(3)]
    await settle()
    waiters[2].cancel()
    await clock.advance(1.0)
    assert [waiter.done() for waiter in waiters] == [True, False, True]
    await clock.advance(1.0)
    assert waiters[1].done()
    await clock.advance(1.0)
    await asyncio.wait_for(bucket.take(), 1)


class Callers:
    """Callers of a bucket with one token per second. ``served`` has their names in the order of their tokens."""

    def __init__(self, clock: ManualClock) -> None:
        self.bucket = TokenBucket(qps=1.0, burst=1, clock=clock, patience=10.0)
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def call(self, name: str, priority: Priority) -> None:
        self.tasks.append(asyncio.create_task(self._take(name, priority)))

    async def _take(self, name: str, priority: Priority) -> None:
        await self.bucket.take(priority)
        self.served.append(name)


@pytest.fixture
async def callers(clock: ManualClock) -> AsyncIterator[Callers]:
    made = Callers(clock)
    await made.bucket.take()
    yield made
    for task in made.tasks:
        task.cancel()


async def test_callers_are_served_by_priority_then_by_arrival(callers: Callers, clock: ManualClock) -> None:
    given = ("PROGRESS", "CREATE", "UPDATE", "CREATE", "OUTCOME", "DELETE", "OUTCOME")
    for number, name in enumerate(given):
        callers.call(f"{name}-{number}", Priority[name])
    await clock.advance(7.0)
    assert callers.served == ["OUTCOME-4", "OUTCOME-6", "DELETE-5", "UPDATE-2", "CREATE-1", "CREATE-3", "PROGRESS-0"]
    assert callers.bucket.waited_seconds == pytest.approx(sum(range(1, 8)))


async def test_a_caller_that_has_waited_for_the_limit_is_served_first(callers: Callers, clock: ManualClock) -> None:
    callers.call("old", Priority.PROGRESS)
    for second in range(12):
        callers.call(f"new-{second}", Priority.OUTCOME)
        await clock.advance(1.0)
    assert callers.served.index("old") == 9


async def test_a_later_caller_does_not_overtake_a_waiting_caller(callers: Callers, clock: ManualClock) -> None:
    callers.call("waits", Priority.CREATE)
    await settle()
    # The token is available, and the waiting caller has not run yet.
    clock.jump(1.0)
    callers.call("late", Priority.CREATE)
    await settle()
    assert callers.served == ["waits"]
    await clock.advance(1.0)
    assert callers.served == ["waits", "late"]


@pytest.mark.parametrize(("qps", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bucket_that_never_gives_is_refused(clock: ManualClock, qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="token bucket"):
        TokenBucket(qps=qps, burst=burst, clock=clock)


class Creates:
    """Creations that end when the test calls ``finish``."""

    def __init__(self, slow_start: SlowStart) -> None:
        self.slow_start = slow_start
        self.running: list[asyncio.Future[None]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, count: int, sort: str = "pods") -> None:
        self.tasks += [asyncio.create_task(self._create(sort)) for _ in range(count)]

    async def _create(self, sort: str) -> None:
        async with self.slow_start.slot(sort) as outcome:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.running.append(answer)
            try:
                await answer
            except OSError:
                outcome.refused()
                raise

    async def finish(self, end: Callable[[asyncio.Future[None]], None]) -> int:
        """End all running creations and return the number of those that run afterwards."""
        running, self.running = self.running, []
        for answer in running:
            end(answer)
        await settle()
        return len(self.running)


def succeed(answer: asyncio.Future[None]) -> None:
    answer.set_result(None)


def refuse(answer: asyncio.Future[None]) -> None:
    answer.set_exception(OSError())


async def test_creates_start_slowly_and_again_after_a_refusal() -> None:
    creates = Creates(SlowStart(limit=8))
    creates.start(100)
    await settle()
    sizes = [len(creates.running)] + [await creates.finish(succeed) for _ in range(4)]
    assert sizes == [1, 2, 4, 8, 8]
    assert await creates.finish(refuse) == 1
    assert await creates.finish(refuse) == 1
    assert await creates.finish(succeed) == 2
    for task in creates.tasks:
        task.cancel()
    await asyncio.gather(*creates.tasks, return_exceptions=True)


async def test_one_namespace_does_not_slow_another_and_none_is_remembered_for_ever() -> None:
    slow_start = SlowStart()
    creates = Creates(slow_start)
    creates.start(2, "full")
    creates.start(1, "empty")
    await settle()
    assert len(creates.running) == 2
    while creates.running:
        await creates.finish(succeed)
    assert not slow_start._windows


async def test_creates_that_are_cancelled_give_their_places_back() -> None:
    slow_start = SlowStart()
    creates = Creates(slow_start)
    creates.start(3)
    await settle()
    creates.tasks[1].cancel()
    creates.tasks[0].cancel()
    await settle()
    assert len(creates.running) == 2
    creates.running[1].set_result(None)
    await settle()
    assert creates.tasks[2].done()
    assert not slow_start._windows
