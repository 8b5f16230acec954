"""A server of results, and a client with the token of the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import CookieJar
from aiohttp.test_utils import TestClient, TestServer

from dgym.results import open_library
from dgym.ui._server import PageAccess, make_app


@asynccontextmanager
async def served(results: Path, *, login: bool = True) -> AsyncIterator[TestClient]:
    access = PageAccess()
    server = TestServer(make_app(open_library(str(results)), access))
    async with TestClient(server, cookie_jar=CookieJar(unsafe=True)) as client:
        client.access = access
        if login:
            await client.get("/", params={"token": access.token})
        yield client
