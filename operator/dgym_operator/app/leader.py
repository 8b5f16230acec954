"""The leader's part of a replica: it starts when the Lease is acquired and stops with it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import aiohttp
import msgspec

from dgym.kube import ApiError, Backoff, Client, Clock, EventRecorder, WorkQueue
from dgym_operator.actions import (
    ApiReader,
    EpisodeExecutor,
    KeyUnusable,
    NetworkPolicies,
    PodMaker,
    ProgressBudget,
    SetExecutor,
    Writes,
    ensure_secrets,
    key_id,
)
from dgym_operator.app.handlers import EventHandlers
from dgym_operator.app.health import Watchdog
from dgym_operator.app.key import KeyHealth, show_waiting
from dgym_operator.app.metrics import Metrics
from dgym_operator.app.namespaces import Namespaces
from dgym_operator.app.reconciler import Item, Reconciler
from dgym_operator.cache import Cache
from dgym_operator.calls import AgentClient, PodCaller, SidecarCalls
from dgym_operator.dispatch import AgentPoller, Deliveries, Dispatcher
from dgym_operator.render import PodSettings, Renderer
from dgym_operator.settings import Settings

_BACKOFF = Backoff(base=1.0, limit=30.0)
_SIDECAR_SECONDS = 5.0
_AGENT_SECONDS = 10.0
_CALLERS = 8


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of every replica, leading or not."""

    settings: Settings
    clock: Clock
    random: Random
    random_bytes: Callable[[int], bytes]
    cache: Cache
    client: Client
    queue: WorkQueue[Item]
    dispatcher: Dispatcher
    handlers: EventHandlers
    namespaces: Namespaces
    key_health: KeyHealth
    events: EventRecorder
    metrics: Metrics
    watchdog: Watchdog
    leads: Callable[[], bool]


async def lead(replica: Replica, session: aiohttp.ClientSession) -> None:
    """Decide and write until the queue is closed. Agents and sidecars are called over ``session``."""
    writes = Writes(replica.client, replica.leads)
    await replica.namespaces.begin()
    async with asyncio.TaskGroup() as background:
        tasks = [background.create_task(replica.namespaces.run())]
        key = await _obtain_key(replica, writes)
        replica.cache.key_id = key_id(key)
        leader = _Leader(replica, session, writes, key)
        replica.handlers.start()
        tasks += [background.create_task(work) for work in leader.background()]
        async with asyncio.TaskGroup() as workers:
            for number in range(replica.settings.workers):
                workers.create_task(leader.reconciler.work(number))
        # The queue is closed and every write in flight is answered; the rest is left to the next leader.
        for task in tasks:
            task.cancel()


async def _obtain_key(replica: Replica, writes: Writes) -> bytes:
    failures = 0
    while True:
        try:
            key = await ensure_secrets(replica.client, writes, replica.settings, replica.random_bytes)
        except (ApiError, KeyUnusable) as error:
            failures += 1
            replica.key_health.missing(str(error))
            await show_waiting(replica.cache, writes, replica.namespaces.serves, replica.key_health.problem)
            await replica.clock.sleep(_BACKOFF.delay(failures, replica.random))
        else:
            replica.key_health.found()
            return key


class _Leader:
    """The leader's parts."""

    def __init__(self, replica: Replica, session: aiohttp.ClientSession, writes: Writes, key: bytes) -> None:
        settings, cache = replica.settings, replica.cache
        reader = ApiReader(replica.client)
        sidecar_caller = PodCaller(session, deadline_seconds=_SIDECAR_SECONDS)
        client = AgentClient(PodCaller(session, deadline_seconds=_AGENT_SECONDS), key)
        self._dispatcher = replica.dispatcher
        self._sidecars = SidecarCalls(sidecar_caller, key, WorkQueue(clock=replica.clock, random=replica.random))
        self._deliveries = Deliveries(
            cache,
            reader=reader,
            client=client,
            events=replica.events,
            enqueue=replica.handlers.enqueue,
            queue=WorkQueue(clock=replica.clock, random=replica.random),
            key=key,
            counter=replica.metrics.assignments,
        )
        self._poller = AgentPoller(
            cache,
            client=client,
            deliveries=self._deliveries,
            dispatcher=replica.dispatcher,
            enqueue=replica.handlers.enqueue,
            token_refused=replica.key_health.refused,
            interval_seconds=settings.agent_report_seconds,
        )
        pods = PodMaker(
            client=replica.client,
            writes=writes,
            reader=reader,
            policies=NetworkPolicies(writes, settings, replica.clock.monotonic),
            renderer=Renderer(directory=settings.pod_templates_directory),
            pod_settings=pod_settings(settings),
            default_template=settings.default_pod_template,
            key=key,
        )
        episodes = EpisodeExecutor(
            cache=cache,
            client=replica.client,
            writes=writes,
            reader=reader,
            pods=pods,
            sidecars=self._sidecars,
            events=replica.events,
            progress=ProgressBudget(settings.progress_qps, replica.clock),
        )
        self.reconciler = Reconciler(
            cache=cache,
            queue=replica.queue,
            episodes=episodes,
            sets=SetExecutor(cache=cache, client=replica.client, writes=writes, events=replica.events),
            dispatcher=replica.dispatcher,
            deliveries=self._deliveries,
            metrics=replica.metrics,
            watchdog=replica.watchdog,
            serves=replica.namespaces.serves,
        )

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The work beside the reconcilers."""
        yield self._poller.run()
        yield self._dispatcher.run()
        for _ in range(_CALLERS):
            yield self._sidecars.work()
            yield self._deliveries.work()


def pod_settings(settings: Settings) -> PodSettings:
    """The settings that all pods of this installation share."""
    return PodSettings(
        sandbox_image=settings.sandbox_image,
        sidecar_image=settings.sidecar_image,
        image_pull_policy=settings.image_pull_policy,
        image_pull_secrets=settings.image_pull_secrets,
        log_level=settings.log_level,
    )
