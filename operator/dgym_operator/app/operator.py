"""The operator process: a replica whose cache is always warm, and which decides and writes while it leads.

Everything runs in one task group and ends with it. A signal stops the leader between two writes, releases the Lease and
ends the process. A leader that cannot renew its Lease ends too, and is restarted by its kubelet.
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
from dgym_operator.app.handlers import EventHandlers
from dgym_operator.app.health import Announcer, Health, Watchdog, serving
from dgym_operator.app.key import KeyHealth
from dgym_operator.app.leader import Replica, lead
from dgym_operator.app.metrics import Metrics, Snapshot, TransitionObserver, count_agents, count_episodes
from dgym_operator.app.namespaces import Namespaces
from dgym_operator.app.reconciler import Item
from dgym_operator.cache import Agents, Cache, Informers
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import Dispatcher
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_CONTROLLER = "dgym.dev/operator"
_HANGS_SECONDS = 900.0
"""Longer than all deadlines of one reconcile's writes together, while the API server is slow and not gone."""
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
        agents = Agents(clock, port=settings.agent_port, silence_seconds=settings.agent_silence_seconds)
        client = Client(
            access, clock=clock, random=random, qps=settings.api_qps, burst=settings.api_burst, observe=self._observe
        )
        self.port = 0
        self.settings = settings
        self.cache = Cache(clock, agents, policy)
        self.metrics = Metrics(self._snapshot)
        self.elector = _elector(client, settings, clock, random)
        self._informers = Informers(client, self.cache, settings, clock, random)
        self._queue: WorkQueue[Item] = WorkQueue(clock=clock, random=random)
        self._dispatcher = Dispatcher(
            self.cache, head_start=settings.head_start, stuck_limit=settings.max_stuck_pods, enqueue=self._enqueue
        )
        self._handlers = EventHandlers(
            self.cache,
            queue=self._queue,
            dispatcher=self._dispatcher,
            observer=TransitionObserver(self.metrics, self.elector.is_leader),
        )
        events = EventRecorder(
            client, controller=_CONTROLLER, instance=self.elector.identity, clock=clock, random=random
        )
        announcer = Announcer(settings, events)
        self._namespaces = Namespaces(
            settings,
            cache=self.cache,
            informers=self._informers,
            claims=Claims(
                client,
                identity=settings.installation,
                duration_seconds=settings.namespace_lease_seconds,
                clock=clock,
                random=random,
            ),
            announcer=announcer,
            served=self._handlers.enqueue_namespace,
        )
        self._key_health = KeyHealth(agents, announcer)
        watchdog = Watchdog(clock.monotonic, _HANGS_SECONDS)
        self._health = Health(live=(watchdog.check,), ready=(self._informers.check, self._key_health.check))
        self._replica = Replica(
            settings=settings,
            clock=clock,
            random=random,
            random_bytes=random_bytes,
            cache=self.cache,
            client=client,
            queue=self._queue,
            dispatcher=self._dispatcher,
            handlers=self._handlers,
            namespaces=self._namespaces,
            key_health=self._key_health,
            events=events,
            metrics=self.metrics,
            watchdog=watchdog,
            leads=self.elector.is_leader,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``.

        Raises:
            LeadershipLost: The Lease could not be renewed.
        """
        replica, serve = self._replica, serving(self._health, self.metrics, self.settings.host, self.settings.port)
        async with replica.client, _session() as session, serve as self.port, asyncio.TaskGroup() as group:
            background = [group.create_task(replica.events.run())]
            background += [group.create_task(reflector.run()) for reflector in self._informers.by_name.values()]
            try:
                await self._lead_until(stop, session)
            finally:
                for task in background:
                    task.cancel()

    async def _lead_until(self, stop: asyncio.Event, session: aiohttp.ClientSession) -> None:
        leading = asyncio.ensure_future(self._lead(session))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                _log.info("stops: no new work is taken, writes in flight are finished")
                self._queue.close()
                if self.elector.is_leader():
                    await asyncio.wait((leading,), timeout=self.settings.shutdown_seconds)
        finally:
            for task in (leading, stopping):
                task.cancel()
            await asyncio.wait((leading, stopping))
        if not leading.cancelled():
            leading.result()

    async def _lead(self, session: aiohttp.ClientSession) -> None:
        # A decision from half a view would create pods that exist already.
        await self._informers.synced()
        await self.elector.run(lambda: lead(self._replica, session))

    def _enqueue(self, key: Key, *, low_priority: bool = False) -> None:
        self._handlers.enqueue(key, low_priority=low_priority)

    def _observe(self, verb: str, resource: Resource, status: int, seconds: float) -> None:
        self.metrics.api_requests.labels(verb=verb, resource=resource.plural, code=str(status)).inc()
        if verb != "watch":
            self.metrics.api_seconds.labels(verb=verb, resource=resource.plural).observe(seconds)

    def _snapshot(self) -> Snapshot:
        used, free = self._dispatcher.slots()
        leads = self.elector.is_leader()
        return Snapshot(
            episodes=count_episodes(self.cache.episodes),
            agents=count_agents(self.cache.agents),
            slots_used=used,
            slots_free=free,
            queue_depth=len(self._queue),
            queue_oldest_seconds=self._queue.oldest_age,
            watch_staleness_seconds=self._informers.staleness(),
            namespaces={name: state.value for name, state in self._namespaces.states().items()} if leads else {},
            key_usable=not self._key_health.problem,
            is_leader=leads,
        )


def _elector(client: Client, settings: Settings, clock: Clock, random: Random) -> LeaderElector:
    times = LeaseSettings(
        duration=settings.lease_duration_seconds,
        renew_deadline=settings.lease_renew_seconds,
        retry_period=settings.lease_retry_seconds,
    )
    return LeaderElector(
        client,
        name=settings.lease_name,
        namespace=settings.namespace,
        identity=f"{settings.pod_name}_{uuid4()}",
        clock=clock,
        random=random,
        settings=times,
    )


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    """For agents and sidecars: pods of this cluster, so no proxy of the environment and no cookies."""
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session
