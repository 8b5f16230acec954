"""Fixtures: real programs under the real runner and debugger.

``make test`` uses the newest Python, ``make test-all`` also the oldest, and the matrix all Pythons.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dgym.sandbox import DebugRequest, RunnerClient, SandboxSpec
from tests.support.interpreters import interpreters, parametrize

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgym" / "test-pytests"


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "python")


class Debugging:
    """A debugging session as the tools use it: each command sends the breakpoints and returns the new breakpoints."""

    def __init__(self, client, workspace, entrypoint):
        self.client = client
        self.workspace = Path(workspace)
        self.entrypoint = entrypoint
        self.breakpoints = ()

    def write(self, path, text):
        target = self.workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))

    async def __call__(self, command, *, timeout=60.0, **fields):
        request = DebugRequest(
            command=command,
            entrypoint=fields.pop("entrypoint", self.entrypoint),
            breakpoints=fields.pop("breakpoints", self.breakpoints),
            timeout_seconds=timeout,
            **fields,
        )
        result = await self.client.debug(request)
        self.breakpoints = result.breakpoints
        return result

    async def each(self, *commands):
        """Execute the commands and return the result of the last."""
        for command in commands:
            result = await self(command)
        return result


@pytest.fixture
async def start_session(tmp_path, warm_runners):
    """``await start_session(python, entrypoint)``: a session in an empty workspace, under that interpreter."""
    running = []

    async def start(python, entrypoint="python main.py", environment=None):
        ours, theirs = socket.socketpair()
        interpreter = python if Path(python).is_file() else str(Path(python) / "bin" / "python")
        workspace = tmp_path / "workspace"
        workspace.mkdir(exist_ok=True)
        runners = warm_runners(interpreter)
        with theirs:
            pid = runners.fork(theirs.fileno(), {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)})
        client = RunnerClient(*await asyncio.open_connection(sock=ours))
        running.append((client, runners, pid))
        spec = SandboxSpec(workspace=str(workspace), python=python, environment=environment or {})
        await client.configure(spec)
        return Debugging(client, workspace, entrypoint)

    yield start
    for client, runners, pid in running:
        await client.close()
        assert (await asyncio.to_thread(runners.waitpid, pid))[1] == 0


@pytest.fixture
async def debug(start_session, python):
    """A session with the entrypoint ``python main.py``."""
    return await start_session(python)


@pytest.fixture
def newest():
    """The newest interpreter, for tests that do not depend on the version."""
    return list(interpreters().values())[-1]


@pytest.fixture
def venv_here():
    """The virtual environment that runs these tests: it has pytest and pytest-cov."""
    return sys.prefix


@pytest.fixture(scope="session")
def venv_with():
    """``venv_with(python, *requirements)``: a cached virtual environment. Skips the test if pip cannot create it."""

    def make(python, *requirements):
        name = "-".join([Path(python).parent.parent.name, *requirements]).replace("==", "-").replace("*", "x")
        place = CACHE / name
        if not (place / "ready").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([python, "-m", "venv", str(place)], check=True, capture_output=True)
            command = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", *requirements]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"pip could not install {requirements}: {done.stderr[-300:]}")
            (place / "ready").touch()
        return str(place)

    return make
