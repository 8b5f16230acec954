"""Following a collection through ends of watches and short absences of the API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import TypeVar

from dgym.kube import Client, Object, Reflector, Resource, Store, SystemClock, WatchSettings

T = TypeVar("T", bound=Object)

_SETTINGS = WatchSettings(tries=8)


@contextlib.asynccontextmanager
async def follow(
    client: Client,
    resource: Resource,
    view: type[T],
    changed: asyncio.Event,
    *,
    namespace: str | None,
    label_selector: str = "",
    field_selector: str = "",
) -> AsyncIterator[Store[T]]:
    """A store in step with the cluster; ``changed`` is set when it is first filled, and after every change.

    Raises:
        BaseExceptionGroup: With an ``ApiError``: the API server was away for minutes, or refuses.
    """
    clock = SystemClock()
    store: Store[T] = Store(clock)
    store.subscribe(lambda _change: changed.set())
    reflector = Reflector(
        client,
        resource,
        decode=view,
        store=store,
        clock=clock,
        random=Random(),  # noqa: S311 - spreads retries, hides nothing
        namespace=namespace,
        label_selector=label_selector,
        field_selector=field_selector,
        settings=_SETTINGS,
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(reflector.run())
        await reflector.synced.wait()
        changed.set()
        yield store
        watching.cancel()
