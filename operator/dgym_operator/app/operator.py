"""The operator process: a replica whose cache is always warm, and which decides and writes while it leads.

Everything runs in one task group and ends with it. A signal stops the leader between two writes, releases the Lease and
ends the process. A leader that cannot renew its Lease ends too, and is restarted by its kubelet.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

import aiohttp

from dgym.kube import (
    Access,
    ApiError,
    Backoff,
    Client,
    Clock,
    EventRecorder,
    Key,
    LeaderElector,
    Resource,
    Transport,
    WorkQueue,
)
from dgym.tracing import OFF, Tracer
from dgym_operator.actions import (
    ApiReader,
    DriverSecrets,
    EpisodeExecutor,
    KeyUnusable,
    NetworkPolicies,
    PodMaker,
    PoolClaims,
    PoolExecutor,
    ProgressBudget,
    SetExecutor,
    SetPools,
    Writes,
    ensure_secrets,
    key_id,
)
from dgym_operator.app.handlers import EventHandlers
from dgym_operator.app.health import Announcer, KeyHealth, Watchdog, serving, show_waiting
from dgym_operator.app.metrics import Metrics, TransitionObserver
from dgym_operator.app.namespaces import Claims, Namespaces
from dgym_operator.app.present import Snapshot, snapshot_of
from dgym_operator.app.reconciler import Item, Reconciler
from dgym_operator.app.results import ResultsApi
from dgym_operator.app.traces import trace_episode
from dgym_operator.cache import Agents, Cache, Informers
from dgym_operator.calls import AgentClient, PodCaller, SidecarCalls
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import AgentPoller, Deliveries, Dispatcher
from dgym_operator.render import Renderer
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_CONTROLLER = "dgym.dev/operator"
_HANGS_SECONDS = 900.0
"""Longer than all deadlines of one reconcile's writes together, while the API server is slow and not gone."""
_CONNECTIONS = 256
_KEY_BACKOFF = Backoff(base=1.0, limit=30.0)
_SIDECAR_SECONDS = 5.0
_AGENT_SECONDS = 10.0
_CALLERS = 8
_SIDECAR_CALLERS = 64
"""A sidecar that does not answer keeps its caller for seconds, and a lost node has many of them."""


