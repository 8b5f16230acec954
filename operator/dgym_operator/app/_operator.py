"""The operator process. Every replica keeps its cache up to date, and the leader makes decisions and writes.

All tasks run in one task group. A signal stops the leader between two writes, releases the Lease and ends the process.
A leader that cannot renew its Lease exits too, and the kubelet restarts it.
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
    ApiError,
    Backoff,
    Client,
    Clock,
    ClusterAccess,
    EventRecorder,
    LeaderElector,
    Transport,
    WorkQueue,
)
from dgym.tracing import OFF, Tracer
from dgym.wire.client import PodTransport
from dgym_operator.actions import (
    ApiReader,
    EpisodeExecutor,
    KeyUnusable,
    NetworkPolicies,
    PodMaker,
    ProgressBudget,
    SandboxPoolClaims,
    SandboxPoolExecutor,
    SetExecutor,
    Writes,
    ensure_secrets,
    key_id,
)
from dgym_operator.app._handlers import EventHandlers
from dgym_operator.app._health import Announcer, KeyHealth, Watchdog, serving, show_waiting
from dgym_operator.app._metrics import Metrics, Snapshot, TransitionObserver, snapshot_of, trace_episode
from dgym_operator.app._namespaces import Claims, Namespaces
from dgym_operator.app._reconciler import Item, Reconciler
from dgym_operator.app._results import ResultsApi
from dgym_operator.cache import AgentPods, Cache, Informers
from dgym_operator.calls import ANSWER_LIMIT, AgentPodClient, SidecarCalls
from dgym_operator.controllers import Policy
from dgym_operator.dispatch import AgentPodPoller, Deliveries, Dispatcher
from dgym_operator.render import Renderer
from dgym_operator.settings import LEADER_LEASE, Settings

_log = logging.getLogger(__name__)
_CONTROLLER = "dgym.dev/operator"
_HANGS_SECONDS = 900.0
"""A worker hangs after this time. It is longer than the sum of the timeouts of one reconcile's writes."""
_SHUTDOWN_SECONDS = 20.0
"""Time for writes in flight after SIGTERM. It is shorter than the pod's grace period."""
_CONNECTIONS = 256
_KEY_BACKOFF = Backoff(base=1.0, limit=30.0)
_SIDECAR_SECONDS = 5.0
_AGENT_POD_SECONDS = 10.0
_CALLERS = 8
_SIDECAR_CALLERS = 64
"""Tasks that call sidecars. A sidecar that does not answer blocks a task for seconds, and a lost node has many."""


class Network:
    """The connections of a replica: to the API server, to pods, and its own port. Simulations replace this class."""

    transport: Callable[..., Transport] = Transport
    serve = staticmethod(serving)

    @asynccontextmanager
    async def pods(self) -> AsyncIterator[Callable[[float], PodTransport]]:
        """Yield a factory of transports to pods. Its argument is the deadline of a call in seconds.

        Transports use neither the proxy in the environment nor cookies.
        """
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield lambda seconds: PodTransport(session, deadline_seconds=seconds, answer_limit=ANSWER_LIMIT)


