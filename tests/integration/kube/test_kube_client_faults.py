"""Tests of requests to a server that fails: which requests are repeated, how often, and after which pause."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dgym.kube import (
    CONFIG_MAPS,
    Client,
    ClusterAccess,
    ConnectionLost,
    Credentials,
    Forbidden,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
    UnreadableAnswer,
)
from tests.fakes.kube_clocks import HastyClock

BODY = {"metadata": {"name": "a"}}
CALLS: dict[str, Callable[[Client], Any]] = {
    "get": lambda client: client.get(CONFIG_MAPS, "a", namespace="ns", decode=bytes),
    "create": lambda client: client.create(CONFIG_MAPS, BODY, namespace="ns", decode=bytes),
    "merge": lambda client: client.patch(CONFIG_MAPS, "a", BODY, namespace="ns", decode=bytes),
    "apply": lambda client: client.apply(CONFIG_MAPS, "a", BODY, decode=bytes, namespace="ns", field_manager="m"),
    "delete": lambda client: client.delete(CONFIG_MAPS, "a", namespace="ns", decode=bytes),
    "delete this one": lambda client: client.delete(CONFIG_MAPS, "a", namespace="ns", uid="u", decode=bytes),
}
REPEATABLE = {"get", "merge", "apply", "delete this one"}


@pytest.mark.parametrize("call", CALLS)
async def test_after_a_5xx_only_idempotent_requests_are_repeated(
    call: str, bad_server: Any, bad_client: Client, clock: HastyClock
) -> None:
    bad_server.others = [bad_server.status(503, "ServiceUnavailable")]
    with pytest.raises(ServerUnavailable):
        await CALLS[call](bad_client)
    assert bad_server.counts["others"] == (4 if call in REPEATABLE else 1)
    assert len(clock.slept) == bad_server.counts["others"] - 1


@pytest.mark.parametrize("call", CALLS)
async def test_after_a_429_every_request_is_repeated_after_retry_after(
    call: str, bad_server: Any, bad_client: Client, clock: HastyClock
) -> None:
    async def done(request: Any) -> Any:
        return await bad_server.page()(request)

    bad_server.others = [bad_server.status(429, "TooManyRequests", retry_after=7)] * 2 + [done]
    await CALLS[call](bad_client)
    assert bad_server.counts["others"] == 3
    assert all(7 <= slept <= 8 for slept in clock.slept)


async def test_a_long_retry_after_raises_without_a_wait(bad_server: Any, bad_client: Client, clock: HastyClock) -> None:
    bad_server.others = [bad_server.status(429, "TooManyRequests", retry_after=600)]
    with pytest.raises(TooManyRequests) as caught:
        await CALLS["create"](bad_client)
    assert caught.value.retry_after == 600
    assert clock.slept == []


async def test_tries_are_limited_and_their_waits_grow(bad_server: Any, bad_client: Client, clock: HastyClock) -> None:
    bad_server.others = [bad_server.status(429, "TooManyRequests")]
    with pytest.raises(TooManyRequests):
        await CALLS["get"](bad_client)
    assert bad_server.counts["others"] == 4
    assert all(full / 2 <= slept <= full for slept, full in zip(clock.slept, [0.5, 1.0, 2.0], strict=True))


async def test_a_refusal_is_not_repeated(bad_server: Any, bad_client: Client) -> None:
    bad_server.others = [bad_server.status(403, "Forbidden")]
    with pytest.raises(Forbidden):
        await CALLS["get"](bad_client)
    assert bad_server.counts["others"] == 1


@pytest.mark.parametrize("fault", ["hang", "reset"])
async def test_no_answer_within_the_deadline_is_a_lost_connection(
    fault: str, bad_server: Any, impatient_client: Client
) -> None:
    bad_server.others = [getattr(bad_server, fault)]
    with pytest.raises(ConnectionLost):
        await CALLS["create"](impatient_client)
    assert bad_server.counts["others"] == 1


async def test_an_unreachable_server_raises_connection_lost(clock: HastyClock) -> None:
    access = ClusterAccess(server="http://127.0.0.1:1", credentials=Credentials())
    async with Client(access, clock=clock, random=Random(1)) as client:
        with pytest.raises(ConnectionLost):
            await CALLS["get"](client)
    assert len(clock.slept) == 3


async def test_a_success_with_an_undecodable_body_raises_unreadable_answer(
    bad_server: Any, bad_client: Client, thing: Any
) -> None:
    bad_server.others = [bad_server.garbage]
    with pytest.raises(UnreadableAnswer):
        await bad_client.get(CONFIG_MAPS, "a", namespace="ns", decode=thing)
    assert await bad_client.get(CONFIG_MAPS, "a", namespace="ns", decode=bytes) == b"<html>hello"


async def test_credentials_that_are_refused_are_renewed_once(bad_server: Any, clock: HastyClock) -> None:
    class Renewed:
        def __init__(self) -> None:
            self.number = 1

        async def header(self) -> str:
            return f"Bearer {self.number}"

        def expire(self) -> None:
            self.number += 1

    bad_server.others = [bad_server.status(401, "Unauthorized"), bad_server.page()]
    async with Client(
        ClusterAccess(server=bad_server.url, credentials=Renewed()), clock=clock, random=Random(1)
    ) as client:
        await CALLS["create"](client)
        assert [headers["Authorization"] for headers in bad_server.headers] == ["Bearer 1", "Bearer 2"]
        bad_server.others = [bad_server.status(401, "Unauthorized")]
        with pytest.raises(Unauthorized):
            await CALLS["create"](client)
    assert bad_server.counts["others"] == 4


async def test_writes_are_throttled_and_reads_are_not(bad_server: Any, clock: HastyClock) -> None:
    bad_server.others = [bad_server.page()]
    access = ClusterAccess(server=bad_server.url, credentials=Credentials())
    async with Client(access, clock=clock, random=Random(1), qps=2.0, burst=1) as client:
        for _ in range(5):
            await CALLS["get"](client)
        assert clock.slept == []
        for _ in range(5):
            await CALLS["merge"](client)
        assert sum(clock.slept) == pytest.approx(2.0)
        await client.patch(CONFIG_MAPS, "a", BODY, namespace="ns", decode=bytes, priority=None)
        assert sum(clock.slept) == pytest.approx(2.0)


async def test_pages_shrink_where_objects_are_large(bad_server: Any, bad_client: Client) -> None:
    async def page(request: Any) -> Any:
        from aiohttp import web

        limit = int(request.query["limit"])
        start = int(request.query.get("continue", "0"))
        items = [{"metadata": {"name": f"n{number}"}, "pad": "x" * 200_000} for number in range(start, start + limit)]
        meta = {"resourceVersion": "5"} | ({"continue": str(start + limit)} if start < 100 else {})
        return web.json_response({"metadata": meta, "items": items})

    bad_server.lists = [page]
    sizes = [len(found.items) async for found in bad_client.pages(CONFIG_MAPS, decode=dict)]
    assert sizes[0] == 50
    assert all(30 <= size <= 45 for size in sizes[1:])
