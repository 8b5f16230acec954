"""What only the leader does: it starts when the Lease is ours and stops with it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import aiohttp
import msgspec

from dgym.kube import ApiError, Backoff, Client, Clock, EventRecorder, WorkQueue
from dgym_operator.actions import (
    EpisodeExecutor,
    KeyUnusable,
    PodMaker,
    Policies,
    ProgressBudget,
    Reader,
    SetExecutor,
    Writes,
    ensure_secrets,
    key_id,
)
from dgym_operator.app.handlers import Triggers
from dgym_operator.app.health import Busy
from dgym_operator.app.key import KeyHealth, show_waiting
from dgym_operator.app.metrics import Metrics
from dgym_operator.app.namespaces import Namespaces
from dgym_operator.app.reconciler import Item, Reconciler
from dgym_operator.cache import World
from dgym_operator.calls import AgentClient, PodCaller, SidecarCalls
from dgym_operator.dispatch import AgentPoller, Deliveries, Dispatcher
from dgym_operator.render import PodSettings, Renderer
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_BACKOFF = Backoff(base=1.0, limit=30.0)
_SIDECAR_SECONDS = 5.0
_AGENT_SECONDS = 10.0
_CALLERS = 8


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What both replicas have."""

    settings: Settings
    clock: Clock
    random: Random
    random_bytes: Callable[[int], bytes]
    world: World
    client: Client
    session: aiohttp.ClientSession
    queue: WorkQueue[Item]
    dispatcher: Dispatcher
    triggers: Triggers
    namespaces: Namespaces
    key_health: KeyHealth
    events: EventRecorder
    metrics: Metrics
    busy: Busy
    leads: Callable[[], bool]


async def lead(common: Common) -> None:
    """Decide and write until the queue is closed."""
    writes = Writes(common.client, common.leads)
    await common.namespaces.begin()
    async with asyncio.TaskGroup() as background:
        helpers = [background.create_task(common.namespaces.run())]
        key = await _key(common, writes)
        common.world.key_id = key_id(key)
        leading = _Leading(common, writes, key)
        common.triggers.lead()
        helpers += [background.create_task(work) for work in leading.background()]
        async with asyncio.TaskGroup() as workers:
            for number in range(common.settings.workers):
                workers.create_task(leading.reconciler.work(number))
        # The queue is closed and every write in flight is answered; what is left may be done by the next leader.
        for helper in helpers:
            helper.cancel()


async def _key(common: Common, writes: Writes) -> bytes:
    failures = 0
    while True:
        try:
            key = await ensure_secrets(common.client, writes, common.settings, common.random_bytes)
        except (ApiError, KeyUnusable) as error:
            failures += 1
            common.key_health.missing(str(error))
            await show_waiting(common.world, writes, common.namespaces.serves, common.key_health.problem)
            await common.clock.sleep(_BACKOFF.delay(failures, common.random))
        else:
            common.key_health.found()
            return key


class _Leading:
    """The parts, put together."""

    def __init__(self, common: Common, writes: Writes, key: bytes) -> None:
        settings, world = common.settings, common.world
        reader = Reader(common.client)
        self._common = common
        self._sidecars = SidecarCalls(
            PodCaller(common.session, deadline_seconds=_SIDECAR_SECONDS),
            key,
            WorkQueue(clock=common.clock, random=common.random),
        )
        client = AgentClient(PodCaller(common.session, deadline_seconds=_AGENT_SECONDS), key)
        self._deliveries = Deliveries(
            world,
            reader=reader,
            client=client,
            events=common.events,
            enqueue=common.triggers.episode,
            queue=WorkQueue(clock=common.clock, random=common.random),
            key=key,
            counter=common.metrics.assignments,
        )
        self._poller = AgentPoller(
            world,
            client=client,
            deliveries=self._deliveries,
            dispatcher=common.dispatcher,
            enqueue=common.triggers.episode,
            token_refused=common.key_health.refused,
            interval_seconds=settings.agent_report_seconds,
        )
        self.reconciler = Reconciler(
            world,
            queue=common.queue,
            episodes=self._episodes(common, writes, reader, key),
            sets=SetExecutor(world, client=common.client, writes=writes, events=common.events),
            dispatcher=common.dispatcher,
            deliveries=self._deliveries,
            metrics=common.metrics,
            busy=common.busy,
            serves=common.namespaces.serves,
        )

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on beside the workers."""
        yield self._poller.run()
        yield self._common.dispatcher.run()
        for _ in range(_CALLERS):
            yield self._sidecars.work()
            yield self._deliveries.work()

    def _episodes(self, common: Common, writes: Writes, reader: Reader, key: bytes) -> EpisodeExecutor:
        settings = common.settings
        pods = PodMaker(
            common.client,
            writes,
            reader=reader,
            policies=Policies(writes, settings, common.clock.monotonic),
            renderer=Renderer(directory=settings.pod_templates_directory),
            pod_settings=pod_settings(settings),
            default_template=settings.default_pod_template,
            key=key,
        )
        return EpisodeExecutor(
            common.world,
            client=common.client,
            writes=writes,
            reader=reader,
            pods=pods,
            sidecars=self._sidecars,
            events=common.events,
            progress=ProgressBudget(settings.progress_qps, common.clock),
        )


def pod_settings(settings: Settings) -> PodSettings:
    """What all pods of this installation share."""
    return PodSettings(
        sandbox_image=settings.sandbox_image,
        sidecar_image=settings.sidecar_image,
        image_pull_policy=settings.image_pull_policy,
        image_pull_secrets=settings.image_pull_secrets,
        log_level=settings.log_level,
    )
