"""Liveness and readiness, the server that answers for them, and the health of the cluster's key, announced in Events.

Liveness fails only for what a restart cures: an event loop that does not turn (then no request is answered at all) or a
worker that hangs beyond every deadline of a write. A lost API server fails readiness alone, by stale informers.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from dgym.kube import EPISODES, PODS, ApiError, EventRecorder, EventType
from dgym.logs import fields
from dgym.metrics import sampling_lag
from dgym_operator.actions import NotLeading, Writes, episode_patch
from dgym_operator.app.metrics import CONTENT_TYPE, Metrics
from dgym_operator.cache import Agent, Agents, Cache
from dgym_operator.controllers import PatchStatus
from dgym_operator.controllers.episode import decide
from dgym_operator.objects import EpisodeView, Identity, WatchedObject
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns the problem, or None."""
_PER_TRY = 1000
"""Episodes written for each try to get the key; the others follow with the next try."""


class Watchdog:
    """A liveness check of the workers, which names the reconcile that hangs."""

    def __init__(self, clock: Callable[[], float], limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._since: dict[int, tuple[float, str]] = {}

    def begin(self, worker: int, what: str) -> None:
        """The worker begins a reconcile."""
        self._since[worker] = (self._clock(), what)

    def end(self, worker: int) -> None:
        """The worker's reconcile has ended."""
        self._since.pop(worker, None)

    def check(self) -> str | None:
        """The first reconcile that takes too long."""
        late = self._clock() - self._limit
        return next((f"a worker hangs in {what}" for since, what in self._since.values() if since < late), None)


@asynccontextmanager
async def serving(
    metrics: Metrics,
    host: str,
    port: int,
    *,
    live: Sequence[Check] = (),
    ready: Sequence[Check] = (),
    routes: Sequence[web.RouteDef] = (),
) -> AsyncIterator[int]:
    """Serve ``/healthz``, ``/readyz``, ``/metrics`` and the routes; yields the port.

    The checks show why to restart the process (``live``), and why not to rely on it (``live`` and ``ready``).
    """
    application = web.Application()
    application.router.add_get("/healthz", _answering(live))
    application.router.add_get("/readyz", _answering((*live, *ready)))
    application.router.add_get("/metrics", _metrics(metrics))
    application.router.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = int(runner.addresses[0][1])
        _log.info("listening", extra={"fields": {"port": bound}})
        async with sampling_lag(metrics.lag_seconds):
            yield bound
    finally:
        await runner.cleanup()


def _answering(checks: Sequence[Check]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_request: web.Request) -> web.Response:
        found = [problem for problem in (check() for check in checks) if problem]
        return web.Response(text="\n".join(found or ["ok"]) + "\n", status=503 if found else 200)

    return answer


def _metrics(metrics: Metrics) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return answer


class Announcer:
    """Announces problems of the installation in the log and in Events of the operator's own pod, for administrators."""

    def __init__(self, settings: Settings, events: EventRecorder) -> None:
        self._events = events
        self._pod = WatchedObject(
            metadata=Identity(name=settings.pod_name, namespace=settings.namespace, uid=settings.pod_uid)
        )

    def announce(self, kind: EventType, reason: str, message: str, **about: str) -> None:
        """Log the message and record an Event; a repetition soon after becomes a count on the same Event."""
        level = logging.WARNING if kind == "Warning" else logging.INFO
        _log.log(level, "%s", message, extra=fields(reason=reason, **about))
        self._events.record(PODS, self._pod, type=kind, reason=reason, message=message)


class KeyHealth:
    """The state of the cluster's key on this replica; a replica that does not lead needs no key."""

    def __init__(self, agents: Agents, announcer: Announcer) -> None:
        self._agents = agents
        self._announcer = announcer
        self.problem = ""
        """Why the leader has no key; empty: it has one, or the replica does not lead."""

    def missing(self, problem: str) -> None:
        """Announce that the leader cannot get the key."""
        self.problem = f"the operator has no usable key: {problem}"
        self._announcer.announce("Warning", "KeyUnusable", self.problem)

    def found(self) -> None:
        """Record that the leader has the key."""
        self.problem = ""

    def refused(self, agent: Agent) -> None:
        """Record that an agent refuses the leader's token, and announce it when that begins."""
        if not agent.refuses_token:
            agent.refuses_token = True
            self._announcer.announce("Warning", "TokenRefused", _refusal(agent), agent=agent.name)

    def check(self) -> str | None:
        """Readiness check: why this replica can serve no episodes, or not with all agents."""
        if self.problem:
            return self.problem
        return next((_refusal(agent) for agent in self._agents if agent.ready and agent.refuses_token), None)


def _refusal(agent: Agent) -> str:
    return (
        f"agent pod {agent.name} refuses the operator's token: the Secret dgym-agent-keys it was started with does "
        f"not come from the present key, or its node's clock is wrong by an hour or more. Correct the clock, or delete "
        f"the Secret dgym-agent-keys, restart the operator and then the agents"
    )


async def show_waiting(cache: Cache, writes: Writes, serves: Callable[[str], bool], held_by: str) -> None:
    """Write ``held_by`` into the status of the episodes that wait for a sandbox: without a key no pod is created."""
    written = 0
    for episode in cache.episodes:
        if episode.status.pod_name is None and serves(episode.metadata.namespace) and written < _PER_TRY:
            written += await _show(cache, writes, episode, held_by)


async def _show(cache: Cache, writes: Writes, episode: EpisodeView, held_by: str) -> bool:
    view = cache.episode_input(episode, may_create=False)
    plan = decide(msgspec.structs.replace(view, held_by=held_by), cache.clock.now())
    metadata = episode.metadata
    for action in plan.actions:
        if not isinstance(action, PatchStatus) or not action.progress:
            continue
        patch = episode_patch(episode, action.status, cache.clock.now())
        if patch is None:
            continue
        try:
            written = await writes.patch_status(
                EPISODES, metadata.name, patch, decode=EpisodeView, namespace=metadata.namespace
            )
        except (ApiError, NotLeading):
            return False
        cache.episodes.assume(written)
        return True
    return False
