"""Tests of the client and the reflector with kmock, which works without the binaries of an API server.

kmock stores objects unchanged. It does not set versions, and it does not send pages or bookmarks, so tests define these
responses. The other files of this folder test the behaviour of a real server.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from kmock import KubernetesEmulator, Request, action, resource

from dgym.kube import (
    CONFIG_MAPS,
    AlreadyExists,
    Client,
    ClusterAccess,
    Conflict,
    Credentials,
    InformerStore,
    NotFound,
    Reflector,
)
from tests.fakes.kube_clocks import HastyClock

Until = Callable[[Callable[[], bool]], Awaitable[None]]
MAPS = resource("v1/configmaps")


def config_map(name: str, version: int = 0, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return CONFIG_MAPS.manifest(metadata=metadata, data=data)


def page(*items: dict[str, Any], version: int, following: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": following}, "items": list(items)}


def bookmark(version: int) -> dict[str, Any]:
    return {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": str(version)}}}


def in_turn(*payloads: Any) -> Callable[[], Any]:
    """A reaction that answers each request with the next payload; kmock itself would stream a tuple in one response."""
    answers: Iterator[Any] = iter(payloads)
    return lambda: next(answers)


@pytest.fixture
async def kmock_client(kmock: KubernetesEmulator, clock: HastyClock) -> AsyncIterator[Client]:
    access = ClusterAccess(server=str(kmock.url).rstrip("/"), credentials=Credentials("Bearer of-kmock"))
    async with Client(access, clock=clock, random=Random(1)) as made:
        yield made


@asynccontextmanager
async def following(
    client: Client, clock: HastyClock, thing: Any
) -> AsyncIterator[tuple[InformerStore[Any], Reflector[Any]]]:
    """Run a reflector in the background."""
    store: InformerStore[Any] = InformerStore(clock)
    reflector: Reflector[Any] = Reflector(
        client, CONFIG_MAPS, decode=thing, store=store, clock=clock, random=Random(1), namespace="ns"
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield store, reflector
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_the_life_of_an_object(kmock: KubernetesEmulator, kmock_client: Client, thing: Any) -> None:
    where = {"namespace": "ns", "decode": thing}
    made = await kmock_client.create(CONFIG_MAPS, config_map("a", x="1"), **where)
    assert (made.metadata.name, made.metadata.namespace, made.data) == ("a", "ns", {"x": "1"})
    merged = await kmock_client.patch(CONFIG_MAPS, "a", {"data": {"y": "2", "x": None}}, **where)
    assert merged.data == {"y": "2"}
    assert await kmock_client.get(CONFIG_MAPS, "a", **where) == merged
    assert await kmock_client.list(CONFIG_MAPS, **where) == [merged]
    assert await kmock_client.delete(CONFIG_MAPS, "a", uid=made.metadata.uid, **where) == merged
    create, patch, _, _, delete = kmock
    assert create.params == {"fieldValidation": "Strict"}
    assert patch.headers["Content-Type"] == "application/merge-patch+json"
    assert delete.data["preconditions"] == {"uid": "uid-a"}
    assert {request.headers["Authorization"] for request in kmock} == {"Bearer of-kmock"}


async def test_a_missing_object_raises_not_found(kmock: KubernetesEmulator, kmock_client: Client, thing: Any) -> None:
    where = {"namespace": "ns", "decode": thing}
    for refused in (
        kmock_client.get(CONFIG_MAPS, "a", **where),
        kmock_client.patch(CONFIG_MAPS, "a", {}, **where),
        kmock_client.delete(CONFIG_MAPS, "a", **where),
    ):
        with pytest.raises(NotFound):
            await refused
    assert len(kmock) == 3, "a refusal is final: nothing is asked twice"


@pytest.mark.parametrize(("reason", "expected"), [("AlreadyExists", AlreadyExists), ("Conflict", Conflict)])
async def test_conflicts_are_distinguished_by_their_reason(
    kmock: KubernetesEmulator, kmock_client: Client, reason: str, expected: type[Exception]
) -> None:
    kmock[action.CREATE, MAPS] << 409 << {"kind": "Status", "code": 409, "reason": reason, "message": "not this time"}
    with pytest.raises(expected, match="not this time"):
        await kmock_client.create(CONFIG_MAPS, config_map("a"), namespace="ns", decode=bytes)
    assert len(kmock[action.CREATE]) == 1


async def test_all_pages_are_read(kmock: KubernetesEmulator, kmock_client: Client, thing: Any) -> None:
    pages = {
        "": page(config_map("a"), config_map("b"), version=7, following="second"),
        "second": page(config_map("c"), version=7),
    }

    def serve(request: Request) -> dict[str, Any]:
        return pages[request.params.get("continue", "")]

    kmock[action.LIST, MAPS] << serve
    found = [page async for page in kmock_client.pages(CONFIG_MAPS, namespace="ns", decode=thing, limit=2)]
    assert [[item.metadata.name for item in page.items] for page in found] == [["a", "b"], ["c"]]
    assert {page.meta.resource_version for page in found} == {"7"}
    assert [request.params["limit"] for request in kmock[action.LIST]] == ["2", "2"]


async def test_the_store_follows_the_watch_and_resumes_from_its_bookmark(
    kmock: KubernetesEmulator, kmock_client: Client, clock: HastyClock, thing: Any, until: Until
) -> None:
    kmock[action.LIST, MAPS] << page(config_map("a", 3), config_map("b", 4), version=5)
    first = (
        {"type": "MODIFIED", "object": config_map("a", 6, x="1")},
        {"type": "DELETED", "object": config_map("b", 7)},
        bookmark(20),
    )
    second = ({"type": "ADDED", "object": config_map("c", 21)}, ...)
    kmock[action.WATCH, MAPS] << in_turn(first, second)
    async with following(kmock_client, clock, thing) as (store, reflector):
        await until(lambda: store.get(("ns", "c")) is not None)
        assert {item.metadata.name: item.data for item in store} == {"a": {"x": "1"}, "c": {}}
        assert [request.params["resourceVersion"] for request in kmock[action.WATCH]] == ["5", "20"]
        assert {request.params["allowWatchBookmarks"] for request in kmock[action.WATCH]} == {"true"}
        assert (reflector.lists, reflector.watches) == (1, 2)


async def test_a_version_that_is_too_old_is_answered_by_one_new_list(
    kmock: KubernetesEmulator, kmock_client: Client, clock: HastyClock, thing: Any, until: Until
) -> None:
    kmock[action.LIST, MAPS] << in_turn(page(config_map("a", 3), version=5), page(config_map("b", 30), version=30))
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    kmock[action.WATCH, MAPS] << in_turn((expired,), (bookmark(31), ...))
    async with following(kmock_client, clock, thing) as (store, _):
        await until(lambda: len(kmock[action.WATCH]) == 2)
        assert {item.metadata.name for item in store} == {"b"}
        assert [request.params["resourceVersion"] for request in kmock[action.WATCH]] == ["5", "30"]
