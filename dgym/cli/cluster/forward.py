"""Connections to a port of a pod, through the API server.

Each connection made to a socket in a directory of ours, which nobody else may enter, becomes a WebSocket to the pod's
``portforward``. Its messages begin with the number of a channel, 0 for data and 1 for errors; the first message of
each channel holds the port.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from dgym.cli.cluster.connection import Cluster
from dgym.cli.cluster.errors import ClusterError

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 64 * 1024


class Forward:
    """A port of a pod behind a Unix socket; ``problem`` is why the last connection failed."""

    def __init__(self, cluster: Cluster, namespace: str, pod: str, port: int) -> None:
        self._cluster = cluster
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.pod = pod
        self.problem: ClusterError | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Path]:
        """The socket, as long as the context lasts."""
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
        try:
            await self._forward(reader, writer)
        except ClusterError as error:
            self.problem = error
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._cluster.websocket(self._path, _PROTOCOL, ports=str(self._port)) as socket:
            sending = asyncio.create_task(_send(reader, socket))
            try:
                await self._receive(socket, writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        begun: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel == _ERROR and data:
                text = data.decode(errors="replace").strip()
                raise ClusterError(f"port {self._port} of pod {self.pod} cannot be reached: {text}")
            if channel == _DATA and data:
                writer.write(data)
                await writer.drain()


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(bytes([_DATA]) + data)
