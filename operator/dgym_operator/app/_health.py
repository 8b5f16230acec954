"""Liveness and readiness checks, the HTTP server for them, and the health of the cluster's key.

Liveness fails only if a restart helps: if the event loop is blocked (then requests are not answered at all), or if a
worker hangs for longer than all timeouts of its writes. Without the API server only readiness fails, because the
informers become stale.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from dgym.kube import EPISODES, PODS, ApiError, EventRecorder, EventType
from dgym.logs import fields
from dgym.metric_types import sampling_lag
from dgym_operator.actions import NotLeading, Writes, episode_patch
from dgym_operator.app._metrics import CONTENT_TYPE, Metrics
from dgym_operator.cache import AgentPod, AgentPods, Cache
from dgym_operator.controllers import PatchStatus
from dgym_operator.controllers.episode import decide
from dgym_operator.objects import EpisodeView, Identity, WatchedObject
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""A check returns the problem, or None."""
_PER_TRY = 1000
"""Maximum number of Episodes that are written after each try to get the key. The others follow after the next try."""


class Watchdog:
    """Liveness check of the workers. Its message contains the reconcile that hangs."""

    def __init__(self, clock: Callable[[], float], limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._since: dict[int, tuple[float, str]] = {}

    def begin(self, worker: int, what: str) -> None:
        """Record that the worker starts a reconcile."""
        self._since[worker] = (self._clock(), what)

    def end(self, worker: int) -> None:
        """Record that the worker's reconcile has ended."""
        self._since.pop(worker, None)

    def check(self) -> str | None:
        """Return a message about the first reconcile that takes too long, or None."""
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
    """Serve ``/healthz``, ``/readyz``, ``/metrics`` and the routes. Yields the port.

    ``/healthz`` runs the checks in ``live``. ``/readyz`` runs the checks in ``live`` and ``ready``.
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
    """Reports problems of the installation to administrators, in the log and in Events on the operator's own pod."""

    def __init__(self, settings: Settings, events: EventRecorder) -> None:
        self._events = events
        self._pod = WatchedObject(
            metadata=Identity(name=settings.pod_name, namespace=settings.namespace, uid=settings.pod_uid)
        )

    def announce(self, kind: EventType, reason: str, message: str, **about: str) -> None:
        """Log the message and record an Event. Soon repeated messages increase the count of the same Event."""
        level = logging.WARNING if kind == "Warning" else logging.INFO
        _log.log(level, "%s", message, extra=fields(reason=reason, **about))
        self._events.record(PODS, self._pod, type=kind, reason=reason, message=message)


class KeyHealth:
    """The state of the cluster's key on this replica. Only the leader needs the key."""

    def __init__(self, agent_pods: AgentPods, announcer: Announcer) -> None:
        self._agent_pods = agent_pods
        self._announcer = announcer
        self.problem = ""
        """Why the leader does not have a key. Empty if it has a key, or if this replica is not the leader."""

    def missing(self, problem: str) -> None:
        """Record and report that the leader cannot get the key."""
        self.problem = f"the operator has no usable key: {problem}"
        self._announcer.announce("Warning", "KeyUnusable", self.problem)

    def found(self) -> None:
        """Record that the leader has the key."""
        self.problem = ""

    def refused(self, agent_pod: AgentPod) -> None:
        """Record that an agent pod refuses the leader's token. The first refusal is also reported."""
        if not agent_pod.refuses_token:
            agent_pod.refuses_token = True
            self._announcer.announce("Warning", "TokenRefused", _refusal(agent_pod), agent_pod=agent_pod.name)

    def check(self) -> str | None:
        """Readiness check: return why this replica cannot serve episodes or cannot use an agent pod."""
        if self.problem:
            return self.problem
        return next(
            (_refusal(agent_pod) for agent_pod in self._agent_pods if agent_pod.ready and agent_pod.refuses_token), None
        )


def _refusal(agent_pod: AgentPod) -> str:
    return (
        f"agent pod {agent_pod.name} refuses the operator's token: the Secret dgym-agent-keys it was started with does "
        f"not come from the present key, or its node's clock is wrong by an hour or more. Correct the clock, or delete "
        f"the Secret dgym-agent-keys, restart the operator and then the agent pods"
    )


async def show_waiting(cache: Cache, writes: Writes, serves: Callable[[str], bool], held_by: str) -> None:
    """Write ``held_by`` to the status of the episodes that wait for a sandbox pod. Pods require the key."""
    written = 0
    for episode in cache.episodes:
        if episode.status.pod_name is None and serves(episode.metadata.namespace) and written < _PER_TRY:
            written += await _show(cache, writes, episode, held_by)


async def _show(cache: Cache, writes: Writes, episode: EpisodeView, held_by: str) -> bool:
    view = cache.episode_input(episode, may_create=False)
    plan = decide(msgspec.structs.replace(view, held_by=held_by), cache.clock.now())
    for action in plan.actions:
        if not isinstance(action, PatchStatus) or not action.progress:
            continue
        patch = episode_patch(episode, action.status, cache.clock.now())
        if patch is None:
            continue
        try:
            written = await writes.patch_status(EPISODES, episode, patch)
        except (ApiError, NotLeading):
            return False
        cache.episodes.assume(written)
        return True
    return False
