"""Tests of Azure's addresses and logins, with servers that answer as Azure does."""

import asyncio
import contextlib
import time

import pytest
from aiohttp import web

from dgym.errors import ModelError
from dgym.llm import Message
from dgym.llm._openai_client import token_source
from tests.fakes.openai_server import Answer, FakeOpenAI

SCOPE = "https://cognitiveservices.azure.com/.default"
TASK = Message(role="user", content="x")


@pytest.fixture
async def azure(opened):
    """A model on Azure: ``server, model = await azure(api_key=…)``."""
    async with contextlib.AsyncExitStack() as stack:

        async def azure(*, server=None, **fields):
            server = server or FakeOpenAI(script=[Answer(text="hello")])
            await stack.enter_async_context(server)
            endpoint = server.url.removesuffix("/v1")
            _, model, _ = await opened(
                server=server, endpoint=endpoint, model="my-deployment", **{"api_version": "2024-10-21", **fields}
            )
            return server, model

        yield azure


@pytest.fixture
async def identity(monkeypatch):
    """A managed identity: the tokens that its server has issued, and the lifetimes of the next tokens."""
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    given = []
    lifetimes = [3600]

    async def token(request):
        if request.headers.get("X-IDENTITY-HEADER") != "proof":
            return web.Response(status=401)
        given.append((request.query["resource"], f"token-{len(given) + 1}-abcdef"))
        lifetime = lifetimes.pop(0) if len(lifetimes) > 1 else lifetimes[0]
        expires = str(int(time.time()) + lifetime)
        return web.json_response(
            {"access_token": given[-1][1], "expires_on": expires, "resource": given[-1][0], "token_type": "Bearer"}
        )

    app = web.Application()
    app.router.add_get("/token", token)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "proof")
    yield given, lifetimes
    await runner.cleanup()


async def test_with_a_key(azure):
    server, model = await azure()
    assert (await model.complete([TASK], [], session="e")).text == "hello"
    (received,) = server.received
    assert received.path == "/openai/deployments/my-deployment/chat/completions"
    assert received.query == {"api-version": "2024-10-21"}
    assert received.headers["api-key"] == "sk-proj-0123456789abcdef"


async def test_with_a_managed_identity(azure, identity):
    given, _ = identity
    server, model = await azure(api_key=None, scope=SCOPE, get_token=token_source(SCOPE))
    await asyncio.gather(*(model.complete([TASK], [], session=f"e{number}") for number in range(5)))
    assert given == [("https://cognitiveservices.azure.com", "token-1-abcdef")], "one token serves all episodes"
    assert {one.headers["authorization"] for one in server.received} == {"Bearer token-1-abcdef"}
    assert "api-key" not in server.received[0].headers


async def test_a_token_that_ends_soon_is_renewed(azure, identity):
    given, lifetimes = identity
    lifetimes[:] = [200, 3600]
    server, model = await azure(api_key=None, scope=SCOPE, get_token=token_source(SCOPE))
    for _ in range(3):
        await model.complete([TASK], [], session="e")
    assert [token for _, token in given] == ["token-1-abcdef", "token-2-abcdef"]
    assert server.received[-1].headers["authorization"] == "Bearer token-2-abcdef"


async def test_tokens_are_for_other_servers_too(opened, identity):
    server = FakeOpenAI(script=[Answer(text="hello")])
    _, model, _ = await opened(server=server, api_key=None, scope=SCOPE, get_token=token_source(SCOPE))
    await model.complete([TASK], [], session="e")
    assert server.received[0].path == "/v1/chat/completions"
    assert server.received[0].headers["authorization"] == "Bearer token-1-abcdef"


async def test_a_missing_login_is_reported_with_a_remedy(azure, identity, monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "wrong")
    monkeypatch.setenv("PATH", "")
    server, model = await azure(api_key=None, scope=SCOPE, get_token=token_source(SCOPE))
    with pytest.raises(ModelError, match=r"not authorized after 2 tries: no Azure login: .*az login"):
        await model.complete([TASK], [], session="e")
    assert server.received == []


async def test_a_refused_token_is_tried_once_more(azure, identity):
    server = FakeOpenAI(script=[Answer(text="hello")], faults=["unauthorized"])
    server, model = await azure(server=server, api_key=None, scope=SCOPE, get_token=token_source(SCOPE))
    assert (await model.complete([TASK], [], session="e")).tries == 2
