"""Tests of a store that follows a real API server."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from dgym.kube import (
    CONFIG_MAPS,
    ChangeSource,
    Client,
    InformerStore,
    ObjectChange,
    Reflector,
    SystemClock,
    WatchSettings,
)
from tests.support.apiserver import ApiServer

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return CONFIG_MAPS.manifest(metadata={"name": name, "labels": labels or {"keep": "yes"}}, data=data)


async def test_the_store_follows_the_server(
    client: Client, api_server: ApiServer, api_namespace: str, thing: Any, until: Until,
    requests: list[tuple[str, str, int]],
) -> None:  # fmt: skip
    store: InformerStore[Any] = InformerStore(SystemClock())
    changes: list[ObjectChange[Any]] = []
    store.subscribe(changes.append)
    reflector: Reflector[Any] = Reflector(
        client, CONFIG_MAPS, decode=thing, store=store, clock=SystemClock(), random=Random(1),
        namespace=api_namespace, label_selector="keep=yes", settings=WatchSettings(page_size=2),
    )  # fmt: skip
    for name in "abc":
        await client.create(CONFIG_MAPS, config_map(name), namespace=api_namespace, decode=bytes)
    await client.create(CONFIG_MAPS, config_map("other", {"keep": "no"}), namespace=api_namespace, decode=bytes)
    task = asyncio.create_task(reflector.run())
    await until(reflector.synced.is_set)
    assert {item.metadata.name for item in store} == {"a", "b", "c"}
    assert {change.source for change in changes} == {ChangeSource.LIST}

    await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace=api_namespace, decode=bytes)
    await client.patch(
        CONFIG_MAPS, "b", {"metadata": {"labels": {"keep": "no"}}}, namespace=api_namespace, decode=bytes
    )
    await client.delete(CONFIG_MAPS, "c", namespace=api_namespace, decode=bytes)
    await client.create(CONFIG_MAPS, config_map("d"), namespace=api_namespace, decode=bytes)
    await until(lambda: {item.metadata.name for item in store} == {"a", "d"})
    kept = store.get((api_namespace, "a"))
    assert kept is not None
    assert kept.data == {"x": "1"}
    assert reflector.staleness < 30
    assert [request for request in requests if request[0] == "watch"] == [("watch", "configmaps", 200)]
    task.cancel()
    await asyncio.wait((task,))


async def test_own_writes_and_the_watch_agree_in_the_end(
    client: Client, api_namespace: str, thing: Any, until: Until
) -> None:
    store: InformerStore[Any] = InformerStore(SystemClock())
    reflector: Reflector[Any] = Reflector(
        client, CONFIG_MAPS, decode=thing, store=store, clock=SystemClock(), random=Random(1), namespace=api_namespace
    )
    task = asyncio.create_task(reflector.run())
    await until(reflector.synced.is_set)
    where = {"namespace": api_namespace, "decode": thing}

    async def write(name: str) -> None:
        made = await client.create(CONFIG_MAPS, config_map(name), **where)
        store.assume(made)
        for number in range(5):
            changed = await client.patch(CONFIG_MAPS, name, {"data": {"n": str(number)}}, **where)
            store.assume(changed)
            known = store.get((api_namespace, name))
            assert known is not None
            assert known.data["n"] == str(number)
        if name.endswith("0"):
            await client.delete(CONFIG_MAPS, name, uid=made.metadata.uid, **where)
            store.assume_deleted((api_namespace, name), made.metadata.uid)
            assert store.get((api_namespace, name)) is None

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(write(f"n{number:02}"))
    truth = {item.metadata.name: item for item in await client.list(CONFIG_MAPS, **where)}
    await client.create(CONFIG_MAPS, config_map("last"), **where)
    await until(lambda: store.get((api_namespace, "last")) is not None)
    assert {item.metadata.name: item for item in store if item.metadata.name != "last"} == truth
    task.cancel()
    await asyncio.wait((task,))
