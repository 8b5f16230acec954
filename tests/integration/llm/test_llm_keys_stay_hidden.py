"""Tests that errors and debug logs do not contain keys."""

import logging
import traceback

import pytest

from dgym.errors import ModelError
from dgym.llm import Message
from tests.fakes.openai_faults import KINDS
from tests.fakes.openai_server import FakeOpenAI

SECRETS = ("sk-proj-0123456789abcdef", "header-value-0123", "user-part-0123")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"hang"}))
@pytest.mark.parametrize("azure", [False, True])
async def test_no_fault_shows_a_key(opened, caplog, kind, azure):
    caplog.set_level(logging.DEBUG)
    server = FakeOpenAI(faults=[kind] * 100)
    await server.start()
    place = {"api_version": "2024-10-21", "endpoint": server.url.removesuffix("/v1")} if azure else {}
    _, model, _ = await opened(
        server=server, headers={"X-Own-Key": SECRETS[1]}, generate_kwargs={"user": "somebody"}, **place
    )
    texts = [repr(model.settings), repr(vars(model))]
    try:
        texts.append(repr(await model.complete([Message(role="user", content="x")], [], session="e")))
    except ModelError as error:
        texts += [str(error), repr(error), *traceback.format_exception(error), repr(vars(error))]
    finally:
        await model.close()
        await server.stop()
    texts += [record.getMessage() + repr(record.args) + str(record.exc_text) for record in caplog.records]
    assert server.received[0].headers["x-own-key"] == SECRETS[1]
    for secret in SECRETS:
        assert not any(secret in text for text in texts)


async def test_a_redirect_is_reported_and_not_followed(opened):
    from aiohttp import web

    async def redirect(request):
        raise web.HTTPTemporaryRedirect(f"{elsewhere.url}/chat/completions")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", redirect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with FakeOpenAI() as elsewhere:
        _, model, _ = await opened(endpoint=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", model="debugger")
        with pytest.raises(ModelError, match="307 the endpoint redirects to http://127"):
            await model.complete([Message(role="user", content="x")], [], session="e")
        assert elsewhere.received == []
    await runner.cleanup()
