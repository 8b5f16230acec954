import contextlib

import pytest

from dgym.llm._config import parse_settings
from dgym.llm._faults import Retrying
from dgym.llm._openai_client import OpenAIConnection
from dgym.llm._remote import RemoteModel, treatments_of
from tests.fakes.openai_server import FakeOpenAI

DEADLINE_SECONDS = 90
KEY = "sk-proj-0123456789abcdef"


@pytest.fixture(autouse=True)
def _own_limits(tmp_path, monkeypatch):
    """Processes of a user share limits. Limits of other tests must not count."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
async def opened():
    """``server, model, waits = await opened(server=…, setting=…)``. Waits are recorded and take no time."""
    async with contextlib.AsyncExitStack() as stack:

        async def opened(*, server=None, get_token=None, noticed_seconds=15.0, **fields):
            server = server or FakeOpenAI()
            if not server.url:
                await stack.enter_async_context(server)
            given = {"model": "m", "endpoint": server.url, "api_key": KEY, **fields}
            settings = parse_settings({name: value for name, value in given.items() if value is not None}, {})
            waits = []

            async def note(seconds):
                waits.append(seconds)

            retrying = Retrying(max_tries=settings.max_tries, treatments=treatments_of(settings), sleep=note)
            model = RemoteModel(
                "mine",
                settings,
                lambda url: OpenAIConnection(settings, url, get_token),
                retrying=retrying,
                noticed_seconds=noticed_seconds,
            )
            stack.push_async_callback(model.close)
            return server, model, waits

        yield opened
