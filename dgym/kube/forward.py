"""Connections to a port of a pod, through the API server.

Each connection made to a Unix socket, in a directory that only this user may enter, becomes a WebSocket to the pod's
``portforward``. Its messages begin with the number of a channel, 0 for data and 1 for errors; the first message of
each channel holds the port.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from dgym.kube.client import Client
from dgym.kube.errors import ApiError, ConnectionLost, PortUnreachable
from dgym.kube.resources import PODS
from dgym.kube.transport import Socket

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 64 * 1024


class PortForward:
    """A port of a pod behind a Unix socket; ``problem`` is the error of the last connection that failed."""

    def __init__(self, client: Client, namespace: str, pod: str, port: int) -> None:
        self._client = client
        self._namespace = namespace
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.pod = pod
        self.problem: ApiError | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Path]:
        """The path of the socket, which exists as long as the context lasts."""
        with tempfile.TemporaryDirectory(prefix="dgym-forward-") as directory:
            path = Path(directory) / "socket"
            server = await asyncio.start_unix_server(self._accept, path)
            try:
                yield path
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = self._client.websocket(
            PODS, self.pod, "portforward", namespace=self._namespace, protocol=_PROTOCOL, ports=str(self._port)
        )
        try:
            async with opening as socket:
                sending = asyncio.create_task(_send(reader, socket))
                try:
                    await self._receive(socket, writer)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except ApiError as error:
            self.problem = error
        finally:
            writer.close()

    async def _receive(self, socket: Socket, writer: asyncio.StreamWriter) -> None:
        begun: set[int] = set()
        async for message in socket.messages():
            if not message:
                continue
            channel, data = message[0], message[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel == _ERROR and data:
                text = data.decode(errors="replace").strip()
                raise PortUnreachable(f"port {self._port} of pod {self.pod} cannot be reached: {text}")
            if channel == _DATA and data:
                writer.write(data)
                await writer.drain()


async def _send(reader: asyncio.StreamReader, socket: Socket) -> None:
    with contextlib.suppress(ConnectionError, ConnectionLost):
        while data := await reader.read(_CHUNK):
            await socket.send(bytes([_DATA]) + data)
