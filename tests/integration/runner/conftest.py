"""Real runners under real Pythons, each with an empty environment and a workspace of its own."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

import dgym.runner
from dgym.sandbox import Limits, RunnerClient, RunnerInfo, SandboxSpec

T = TypeVar("T")
MAIN = Path(dgym.runner.__file__).with_name("__main__.py")
NO_LIMITS = Limits(memory_bytes=None, processes=None, cpu_seconds=None, file_size_bytes=None)


def pyenv_interpreters() -> list[tuple[str, str]]:
    """(short name, path) of every Python of pyenv the runner claims, oldest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = {}
    for path in root.glob("versions/*/bin/python"):
        match = re.match(r"3\.(\d+)\.\d+$", path.parent.parent.name)
        if match and int(match[1]) >= 6:
            found[int(match[1])] = str(path)
    return [(f"py3{minor}", found[minor]) for minor in sorted(found)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The newest always; the oldest is marked ``thorough``, those between ``matrix``."""
    if "interpreter" not in metafunc.fixturenames:
        return
    found = pyenv_interpreters() or [("this", sys.executable)]
    marks = {found[0]: pytest.mark.thorough, found[-1]: ()}
    parameters = [
        pytest.param(path, id=name, marks=marks.get((name, path), pytest.mark.matrix)) for name, path in found
    ]
    metafunc.parametrize("interpreter", parameters, scope="session")


class RunningRunner:
    """A runner's process and its client."""

    def __init__(self, process: subprocess.Popen[bytes], client: RunnerClient) -> None:
        self.process = process
        self.client = client
        self.info: RunnerInfo | None = None

    async def exit_status(self, seconds: float = 90) -> int:
        """How the process ended, waiting for it."""
        return await asyncio.to_thread(self.process.wait, seconds)

    def resident_kib(self) -> int:
        """The runner's resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")


def alive_with(text: str) -> list[int]:
    """Processes, zombies aside, whose command line holds ``text``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if text in command and state not in "ZX" and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
    return found


async def eventually(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def until(ask: Callable[[], Awaitable[T]], accept: Callable[[T], object], seconds: float = 90) -> T:
    """Ask until the answer is accepted."""
    deadline = time.monotonic() + seconds
    while not accept(answer := await ask()):
        assert time.monotonic() < deadline, f"the answer is still {answer!r}"
        await asyncio.sleep(0.01)
    return answer


Start = Callable[..., Awaitable[RunningRunner]]


@pytest.fixture
def run_plain() -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], socket.socket]]]:
    """Start a runner, below another program if need be, and get its process and the raw socket to it."""
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(interpreter: str, below: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        argv = [*below, "env", "-i", interpreter, "-I", "-S", "-B", str(MAIN), "--fd", str(theirs.fileno())]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
        theirs.close()
        started.append((process, ours))
        return process, ours

    yield start
    for process, ours in started:
        ours.close()
        try:
            process.wait(90)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def start_runner(run_plain, tmp_path: Path) -> AsyncIterator[Start]:
    """Start a runner and configure it; every one is told to exit at the end, and does."""
    running: list[RunningRunner] = []

    async def start(
        interpreter: str, *, below: Sequence[str] = (), configure: bool = True, **spec: object
    ) -> RunningRunner:
        process, ours = run_plain(interpreter, below)
        reader, writer = await asyncio.open_connection(sock=ours)
        runner = RunningRunner(process, RunnerClient(reader, writer))
        running.append(runner)
        if configure:
            fields = {"workspace": str(tmp_path / "workspace"), "limits": NO_LIMITS, **spec}
            runner.info = await runner.client.configure(SandboxSpec(**fields))
        return runner

    yield start
    for runner in running:
        await runner.client.close()
        await runner.exit_status()


@pytest.fixture
async def runner(start_runner: Start, interpreter: str) -> RunningRunner:
    """One configured runner under one of the Pythons."""
    return await start_runner(interpreter)


@pytest.fixture
async def sandbox(runner: RunningRunner) -> RunnerClient:
    """Its client."""
    return runner.client


@pytest.fixture
def helpers() -> object:
    """Functions shared by the tests here."""

    class Helpers:
        alive_with = staticmethod(alive_with)
        eventually = staticmethod(eventually)
        until = staticmethod(until)
        main = MAIN

    return Helpers
