"""Tests of limits that all processes of a user share, because ``dgym run`` uses several worker processes."""

import asyncio
import os
import subprocess
import sys

import pytest

from dgym.llm import load_models
from dgym.llm._remote import limits_of
from tests.fakes.openai_server import Answer, FakeOpenAI

CODE = """
import asyncio, sys
from dgym.llm import Message, load_models

async def main():
    path, name, session, seconds = sys.argv[1:]
    model = load_models(path).open(name)
    try:
        for number in range(4):
            async with asyncio.timeout(float(seconds)):
                await model.complete([Message(role="user", content=f"{number}")], [], session=session)
        print("done")
    except TimeoutError:
        print("held")
    finally:
        await model.close()

asyncio.run(main())
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that sends four requests to a model of ``llm.yaml``."""
    started = []

    def start(name, session="e", seconds=100):
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(tmp_path / "llm.yaml"), name, session, str(seconds)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_requests_at_once_are_limited_across_processes(tmp_path, start):
    server = FakeOpenAI(script=[Answer(text="ok")], latency=0.05)
    with server.in_thread():
        (tmp_path / "llm.yaml").write_text(f"m: {{model: m, endpoint: '{server.url}', max_concurrency: 1}}\n")
        processes = [start("m", session) for session in ("e1", "e2")]
        assert [process.communicate(timeout=100)[0] for process in processes] == ["done\n", "done\n"]
    assert len(server.received) == 8
    assert server.most_at_once == 1


async def test_processes_share_the_token_limit(tmp_path, start):
    server = FakeOpenAI(script=[Answer(text="ok")])
    with server.in_thread():
        setting = f"endpoint: '{server.url}', tokens_per_minute: 1000"
        (tmp_path / "llm.yaml").write_text(f"one: {{model: one, {setting}}}\ntwo: {{model: two, {setting}00}}\n")
        limits = limits_of(load_models(tmp_path / "llm.yaml").settings("one"))
        await limits.admit(10**6)
        waiting = [start("one", seconds=1), start("two")]
        outputs = [await asyncio.to_thread(process.communicate, timeout=100) for process in waiting]
    assert [output for output, _ in outputs] == ["held\n", "done\n"]
    assert {received.body["model"] for received in server.received} == {"two"}
