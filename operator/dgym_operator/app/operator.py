"""The operator process: caches that are always warm, and a leader that decides and writes.

Everything runs in one task group and ends with it. A signal stops the leader between two writes, gives the Lease back
and ends the process; a leader that cannot renew its Lease ends too, and is started anew by its kubelet.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from uuid import uuid4

import aiohttp

from dgym.kube import Access, Client, Clock, EventRecorder, Key, LeaderElector, LeaseSettings, Resource, WorkQueue
from dgym_operator.app.claims import Claims
from dgym_operator.app.handlers import Triggers
from dgym_operator.app.health import Announcer, Busy, Health, serving
from dgym_operator.app.key import KeyHealth
from dgym_operator.app.leader import Common, lead
from dgym_operator.app.metrics import Metrics, Snapshot, TransitionObserver, count_agents, count_episodes
from dgym_operator.app.namespaces import Namespaces
from dgym_operator.app.reconciler import Item
from dgym_operator.cache import Agents, Watches, World
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import Dispatcher
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_CONTROLLER = "dgym.dev/operator"
_HANGS_SECONDS = 900.0
"""Longer than all the deadlines of one decision's writes together, when the API server is slow and not gone."""
_CONNECTIONS = 256


class Operator:
    """One replica."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        *,
        clock: Clock,
        random: Random,
        random_bytes: Callable[[int], bytes],
        policy: Policy = Policy(),  # noqa: B008 - immutable
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(self._snapshot)
        self.world = World(
            clock, Agents(clock, port=settings.agent_port, silence_seconds=settings.agent_silence_seconds), policy
        )
        self.client = Client(
            access, clock=clock, random=random, qps=settings.api_qps, burst=settings.api_burst, observe=self._observe
        )
        self.watches = Watches(self.client, self.world, settings, clock, random)
        self.queue: WorkQueue[Item] = WorkQueue(clock=clock, random=random)
        self.elector = LeaderElector(
            self.client,
            name=settings.lease_name,
            namespace=settings.namespace,
            identity=f"{settings.pod_name}_{uuid4()}",
            clock=clock,
            random=random,
            settings=LeaseSettings(
                duration=settings.lease_duration_seconds,
                renew_deadline=settings.lease_renew_seconds,
                retry_period=settings.lease_retry_seconds,
            ),
        )
        self.port = 0
        self._clock = clock
        self._random = random
        self._random_bytes = random_bytes
        self._dispatcher = Dispatcher(
            self.world,
            head_start=settings.head_start,
            stuck_limit=settings.max_stuck_pods,
            enqueue=self._enqueue,
        )
        self._triggers = Triggers(
            self.world,
            queue=self.queue,
            dispatcher=self._dispatcher,
            observer=TransitionObserver(self.metrics, self.elector.is_leader),
        )
        self._events = EventRecorder(
            self.client, controller=_CONTROLLER, instance=self.elector.identity, clock=clock, random=random
        )
        announcer = Announcer(settings, self._events)
        self._namespaces = Namespaces(
            settings,
            world=self.world,
            watches=self.watches,
            claims=Claims(
                self.client,
                identity=settings.installation,
                duration_seconds=settings.namespace_lease_seconds,
                clock=clock,
                random=random,
            ),
            announcer=announcer,
            served=self._triggers.namespace,
        )
        self._key_health = KeyHealth(self.world.agents, announcer)
        self._busy = Busy(clock.monotonic, _HANGS_SECONDS)
        self._health = Health()
        self._health.add_live(self._busy.check)
        self._health.add_ready(self.watches.check)
        self._health.add_ready(self._key_health.check)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``.

        Raises:
            LeadershipLost: The Lease could not be renewed.
        """
        async with self.client, _session() as session, self._serving(), asyncio.TaskGroup() as group:
            background = [group.create_task(self._events.run())]
            background += [group.create_task(reflector.run()) for reflector in self.watches.by_name.values()]
            try:
                await self._lead_until(stop, self._common(session))
            finally:
                for task in background:
                    task.cancel()

    async def _lead_until(self, stop: asyncio.Event, common: Common) -> None:
        leading = asyncio.ensure_future(self._lead(common))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                _log.info("stops: no new work is taken, writes in flight are finished")
                self.queue.close()
                if self.elector.is_leader():
                    await asyncio.wait((leading,), timeout=self.settings.shutdown_seconds)
        finally:
            for task in (leading, stopping):
                task.cancel()
            await asyncio.wait((leading, stopping))
        if not leading.cancelled():
            leading.result()

    async def _lead(self, common: Common) -> None:
        # Whoever decides from half a view makes pods that are there already.
        await self.watches.synced()
        await self.elector.run(lambda: lead(common))

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with serving(self._health, self.metrics, self.settings.host, self.settings.port) as port:
            self.port = port
            yield

    def _common(self, session: aiohttp.ClientSession) -> Common:
        return Common(
            settings=self.settings,
            clock=self._clock,
            random=self._random,
            random_bytes=self._random_bytes,
            world=self.world,
            client=self.client,
            session=session,
            queue=self.queue,
            dispatcher=self._dispatcher,
            triggers=self._triggers,
            namespaces=self._namespaces,
            key_health=self._key_health,
            events=self._events,
            metrics=self.metrics,
            busy=self._busy,
            leads=self.elector.is_leader,
        )

    def _enqueue(self, key: Key, *, low_priority: bool = False) -> None:
        self._triggers.episode(key, low_priority=low_priority)

    def _observe(self, verb: str, resource: Resource, status: int, seconds: float) -> None:
        self.metrics.api_requests.labels(verb=verb, resource=resource.plural, code=str(status)).inc()
        if verb != "watch":
            self.metrics.api_seconds.labels(verb=verb, resource=resource.plural).observe(seconds)

    def _snapshot(self) -> Snapshot:
        used, free = self._dispatcher.slots()
        leads = self.elector.is_leader()
        return Snapshot(
            episodes=count_episodes(self.world.episodes),
            agents=count_agents(self.world.agents),
            slots_used=used,
            slots_free=free,
            queue_depth=len(self.queue),
            queue_oldest_seconds=self.queue.oldest_age,
            watch_staleness_seconds=self.watches.staleness(),
            namespaces={name: state.value for name, state in self._namespaces.states().items()} if leads else {},
            key_usable=not self._key_health.problem,
            is_leader=leads,
        )


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    """For agents and sidecars: pods of this cluster, so no proxy of the environment and no cookies."""
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session
