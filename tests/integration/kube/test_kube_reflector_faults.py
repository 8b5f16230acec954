"""Tests of a reflector with an API server that fails in many ways: it recovers, and it pauses between requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from dgym.kube import CONFIG_MAPS, Client, InformerStore, Reflector, WatchSettings
from tests.fakes.kube_clocks import HastyClock

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def store(clock: HastyClock) -> InformerStore[Any]:
    return InformerStore(clock)


@pytest.fixture
def reflector(bad_client: Client, store: InformerStore[Any], clock: HastyClock, thing: type[Any]) -> Reflector[Any]:
    return Reflector(bad_client, CONFIG_MAPS, decode=thing, store=store, clock=clock, random=Random(3))


@pytest.fixture
def impatient(
    impatient_client: Client, store: InformerStore[Any], clock: HastyClock, thing: type[Any]
) -> Reflector[Any]:
    """A reflector that gives up a silent server soon."""
    settings = WatchSettings(silence_seconds=0.5)
    return Reflector(
        impatient_client, CONFIG_MAPS, decode=thing, store=store, clock=clock, random=Random(3), settings=settings
    )


@asynccontextmanager
async def running(reflector: Reflector[Any]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reflector.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled(), task.exception()


def names(store: InformerStore[Any]) -> set[str]:
    return {item.metadata.name for item in store}


FAULTS = {
    "closes at once": lambda server: server.stream(),
    "closes after a blank line": lambda server: server.stream(b"\n"),
    "resets": lambda server: server.reset,
    "resets in the stream": lambda server: server.stream(end="reset"),
    "sends half a line": lambda server: server.stream(b'{"type":"ADDED","object":{"metadata"'),
    "resets in the middle of a line": lambda server: server.stream(b'{"type":"ADDED","obj', end="reset"),
    "sends what is no JSON": lambda server: server.stream(b"<html>\n"),
    "answers with a page for people": lambda server: server.garbage,
    "answers 500": lambda server: server.status(500, "InternalError"),
    "answers 403": lambda server: server.status(403, "Forbidden"),
    "answers 404": lambda server: server.status(404, "NotFound"),
    "answers 429": lambda server: server.status(429, "TooManyRequests", retry_after=1),
    "tells an error in the stream": lambda server: server.stream(
        b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"broken"}}\n'
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failed_watch_is_retried_with_growing_back_off_from_its_last_version(
    fault: str, bad_server: Any, reflector: Reflector[Any], store: InformerStore[Any], clock: HastyClock, until: Until
) -> None:
    bad_server.lists = [bad_server.page("a")]
    good = bad_server.stream(bad_server.event("ADDED", "b", 12), end="hang")
    bad = FAULTS[fault](bad_server)

    async def watch(request: Any) -> Any:
        return await (bad if len(clock.slept) < 6 else good)(request)

    bad_server.watches = [watch]
    async with running(reflector):
        await until(lambda: names(store) == {"a", "b"})
    assert bad_server.counts["lists"] == 1
    # aiohttp itself repeats a request once if the server has closed a kept connection.
    assert 7 <= bad_server.counts["watches"] <= 13
    assert len(clock.slept) == 6
    for slept, full in zip(clock.slept, [1, 2, 4, 8, 16, 30], strict=True):
        assert slept >= full / 2
    watched = [query for query in bad_server.queries if "watch" in query]
    assert {query["resourceVersion"] for query in watched} == {"10"}
    assert all(query["allowWatchBookmarks"] == "true" for query in watched)
    assert all(240 <= int(query["timeoutSeconds"]) <= 300 for query in watched)
    assert len({query["timeoutSeconds"] for query in watched}) > 1


async def test_a_stream_without_a_sign_of_life_is_dropped(
    bad_server: Any, impatient: Reflector[Any], store: InformerStore[Any], until: Until
) -> None:
    bad_server.lists = [bad_server.page()]
    silent = bad_server.stream(bad_server.event("ADDED", "a", 11), end="hang")
    bad_server.watches = [bad_server.hang, silent, bad_server.stream(bad_server.event("ADDED", "b", 12), end="hang")]
    async with running(impatient):
        await until(lambda: names(store) == {"a", "b"})
    assert bad_server.counts["lists"] == 1


@pytest.mark.parametrize("in_stream", [True, False])
async def test_an_expired_version_causes_a_new_list(
    bad_server: Any,
    reflector: Reflector[Any],
    store: InformerStore[Any],
    clock: HastyClock,
    until: Until,
    in_stream: bool,
) -> None:
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
    expired = bad_server.stream(gone) if in_stream else bad_server.status(410, "Expired")
    bad_server.lists = [bad_server.page("a", "b", version=10), bad_server.page("b", "c", version=20)]
    bad_server.watches = [expired, bad_server.stream(bad_server.event("ADDED", "d", 21), end="hang")]
    async with running(reflector):
        await until(lambda: names(store) == {"b", "c", "d"})
    assert bad_server.counts == {"lists": 2, "watches": 2}
    assert bad_server.queries[-1]["resourceVersion"] == "20"


async def test_a_server_for_which_every_version_is_too_old_is_not_listed_in_a_loop(
    bad_server: Any, reflector: Reflector[Any], clock: HastyClock, until: Until
) -> None:
    bad_server.lists = [bad_server.page("a")]
    bad_server.watches = [bad_server.status(410, "Expired")]
    started = clock.time
    async with running(reflector):
        await until(lambda: bad_server.counts["lists"] >= 12)
        lists, seconds = bad_server.counts["lists"], clock.time - started
    assert seconds / lists > 10


async def test_a_watch_resumes_from_the_version_of_a_bookmark(
    bad_server: Any, reflector: Reflector[Any], store: InformerStore[Any], until: Until
) -> None:
    bad_server.lists = [bad_server.page("a")]
    bookmark = bad_server.event("BOOKMARK", "", 99)
    bad_server.watches = [bad_server.stream(bookmark), bad_server.stream(end="hang")]
    async with running(reflector):
        await until(lambda: bad_server.counts["watches"] == 2)
    assert bad_server.queries[-1]["resourceVersion"] == "99"
    assert names(store) == {"a"}


async def test_a_list_that_fails_is_tried_again_and_the_store_keeps_what_it_has(
    bad_server: Any, impatient: Reflector[Any], store: InformerStore[Any], clock: HastyClock, until: Until
) -> None:
    broken = [bad_server.status(503), bad_server.hang, bad_server.reset, bad_server.garbage] * 2
    bad_server.lists = [bad_server.page("a"), *broken, bad_server.page("b", version=30)]
    bad_server.watches = [bad_server.status(410, "Expired"), bad_server.stream(end="hang")]
    async with running(impatient):
        await until(lambda: bad_server.counts["lists"] >= 3)
        assert names(store) == {"a"}
        await until(lambda: names(store) == {"b"})
    assert len(clock.slept) >= 6
    assert impatient.synced.is_set()


async def test_a_retry_after_of_the_server_is_respected(
    bad_server: Any, reflector: Reflector[Any], clock: HastyClock, until: Until
) -> None:
    bad_server.lists = [bad_server.page()]
    bad_server.watches = [bad_server.status(429, retry_after=25), bad_server.stream(end="hang")]
    async with running(reflector):
        await until(lambda: bad_server.counts["watches"] == 2)
    assert 25 <= clock.slept[0] <= 26.5


async def test_watch_lines_are_independent_of_chunk_boundaries(
    bad_server: Any, reflector: Reflector[Any], store: InformerStore[Any], until: Until
) -> None:
    events = b"".join(bad_server.event("ADDED", f"n{number}", 11 + number) for number in range(100))
    bad_server.lists = [bad_server.page()]
    bad_server.watches = [
        bad_server.stream(*(events[start : start + 97] for start in range(0, len(events), 97)), end="hang")
    ]
    async with running(reflector):
        await until(lambda: len(store) == 100)


async def test_an_object_that_cannot_be_read_is_passed_over(
    bad_server: Any, reflector: Reflector[Any], store: InformerStore[Any], until: Until
) -> None:
    wrong = b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"50"},"data":5}}\n'
    bad_server.lists = [bad_server.page("a")]
    bad_server.watches = [
        bad_server.stream(wrong, bad_server.event("MODIFIED", "a", 51), end="hang"),
    ]
    async with running(reflector):
        await until(lambda: [item.metadata.resource_version for item in store] == ["51"])
    assert reflector.unreadable == 1
    assert bad_server.counts == {"lists": 1, "watches": 1}


async def test_an_object_that_cannot_be_read_and_is_deleted_leaves_the_store(
    bad_server: Any, reflector: Reflector[Any], store: InformerStore[Any], until: Until
) -> None:
    metadata = b'{"name":"b","namespace":"ns","uid":"uid-b","resourceVersion":"51"}'
    gone = b'{"type":"DELETED","object":{"metadata":%s,"data":5}}\n' % metadata
    bad_server.lists = [bad_server.page("a")]
    bad_server.watches = [bad_server.stream(bad_server.event("ADDED", "b", 50), gone, end="hang")]
    async with running(reflector):
        await until(lambda: reflector.unreadable == 1)
    assert [item.metadata.name for item in store] == ["a"]


async def test_staleness_grows_while_the_server_is_away_and_ends_with_its_return(
    bad_server: Any, reflector: Reflector[Any], clock: HastyClock, until: Until
) -> None:
    bad_server.lists = [bad_server.page()]
    stale: list[float] = []

    async def broken(request: Any) -> Any:
        stale.append(reflector.staleness)
        return await bad_server.status(500)(request)

    bad_server.watches = [broken] * 5 + [bad_server.stream(end="hang")]
    async with running(reflector):
        await until(lambda: len(stale) == 5 and reflector.staleness == 0)
    assert stale == sorted(stale)
    assert stale[-1] > 7


async def test_a_watch_that_ends_at_its_timeout_is_not_a_failure(
    bad_server: Any, reflector: Reflector[Any], clock: HastyClock, until: Until
) -> None:
    async def until_the_time_agreed(request: Any) -> Any:
        clock.jump(int(request.query["timeoutSeconds"]))
        return await bad_server.stream()(request)

    bad_server.lists = [bad_server.page()]
    bad_server.watches = [until_the_time_agreed] * 5 + [bad_server.stream(end="hang")]
    async with running(reflector):
        await until(lambda: bad_server.counts["watches"] == 6)
    assert clock.slept == []


async def test_cancelling_ends_it_while_it_lists_watches_or_waits(
    bad_server: Any, reflector: Reflector[Any], until: Until
) -> None:
    bad_server.lists = [bad_server.hang]
    bad_server.watches = [bad_server.stream(end="hang")]
    async with running(reflector):
        await until(lambda: bad_server.counts["lists"] == 1)
    bad_server.lists = [bad_server.page()]
    async with running(reflector):
        await until(lambda: bad_server.counts["watches"] == 1)


async def test_an_optional_namespace_that_is_gone_keeps_its_objects_for_a_while_and_is_filled_again(
    bad_server: Any, bad_client: Client, store: InformerStore[Any], clock: HastyClock, thing: type[Any], until: Until
) -> None:
    changes: list[bool] = []
    reflector = Reflector(
        bad_client,
        CONFIG_MAPS,
        decode=thing,
        store=store,
        clock=clock,
        random=Random(3),
        namespace="ns",
        settings=WatchSettings(forget_seconds=100.0),
        optional=True,
        changed=lambda: changes.append(reflector.refusal is not None),
    )
    known: list[set[str]] = []

    async def refuse(request: Any) -> Any:
        known.append(names(store))
        return await bad_server.status(403, "Forbidden")(request)

    async def serve_again(request: Any) -> Any:
        bad_server.watches = [bad_server.stream(end="hang")]
        return await bad_server.page("b", version=30)(request)

    bad_server.lists = [bad_server.page("a"), refuse, serve_again]
    bad_server.watches = [refuse]
    async with running(reflector):
        await until(lambda: names(store) == {"b"})
        await until(lambda: reflector.refusal is None)
    assert known[0] == {"a"}
    assert set() in known
    # The number of refused watches before the second list depends on the clock.
    assert changes[0] is changes[-1] is False
    assert True in changes
    assert all(before is not after for before, after in pairwise(changes))


async def test_a_refused_first_list_counts_as_answered(
    bad_server: Any, reflector: Reflector[Any], until: Until
) -> None:
    bad_server.lists = [bad_server.status(403, "Forbidden"), bad_server.page()]
    bad_server.watches = [bad_server.stream(end="hang")]
    async with running(reflector):
        await reflector.answered.wait()
        assert not reflector.synced.is_set()
        await until(reflector.synced.is_set)
    assert reflector.refusal is None
