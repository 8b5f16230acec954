"""The binding of a pooled sidecar to an attempt, by one call of the operator.

Before the call only the operator has a token for the sidecar. The call is answered once the attempt's calls are
served: an agent or driver that gets its token after the answer is not refused. A replay of the call is refused by its
nonce.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from dgym.sidecar.access import Access, CallError
from dgym.sidecar.answers import Guard, WebHandler, add_probes, read_body, refuse
from dgym.sidecar.settings import PooledSettings, Settings
from dgym.wire import calls
from dgym.wire.http import Accepted, BindRequest, ErrorCode, Role

_log = logging.getLogger(__name__)


class Binding:
    """Serves the call that binds the sidecar, before and after it.

    Args:
        settings: Those of the pooled sidecar.
        over: Why it cannot be bound any more; None: it can.
    """

    def __init__(self, settings: PooledSettings, *, over: str | None) -> None:
        self._settings = settings
        self._over = over
        self._request: BindRequest | None = None
        self._requested = asyncio.Event()
        self._served = asyncio.Event()
        guard = Guard(Access({Role.OPERATE: settings.bind_sha256}))
        self.handler: WebHandler = guard.handler(calls.BIND.roles, self._bind)

    def application(self, problem: Callable[[], str | None]) -> web.Application:
        """The application of a sidecar that is not bound; it is ready while ``problem()`` is None."""
        application = web.Application(middlewares=[_close_connection])
        application.router.add_route(calls.BIND.method, calls.BIND.path, self.handler)
        add_probes(application.router, problem)
        message = "the sidecar is not bound to an attempt yet: there are no tokens for this call"
        application.router.add_route("*", "/{path:.*}", refuse(ErrorCode.UNAUTHENTICATED, message))
        return application

    async def settings(self) -> Settings:
        """Wait until the sidecar is bound; returns the settings of its attempt."""
        await self._requested.wait()
        assert self._request is not None
        return self._settings.bound(self._request)

    def confirm(self) -> None:
        """Answer the call: the attempt is served."""
        self._served.set()

    async def _bind(self, request: web.Request) -> Accepted:
        wanted = await read_body(request, calls.BIND)
        if self._over is not None:
            raise CallError(ErrorCode.ATTEMPT_OVER, self._over)
        if self._request is None:
            self._check(wanted)
            self._request = wanted
            self._requested.set()
        elif wanted != self._request:
            raise CallError(ErrorCode.CONFLICT, "the sidecar is bound to another attempt, or with other tokens")
        await self._served.wait()
        return Accepted()

    def _check(self, wanted: BindRequest) -> None:
        """Refuse a token of the attempt that could repeat this call."""
        digests = {
            "prepareSha256": wanted.prepare_sha256,
            "driveSha256": wanted.drive_sha256,
            "operateSha256": wanted.operate_sha256,
        }
        for name, digest in digests.items():
            if digest == self._settings.bind_sha256:
                message = f"{name} is the digest of the token that binds; give each role of the attempt its own token"
                raise CallError(ErrorCode.INVALID_ARGUMENT, message)


@web.middleware
async def _close_connection(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """One request a connection: the next one may be for the application of the attempt."""
    response = await handler(request)
    response.force_close()
    return response
