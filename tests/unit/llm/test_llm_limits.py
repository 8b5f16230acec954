import asyncio
import time
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.llm._limits import ModelLimits, Rate
from dgym.llm._remote import Endpoints


def starts(rate, arrivals):
    """Return the start time of each request, for the times at which the requests arrive."""
    state, times = 0.0, []
    for now in arrivals:
        state, wait = rate.reserve(state, now, 1)
        times.append(now + wait)
    return times


@given(st.integers(1, 200), st.lists(st.floats(0, 5), max_size=300))
def test_no_minute_has_more_requests_than_the_limit(limit, gaps):
    now, arrivals = 1000.0, []
    for gap in gaps:
        now += gap
        arrivals.append(now)
    window: deque[float] = deque()
    for start in starts(Rate(limit), arrivals):
        while window and window[0] <= start - 60 + 1e-6:
            window.popleft()
        window.append(start)
        assert len(window) <= limit


def test_a_tenth_of_the_rate_starts_immediately_and_the_rest_is_spread():
    times = starts(Rate(100), [0.0] * 101)
    assert times[:10] == [0.0] * 10
    assert all(one < two for one, two in pairwise(times[9:]))
    assert 59 < times[99] < 60


@given(st.integers(1, 100), st.integers(1, 50))
def test_requests_begin_in_the_order_they_came(limit, count):
    times = starts(Rate(limit), [0.0] * count)
    assert times == sorted(times)


def test_tokens_that_were_not_used_are_given_back():
    rate = Rate(60_000)
    state, _ = rate.reserve(0.0, 0.0, 30_000)
    corrected = rate.correct(state, 10_000 - 30_000)
    assert rate.reserve(corrected, 0.0, 1)[1] < rate.reserve(state, 0.0, 1)[1]


def limits(tmp_path, **fields):
    return ModelLimits("one model", directory=tmp_path, **fields)


async def test_without_limits_no_files_are_created(tmp_path):
    free = limits(tmp_path)
    async with free.place():
        await free.admit(10**9)
    assert list(tmp_path.iterdir()) == []


async def test_two_that_share_a_model_share_its_rate(tmp_path):
    # Two requests may begin at once. The third has to wait for three seconds.
    one, two = limits(tmp_path, requests_per_minute=20), limits(tmp_path, requests_per_minute=20)
    await one.admit(1)
    await two.admit(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await one.admit(1)


async def test_an_invalid_or_outdated_state_is_replaced(tmp_path):
    one = limits(tmp_path, requests_per_minute=1)
    await one.admit(1)
    (state,) = tmp_path.glob("*/state")
    for content in ("", "nonsense", '{"requests": 1e12, "tokens": 0, "offset": 12.0}'):
        state.write_text(content)
        async with asyncio.timeout(90):
            await limits(tmp_path, requests_per_minute=1).admit(1)


async def test_concurrent_requests_are_limited_across_instances(tmp_path):
    one, two = limits(tmp_path, max_concurrency=2), limits(tmp_path, max_concurrency=2)
    under_way, most = 0, 0

    async def request(owner):
        nonlocal under_way, most
        async with owner.place():
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    await asyncio.gather(*(request(owner) for owner in [one, two] * 6))
    assert (under_way, most) == (0, 2)


async def test_a_cancelled_wait_does_not_occupy_a_place(tmp_path):
    limit = limits(tmp_path, max_concurrency=1)
    async with limit.place():
        waiting = asyncio.create_task(limit.place().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(90), limit.place():
        pass


async def test_different_models_do_not_wait_for_each_other(tmp_path):
    one = ModelLimits("one", directory=tmp_path, max_concurrency=1, requests_per_minute=1)
    two = ModelLimits("two", directory=tmp_path, max_concurrency=1, requests_per_minute=1)
    began = time.monotonic()
    async with one.place(), two.place():
        await one.admit(1)
        await two.admit(1)
    assert time.monotonic() - began < 30


def test_an_episode_stays_where_it_began():
    endpoints = Endpoints(["http://a", "http://b"])
    first = endpoints.choose("e1")
    for number in range(20):
        endpoints.choose(f"other-{number}")
    assert endpoints.choose("e1") == first


@given(st.lists(st.text(min_size=1), unique=True, max_size=40), st.integers(1, 5))
def test_loads_differ_by_one_at_most(sessions, count):
    endpoints = Endpoints([f"http://{number}" for number in range(count)])
    for session in sessions:
        endpoints.choose(session)
    loads = endpoints.loads().values()
    assert sum(loads) == len(sessions)
    assert max(loads) - min(loads) <= 1


def test_released_episodes_do_not_count_as_load():
    endpoints = Endpoints(["http://a", "http://b"])
    places = {session: endpoints.choose(session) for session in ("e1", "e2")}
    endpoints.release("e1")
    assert endpoints.choose("e3") == places["e1"]


def test_an_episode_leaves_an_endpoint_that_does_not_answer():
    endpoints = Endpoints(["http://a", "http://b"])
    first = endpoints.choose("e1")
    endpoints.leave("e1")
    assert endpoints.choose("e1") != first
    alone = Endpoints(["http://a"])
    alone.choose("e1")
    alone.leave("e1")
    assert alone.choose("e1") == "http://a"


def test_a_single_process_with_many_equal_endpoints_spreads_first_episodes():
    chosen = {Endpoints(["http://a", "http://b"]).choose(f"e{number}") for number in range(50)}
    assert chosen == {"http://a", "http://b"}


def test_episodes_that_were_not_released_are_removed_beyond_the_limit():
    endpoints = Endpoints(["http://a"])
    for number in range(10_050):
        endpoints.choose(str(number))
    assert endpoints.loads() == {"http://a": 10_000}
