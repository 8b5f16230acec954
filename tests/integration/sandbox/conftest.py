"""Fixtures: real sandboxes of both kinds, stopped after each test, and a search for processes of the machine."""

import asyncio
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider, bubblewrap_problem
from tests.support.required import absent

DEADLINE = 90.0

DAEMON = textwrap.dedent(
    """
    import os, signal, sys, time
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # What is left in the command's process group is killed at the command's end: it waits for the daemon to leave.
    reading, writing = os.pipe()
    if os.fork():
        os.read(reading, 1)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writing, b".")
    os.chdir("/")
    os.closerange(0, 1024)
    while True:
        time.sleep(1000)
    """
)


def need(kind):
    """Require that the sandbox kind works. Without bubblewrap, the test fails in CI and is skipped on a laptop."""
    problem = bubblewrap_problem() if kind == "bubblewrap" else None
    if problem is None:
        return
    absent("bubblewrap", f"bubblewrap does not work here: {problem}")


@pytest.fixture(params=["bubblewrap", pytest.param("none", marks=pytest.mark.thorough)])
def kind(request):
    need(request.param)
    return request.param


@pytest.fixture
def isolated():
    need("bubblewrap")
    return "bubblewrap"


@pytest.fixture
async def open_sandbox():
    opened = []

    async def open_one(kind, **fields):
        fields.setdefault("python", sys.executable)
        sandbox = await LocalProvider(SandboxSpec(**fields), kind=kind).sandbox()
        opened.append(sandbox)
        return sandbox

    yield open_one
    for sandbox in opened:
        await sandbox.stop()


@pytest.fixture
async def sandbox(open_sandbox, kind):
    return await open_sandbox(kind)


class Machine:
    """The processes of this machine whose command line contains a unique mark."""

    daemon = DAEMON

    def __init__(self):
        self.mark = f"mark-{uuid.uuid4().hex}"

    def marked(self):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    async def until(self, condition):
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            await asyncio.sleep(0.01)

    def command(self, script=DAEMON):
        return ["python", "-c", script, self.mark]


@pytest.fixture
def machine():
    return Machine()
