"""The sidecar's one port."""

import asyncio
import logging

from aiohttp import web

from dgym.sidecar.access import Connections
from dgym.sidecar.settings import ProcessSettings

_log = logging.getLogger(__name__)
_GRACE_SECONDS = 1.0
_IDLE_SECONDS = 75.0


class Port:
    """Listens from the first application on until it is closed, whichever application serves it.

    In between no program of the pod can take the port. A connection belongs to the application that serves when its
    first headers are whole.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._runners: list[web.AppRunner] = []
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    async def serve(self, application: web.Application) -> None:
        """Serve ``application`` from now on, in place of the former one; the first time, begin to listen."""
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_GRACE_SECONDS,
        )
        self._runners.append(runner)
        await runner.setup()
        assert runner.server is not None
        if self._connections is not None:
            self._connections.server = runner.server
            return
        self._connections = Connections(runner.server, allow_local=self._settings.allow_local_connections)
        await self._listen(self._connections)

    async def _listen(self, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connections, self._settings.host, self._settings.port)
        # Port 0 takes a free one, whose number the log has.
        addresses = [list(each.getsockname()[:2]) for each in self._server.sockets]
        _log.info("listening", extra={"fields": {"addresses": addresses}})

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open are served on. Idempotent."""
        if self._server is None or self._connections is None:
            return
        self._server.close()
        self._server = None
        _log.info("refused connections", extra={"fields": {"refused": self._connections.refused}})

    async def close(self) -> None:
        """End all connections; requests in flight have a moment to be answered."""
        self.stop_listening()
        for runner in self._runners:
            await runner.cleanup()