class Operator:
    """One replica."""

    def __init__(
        self,
        settings: Settings,
        access: ClusterAccess,
        *,
        clock: Clock,
        random: Random,
        random_bytes: Callable[[int], bytes],
        policy: Policy = Policy(),  # noqa: B008 - immutable
        network: Network = Network(),  # noqa: B008 - immutable
        renderer: Renderer | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        agent_pods = AgentPods(clock, port=settings.agent_port, silence_seconds=policy.agent_pod_silence_seconds)
        self.port = 0
        self.settings = settings
        self.cache = Cache(clock, agent_pods, policy)
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
            observe=self.metrics.requested,
            transport=network.transport,
        )
        self.elector = LeaderElector(
            self._client,
            name=LEADER_LEASE,
            namespace=settings.namespace,
            identity=f"{settings.pod_name}_{uuid4()}",
            clock=clock,
            random=random,
            duration=policy.lease_seconds,
            renew_deadline=policy.lease_renew_seconds,
            retry_period=policy.lease_retry_seconds,
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
            enqueue=lambda key, **options: self._handlers.enqueue(key, **options),
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
                duration_seconds=policy.namespace_lease_seconds,
                clock=clock,
                random=random,
            ),
            announcer=announcer,
            served=self._handlers.enqueue_namespace,
        )
        self._results = ResultsApi(self._client, agent_pods, settings, clock)
        self._key_health = KeyHealth(agent_pods, announcer)
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
        async with self._client, self._network.pods() as to_pods, serve as self.port, asyncio.TaskGroup() as group:
            background = [group.create_task(self._events.run())]
            background += [group.create_task(reflector.run()) for reflector in self._informers.by_name.values()]
            try:
                await self._lead_until(stop, to_pods)
            finally:
                for task in background:
                    task.cancel()

    async def _lead_until(self, stop: asyncio.Event, to_pods: Callable[[float], PodTransport]) -> None:
        leading = asyncio.ensure_future(self._elect(to_pods))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                _log.info("stops: no new work is taken, writes in flight are finished")
                self._queue.close()
                self._writes.stop()
                if self.elector.is_leader():
                    await asyncio.wait((leading,), timeout=_SHUTDOWN_SECONDS)
        finally:
            for task in (leading, stopping):
                task.cancel()
            await asyncio.wait((leading, stopping))
        if not leading.cancelled():
            leading.result()

    async def _elect(self, to_pods: Callable[[float], PodTransport]) -> None:
        # A decision with an incomplete cache would create pods that already exist.
        await self._informers.synced()
        await self.elector.run(lambda: self._lead(to_pods))

    async def _lead(self, to_pods: Callable[[float], PodTransport]) -> None:
        """Run the workers of the leader, and the tasks that call agent pods and sidecars, until the queue is closed."""
        writes = self._writes
        async with asyncio.TaskGroup() as background:
            caught_up = background.create_task(self._informers.catch_up(self.elector.handed_over))
            await self._namespaces.begin()
            tasks = [background.create_task(self._namespaces.run())]
            key = await self._obtain_key(writes)
            self.cache.key, self.cache.key_id = key, key_id(key)
            await caught_up
            reconciler, work = self._leading_parts(to_pods, writes, key)
            self._handlers.start()
            tasks += [background.create_task(each) for each in work]
            async with asyncio.TaskGroup() as workers:
                for number in range(self.cache.policy.workers):
                    workers.create_task(reconciler.work(number))
            # The queue is closed and every write in flight is answered. The next leader does the remaining work.
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
        self, to_pods: Callable[[float], PodTransport], writes: Writes, key: bytes
    ) -> tuple[Reconciler, list[Coroutine[Any, Any, None]]]:
        """Return the reconciler of the leader, and its background work as coroutines."""
        settings, cache, clock, random = self.settings, self.cache, self._clock, self._random
        reader = ApiReader(self._client, cache, with_annotations=bool(settings.inherited_annotations))
        agent_pod_client = AgentPodClient(to_pods(_AGENT_POD_SECONDS), key, clock)
        sidecars = SidecarCalls(
            to_pods(_SIDECAR_SECONDS),
            key,
            WorkQueue(clock=clock, random=random),
            clock=clock,
            answered=self._handlers.sidecar_answered,
        )
        deliveries = Deliveries(
            cache,
            reader=reader,
            client=agent_pod_client,
            events=self._events,
            enqueue=self._handlers.enqueue,
            queue=WorkQueue(clock=clock, random=random),
            key=key,
            counter=self.metrics.assignments,
            settings=settings,
            tracer=self._tracer,
        )
        poller = AgentPodPoller(
            cache,
            client=agent_pod_client,
            deliveries=deliveries,
            dispatcher=self._dispatcher,
            enqueue=self._handlers.enqueue,
            token_refused=self._key_health.refused,
            interval_seconds=cache.policy.agent_pod_report_seconds,
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
            claims=SandboxPoolClaims(cache=cache, writes=writes, missed=self._handlers.enqueue_sandbox_pool),
        )
        episodes = EpisodeExecutor(
            cache=cache,
            client=self._client,
            writes=writes,
            reader=reader,
            pods=pods,
            sidecars=sidecars,
            events=self._events,
            progress=ProgressBudget(clock),
            quota_refused=self._dispatcher.quota_refused,
            pod_created=self._dispatcher.pod_created,
        )
        reconciler = Reconciler(
            cache=cache,
            queue=self._queue,
            episodes=episodes,
            sandbox_pools=SandboxPoolExecutor(cache=cache, writes=writes, pods=pods, random_bytes=self._random_bytes),
            sets=SetExecutor(
                cache=cache,
                client=self._client,
                writes=writes,
                events=self._events,
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

    def _snapshot(self) -> Snapshot:
        leads = self.elector.is_leader()
        snapshot = snapshot_of(self.cache, self._informers, self._queue, self._dispatcher)
        snapshot.namespaces = {name: state.value for name, state in self._namespaces.states().items()} if leads else {}
        snapshot.key_usable = not self._key_health.problem
        snapshot.is_leader = leads
        snapshot.events_dropped = {str(kind): number for kind, number in self._events.dropped.items()}
        snapshot.throttle_seconds = self._client.throttle_seconds
        return snapshot
