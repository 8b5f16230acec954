"""Liveness and readiness, the server that answers for them, and announcements about the installation.

Liveness fails only for what a restart cures: an event loop that does not turn (then no request is answered at all) or a
worker that hangs beyond every deadline of a write. A lost API server fails readiness alone, by stale watches.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from dgym.kube import PODS, EventRecorder, EventType
from dgym_operator.app.metrics import CONTENT_TYPE, Metrics
from dgym_operator.logs import fields
from dgym_operator.objects import Identity, Object
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""None: all is well; else what is not."""


class Health:
    """The checks of this process; every part of it brings its own."""

    def __init__(self) -> None:
        self._live: list[Check] = []
        self._ready: list[Check] = []

    def add_live(self, check: Check) -> None:
        """One more reason to restart the process."""
        self._live.append(check)

    def add_ready(self, check: Check) -> None:
        """One more reason not to rely on it."""
        self._ready.append(check)

    def dead(self) -> Sequence[str]:
        """Why it ought to be restarted."""
        return _found(self._live)

    def unready(self) -> Sequence[str]:
        """Why it is of no use right now."""
        return _found((*self._live, *self._ready))


class Busy:
    """What workers do since when: a liveness check that names what hangs."""

    def __init__(self, clock: Callable[[], float], limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._since: dict[int, tuple[float, str]] = {}

    def begin(self, worker: int, what: str) -> None:
        """The worker takes something up."""
        self._since[worker] = (self._clock(), what)

    def end(self, worker: int) -> None:
        """The worker is free."""
        self._since.pop(worker, None)

    def check(self) -> str | None:
        """The first worker that is at it for too long."""
        late = self._clock() - self._limit
        return next((f"a worker hangs in {what}" for since, what in self._since.values() if since < late), None)


@asynccontextmanager
async def serving(health: Health, metrics: Metrics, host: str, port: int) -> AsyncIterator[int]:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics``; gives the port."""
    application = web.Application()
    application.router.add_get("/healthz", _answering(health.dead))
    application.router.add_get("/readyz", _answering(health.unready))
    application.router.add_get("/metrics", _metrics(metrics))
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = int(runner.addresses[0][1])
        _log.info("listening", extra={"fields": {"port": bound}})
        yield bound
    finally:
        await runner.cleanup()


def _answering(problems: Callable[[], Sequence[str]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_request: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="\n".join(found or ["ok"]) + "\n", status=503 if found else 200)

    return answer


def _metrics(metrics: Metrics) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return answer


def _found(checks: Sequence[Check]) -> Sequence[str]:
    return [problem for problem in (check() for check in checks) if problem]


_log = logging.getLogger(__name__)


class Announcer:
    """Logs, and records Events of the operator's own pod, which exists whatever else is deleted."""

    def __init__(self, settings: Settings, events: EventRecorder) -> None:
        self._events = events
        self._pod = Object(
            metadata=Identity(name=settings.pod_name, namespace=settings.namespace, uid=settings.pod_uid)
        )

    def announce(self, kind: EventType, reason: str, message: str, **about: str) -> None:
        """Log the message and record an Event; a repetition soon after becomes a count on the same Event."""
        level = logging.WARNING if kind == "Warning" else logging.INFO
        _log.log(level, "%s", message, extra=fields(reason=reason, **about))
        self._events.record(PODS, self._pod, type=kind, reason=reason, message=message)