class Network:
    """The connections of a replica: to the API server, to pods, and to its own port. A simulation has its own."""

    transport: Callable[..., Transport] = Transport
    serve = staticmethod(serving)

    @asynccontextmanager
    async def callers(self) -> AsyncIterator[Callable[[float], PodCaller]]:
        """Makes callers of agents and sidecars with a deadline: without a proxy of the environment, without cookies."""
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield lambda deadline_seconds: PodCaller(session, deadline_seconds=deadline_seconds)


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
        network: Network = Network(),  # noqa: B008 - immutable
        renderer: Renderer | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        agents = Agents(clock, port=settings.agent_port, silence_seconds=settings.agent_silence_seconds)
        self.port = 0
        self.settings = settings
        self.cache = Cache(clock, agents, policy)
        self.metrics = Metrics(self._snapshot, settings.metrics_namespace_label)
        self._clock = clock
        self._random = random
        self._random_bytes = random_bytes
        self._network = network
        self._renderer = renderer or Renderer(directory=settings.pod_templates_directory)
        self._tracer = tracer
        self._client = Client(
            access,
            clock=clock,
            random=random,
            qps=settings.api_qps,
            burst=settings.api_burst,
            observe=self._observe,
            transport=network.transport,
        )
        self.elector = LeaderElector(
            self._client,
            name=settings.lease_name,
            namespace=settings.namespace,
            identity=f"{settings.pod_name}_{uuid4()}",
            clock=clock,
            random=random,
            duration=settings.lease_duration_seconds,
            renew_deadline=settings.lease_renew_seconds,
            retry_period=settings.lease_retry_seconds,
            note=lambda: self._informers.handover(),
        )
        self._writes = Writes(self._client, self.elector.is_leader)
        self._events = EventRecorder(
            self._client, controller=_CONTROLLER, instance=self.elector.identity, clock=clock, random=random
        )
        self._informers = Informers(self._client, self.cache, settings, clock, random)
        self._queue: WorkQueue[Item] = WorkQueue(clock=clock, random=random)
        self._dispatcher = Dispatcher(
            self.cache,
            head_start=settings.head_start,
            stuck_limit=settings.max_stuck_pods,
            pull_limit=settings.max_concurrent_pulls,
            policies=settings.namespace_policies,
            enqueue=self._enqueue,
            pools=settings.agent_pools,
        )
        self._handlers = EventHandlers(
            self.cache,
            queue=self._queue,
            dispatcher=self._dispatcher,
            observer=TransitionObserver(
                self.metrics, self.elector.is_leader, lambda episode: trace_episode(tracer, episode)
            ),
        )
        announcer = Announcer(settings, self._events)
        self._namespaces = Namespaces(
            settings,
            cache=self.cache,
            informers=self._informers,
            claims=Claims(
                self._client,
                identity=settings.installation,
                duration_seconds=settings.namespace_lease_seconds,
                clock=clock,
                random=random,
            ),
            announcer=announcer,
            served=self._handlers.enqueue_namespace,
        )
        self._results = ResultsApi(self._client, agents, settings, clock)
        self._key_health = KeyHealth(agents, announcer)
        self._watchdog = Watchdog(clock.monotonic, _HANGS_SECONDS)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``.

        Raises:
            LeadershipLost: The Lease could not be renewed.
        """
        ready = (self._informers.check, self._key_health.check)
        serve = self._network.serve(
            self.metrics,
            self.settings.host,
            self.settings.port,
            live=(self._watchdog.check,),
            ready=ready,
            routes=self._results.routes(),
        )
        async with self._client, self._network.callers() as caller, serve as self.port, asyncio.TaskGroup() as group:
            background = [group.create_task(self._events.run())]
            background += [group.create_task(reflector.run()) for reflector in self._informers.by_name.values()]
            try:
                await self._lead_until(stop, caller)
            finally:
                for task in background:
                    task.cancel()

    async def _lead_until(self, stop: asyncio.Event, caller: Callable[[float], PodCaller]) -> None:
        leading = asyncio.ensure_future(self._elect(caller))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                _log.info("stops: no new work is taken, writes in flight are finished")
                self._queue.close()
                self._writes.stop()
                if self.elector.is_leader():
                    await asyncio.wait((leading,), timeout=self.settings.shutdown_seconds)
        finally:
            for task in (leading, stopping):
                task.cancel()
            await asyncio.wait((leading, stopping))
        if not leading.cancelled():
            leading.result()

    async def _elect(self, caller: Callable[[float], PodCaller]) -> None:
        # A decision from half a view would create pods that exist already.
        await self._informers.synced()
        await self.elector.run(lambda: self._lead(caller))

    async def _lead(self, caller: Callable[[float], PodCaller]) -> None:
        """Decide and write until the queue is closed. Agents and sidecars are called by callers."""
        writes = self._writes
        async with asyncio.TaskGroup() as background:
            caught_up = background.create_task(self._informers.catch_up(self.elector.handed_over))
            await self._namespaces.begin()
            tasks = [background.create_task(self._namespaces.run())]
            key = await self._obtain_key(writes)
            self.cache.key, self.cache.key_id = key, key_id(key)
            await caught_up
            reconciler, work = self._leading_parts(caller, writes, key)
            self._handlers.start()
            tasks += [background.create_task(each) for each in work]
            async with asyncio.TaskGroup() as workers:
                for number in range(self.settings.workers):
                    workers.create_task(reconciler.work(number))
            # The queue is closed and every write in flight is answered; the rest is left to the next leader.
            for task in tasks:
                task.cancel()

    async def _obtain_key(self, writes: Writes) -> bytes:
        failures = 0
        while True:
            try:
                key = await ensure_secrets(self._client, writes, self.settings, self._random_bytes)
            except (ApiError, KeyUnusable) as error:
                failures += 1
                self._key_health.missing(str(error))
                await show_waiting(self.cache, writes, self._namespaces.serves, self._key_health.problem)
                await self._clock.sleep(_KEY_BACKOFF.delay(failures, self._random))
            else:
                self._key_health.found()
                return key

    def _leading_parts(
        self, caller: Callable[[float], PodCaller], writes: Writes, key: bytes
    ) -> tuple[Reconciler, list[Coroutine[Any, Any, None]]]:
        """The reconciler of the leader, and the work beside it."""
        settings, cache, clock, random = self.settings, self.cache, self._clock, self._random
        reader = ApiReader(self._client, cache, with_annotations=bool(settings.inherited_annotations))
        agent_client = AgentClient(caller(_AGENT_SECONDS), key, clock)
        sidecars = SidecarCalls(
            caller(_SIDECAR_SECONDS),
            key,
            WorkQueue(clock=clock, random=random),
            clock=clock,
            answered=self._handlers.sidecar_answered,
        )
        deliveries = Deliveries(
            cache,
            reader=reader,
            client=agent_client,
            events=self._events,
            enqueue=self._handlers.enqueue,
            queue=WorkQueue(clock=clock, random=random),
            key=key,
            counter=self.metrics.assignments,
            settings=settings,
            tracer=self._tracer,
        )
        poller = AgentPoller(
            cache,
            client=agent_client,
            deliveries=deliveries,
            dispatcher=self._dispatcher,
            enqueue=self._handlers.enqueue,
            token_refused=self._key_health.refused,
            interval_seconds=settings.agent_report_seconds,
        )
        policies = NetworkPolicies(
            cache=cache,
            writes=writes,
            settings=settings,
            events=self._events,
            restored=self.metrics.policies_restored.inc,
        )
        pods = PodMaker(
            client=self._client,
            writes=writes,
            reader=reader,
            policies=policies,
            renderer=self._renderer,
            settings=settings,
            key=key,
            claims=PoolClaims(cache=cache, writes=writes, missed=self._handlers.enqueue_pool),
        )
        episodes = EpisodeExecutor(
            cache=cache,
            client=self._client,
            writes=writes,
            reader=reader,
            pods=pods,
            drivers=DriverSecrets(writes=writes, key=key),
            sidecars=sidecars,
            events=self._events,
            progress=ProgressBudget(settings.progress_qps, clock),
            quota_refused=self._dispatcher.quota_refused,
            pod_created=self._dispatcher.pod_created,
        )
        reconciler = Reconciler(
            cache=cache,
            queue=self._queue,
            episodes=episodes,
            pools=PoolExecutor(cache=cache, writes=writes, pods=pods, random_bytes=self._random_bytes),
            sets=SetExecutor(
                cache=cache,
                client=self._client,
                writes=writes,
                events=self._events,
                pools=SetPools(cache=cache, writes=writes, events=self._events),
                inherited_annotations=settings.inherited_annotations,
            ),
            policies=policies,
            dispatcher=self._dispatcher,
            deliveries=deliveries,
            metrics=self.metrics,
            watchdog=self._watchdog,
            serves=self._namespaces.serves,
        )
        callers = [deliveries.work() for _ in range(_CALLERS)]
        callers += [sidecars.work() for _ in range(_SIDECAR_CALLERS)]
        return reconciler, [poller.run(), self._dispatcher.run(), *callers]

    def _enqueue(self, key: Key, *, low_priority: bool = False) -> None:
        self._handlers.enqueue(key, low_priority=low_priority)

    def _observe(self, verb: str, resource: Resource, status: int, seconds: float) -> None:
        self.metrics.requested(verb, resource.plural, status, seconds)

    def _snapshot(self) -> Snapshot:
        leads = self.elector.is_leader()
        snapshot = snapshot_of(self.cache, self._informers, self._queue, self._dispatcher)
        snapshot.namespaces = {name: state.value for name, state in self._namespaces.states().items()} if leads else {}
        snapshot.key_usable = not self._key_health.problem
        snapshot.is_leader = leads
        snapshot.events_dropped = {str(kind): number for kind, number in self._events.dropped.items()}
        snapshot.throttle_seconds = self._client.throttle_seconds
        return snapshot
