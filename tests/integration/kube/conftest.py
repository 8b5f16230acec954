"""Fixtures with clients of a real API server, and of a server that fails as the test requires."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web

from dgym.kube import Client, ClusterAccess, Credentials, Resource, SystemClock, load_access
from tests.fakes.kube_clocks import HastyClock
from tests.support.apiserver import ApiServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Meta
    data: dict[str, str] = {}


@pytest.fixture
def thing() -> type[Thing]:
    return Thing


@pytest.fixture
def requests() -> list[tuple[str, str, int]]:
    """Verb, plural and status of every request that the client sent."""
    return []


@pytest.fixture
async def client(api_server: ApiServer, requests: list[tuple[str, str, int]]) -> AsyncIterator[Client]:
    """A client of the real API server."""

    def observe(verb: str, resource: Resource, status: int, seconds: float) -> None:
        assert seconds >= 0
        requests.append((verb, resource.plural, status))

    access = await load_access(api_server.kubeconfig)
    async with Client(access, clock=SystemClock(), random=Random(1), observe=observe, qps=500, burst=500) as made:
        yield made


@pytest.fixture
async def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """A function that waits for a condition, with a long deadline."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(90):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


class BadServer:
    """A server whose responses to lists, watches and other requests are set by the test. The last response repeats."""

    def __init__(self) -> None:
        self.url = ""
        self.lists: list[Handler] = []
        self.watches: list[Handler] = []
        self.others: list[Handler] = []
        self.counts: Counter[str] = Counter()
        self.queries: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = "others"
        if request.method == "GET" and "limit" in request.query:
            kind = "lists"
        elif "watch" in request.query:
            kind = "watches"
        self.counts[kind] += 1
        self.queries.append(dict(request.query))
        self.headers.append(dict(request.headers))
        handlers: list[Handler] = getattr(self, kind)
        handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        return await handler(request)

    # Answers

    @staticmethod
    def status(code: int, reason: str = "", *, retry_after: int | None = None) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
            body = {"kind": "Status", "code": code, "reason": reason, "message": f"status {code}"}
            return web.json_response(body, status=code, headers=headers)

        return handle

    @staticmethod
    def page(*names: str, version: int = 10) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return web.json_response(
                {"metadata": {"resourceVersion": str(version)}, "items": [item(name, version) for name in names]}
            )

        return handle

    @staticmethod
    def stream(*chunks: bytes, end: str = "close") -> Handler:
        """Send the chunks, then ``close`` the stream properly, ``reset`` the connection or ``hang``."""

        async def handle(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            if end == "hang":
                await asyncio.sleep(3600)
            if end == "reset" and request.transport is not None:
                request.transport.abort()
            return response

        return handle

    @staticmethod
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    @staticmethod
    async def reset(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    @staticmethod
    async def garbage(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>hello", content_type="text/html")

    @staticmethod
    def event(kind: str, name: str, version: int) -> bytes:
        return msgspec.json.encode({"type": kind, "object": item(name, version)}) + b"\n"


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}}


@pytest.fixture
async def bad_server() -> AsyncIterator[BadServer]:
    server = BadServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
async def bad_client(bad_server: BadServer, clock: HastyClock) -> AsyncIterator[Client]:
    """A client of the bad server. Its pauses between tries take no time."""
    access = ClusterAccess(server=bad_server.url, credentials=Credentials("Bearer x"))
    async with Client(access, clock=clock, random=Random(1)) as made:
        yield made


@pytest.fixture
async def impatient_client(bad_server: BadServer, clock: HastyClock) -> AsyncIterator[Client]:
    """A client with a short timeout, for servers that never answer."""
    access = ClusterAccess(server=bad_server.url, credentials=Credentials("Bearer x"))
    async with Client(access, clock=clock, random=Random(1), timeout=0.5) as made:
        yield made
