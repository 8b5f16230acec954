"""Tests of each agent that asks a model, through a real LiteLLM proxy in front of the scripted server."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI, Received
from tests.integration.agents.conftest import as_sent, play  # noqa: F401 - a fixture
from tests.integration.agents.test_sent_requests import ODD

PROGRAM = Path(os.environ.get("LITELLM", ".venv-litellm/bin/litellm")).absolute()
KEY = f"sk-{'0123456789abcdef' * 3}"
DEADLINE_SECONDS = 240.0
SCRIPT = [
    Answer(calls=(Call("pdb", {"command": "b calc.py:3"}), Call("pdb", {"command": "c"}))),
    Answer(calls=(Call("eval", {}),)),
    *ODD,
]


class Proxied:
    """The scripted server of an episode: the address of the proxy, and the requests of this episode only."""

    def __init__(self, server: FakeOpenAI, url: str) -> None:
        self.url = url
        self._server = server
        self._before = len(server.received)

    @property
    def received(self) -> list[Received]:
        received = self._server.received[self._before :]
        for each in received:
            each.body["messages"] = [_with_content(message) for message in each.body["messages"]]
        return received

    async def __aenter__(self) -> "Proxied":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    """Restore the null content of a message that has only calls. LiteLLM removes it and changes nothing else."""
    return message if "content" in message else {"role": message.pop("role"), "content": None, **message}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory) -> Iterator[tuple[FakeOpenAI, str]]:
    """The scripted server, and the address of the proxy in front of it."""
    folder = tmp_path_factory.mktemp("litellm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with FakeOpenAI(script=SCRIPT).in_thread() as server:
        model = {"model": "openai/scripted", "api_base": server.url, "api_key": "k"}
        config = {
            "model_list": [{"model_name": "scripted", "litellm_params": model}],
            "general_settings": {"master_key": KEY, "forward_client_headers_to_llm_api": True},
            "litellm_settings": {"num_retries": 0},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        # The proxy's own requests to the Internet (prices, telemetry) go to a closed port of this machine.
        nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "NO_PROXY": "127.0.0.1"}
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **offline, **nowhere}
        command = [PROGRAM, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "log")
            yield server, f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.2)
    pytest.fail(f"LiteLLM does not answer:\n{log.read_text()[-4000:]}")


@pytest.mark.parametrize("tool_calling", ["native", "text"])
@pytest.mark.parametrize("agent", ["debug_agent", "rewrite_agent", "debug_5_agent", "bash_agent"])
async def test_an_agent_repairs_through_the_proxy(play, proxy, tmp_path, agent, tool_calling):  # noqa: F811
    server, url = proxy
    settings: dict[str, Any] = {"endpoint": url, "api_key": KEY, "tool_calling": tool_calling}
    name = f"{agent}-{tool_calling}".replace("_", "-")
    played = await play(Proxied(server, url), agent, settings=settings, seed=3, temperature="0.5", name=name)
    assert played.result.resolved, played.result.message
    assert len({received.session for received in played.server.received}) == 1
    received = [json.dumps(body["messages"]) for body in played.requests]
    assert as_sent(played.exchanges, tmp_path / f"{name}.json") == received
    assert all(later.startswith(earlier[:-1]) for earlier, later in itertools.pairwise(received))
    assert [body.get("tools") for body in played.requests] == [played.requests[0].get("tools")] * len(received)
    assert ("tools" in played.requests[0]) == (tool_calling == "native")
    assert "What?" in json.dumps(played.requests[-1]["messages"])
    usage = [exchange.usage for exchange in played.exchanges]
    assert all(each.exact and each.input_tokens for each in usage)
    assert any(each.cached_tokens for each in usage)
