"""Tests of attacks on the sidecar's port: many connections, unfinished headers, connections from the pod itself."""

import asyncio
import json
from pathlib import Path

import pytest

from dgym.sidecar._serving import HEADER_LIMIT, MAXIMUM_PER_PEER, Connections, is_local

MEMORY_KIB = 64 * 1024
"""Half of the container's memory limit."""
ATTACKERS = 1_800


@pytest.fixture
def serve():
    """``await serve(allow_local)``: start an echo server, and return its port and its connections."""
    servers = []

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def start(allow_local=True):
        accepted = Connections(Echo, allow_local=allow_local)
        server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
        servers.append(server)
        return server.sockets[0].getsockname()[1], accepted

    yield start
    for server in servers:
        server.close()


def peak_kib(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def is_closed(reader):
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def flood(host, port):
    """Open connections with unfinished headers. Return their writers, and tasks that end when each is closed."""
    writers, closed = [], []
    for _ in range(ATTACKERS):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /v1/finish HTTP/1.1\r\nX: " + b"x" * 8_000)
        writers.append(writer)
        closed.append(asyncio.ensure_future(is_closed(reader)))
    return writers, closed


@pytest.mark.attack("flood")
@pytest.mark.parametrize("allow_local", [False, True])
async def test_thousands_of_unfinished_headers_do_not_use_much_memory(new_pod, allow_local):
    pod = new_pod(allow_local_connections=allow_local)
    process = pod.start_process(fresh=True)
    host, port = await pod.listening()
    writers, closed = await flood(host, port)
    refused = ATTACKERS - (MAXIMUM_PER_PEER if allow_local else 0)
    async with asyncio.timeout(90):
        while sum(each.done() for each in closed) < refused:
            await asyncio.sleep(0.01)
    assert process.poll() is None
    assert peak_kib(process) < MEMORY_KIB
    for writer in writers:
        writer.close()
    await asyncio.gather(*closed, *(writer.wait_closed() for writer in writers), return_exceptions=True)
    if allow_local:
        async with asyncio.timeout(90):
            while True:
                try:
                    assert (await pod.raw("GET", "/healthz"))[0] == 200
                    break
                except OSError:
                    await asyncio.sleep(0.01)
    messages = [json.loads(line)["message"] for line in (pod.directory / "sidecar.log").read_text().splitlines()]
    # Each cause is logged once: too many connections, and on a slow machine also headers that took too long.
    refusals = [message for message in messages if "refused" in message]
    assert 1 <= len(refusals) == len(set(refusals)) <= 2, refusals


@pytest.mark.attack("flood")
async def test_the_pod_itself_is_refused_before_a_byte_is_read(serve):
    port, accepted = await serve(allow_local=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await is_closed(reader)
    writer.close()
    assert accepted.refused.total() == 1


@pytest.mark.attack("flood")
async def test_headers_are_bounded_in_length_and_time(serve, monkeypatch):
    port, accepted = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * (HEADER_LIMIT + 1))
    assert await is_closed(reader)
    writer.close()
    monkeypatch.setattr("dgym.sidecar._serving.HEADER_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await is_closed(reader)
    writer.close()
    assert set(accepted.refused) == {"its headers are too long", "its headers took too long"}


async def test_headers_in_pieces_arrive_whole_and_free_their_place(serve, monkeypatch):
    monkeypatch.setattr("dgym.sidecar._serving.MAXIMUM_PER_PEER", 1)
    port, _ = await serve()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (b"GET / HTTP/1.1\r", b"\n\r", b"\nbody"):
            writer.write(piece)
            await writer.drain()
        assert await reader.readexactly(22) == b"GET / HTTP/1.1\r\n\r\nbody"
        writer.write(b"more")
        assert await reader.readexactly(4) == b"more"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", True),
     ("", True), ("192.0.2.7", False), ("2001:db8::7", False)],
)  # fmt: skip
def test_addresses_of_this_host(address, local):
    assert is_local(address) is local
