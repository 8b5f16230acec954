"""Fixtures: real runners under real Pythons, each with an empty environment and a separate workspace."""

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from dgym.sandbox import RunnerClient, RunnerInfo, SandboxLimits, SandboxSpec
from tests.support.interpreters import parametrize
from tests.support.runners import compiled_main, open_warm_runners
from tests.support.warm_process import WarmProcess

T = TypeVar("T")
NO_LIMITS = SandboxLimits(memory_bytes=None, processes=None, cpu_seconds=None, file_size_bytes=None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, "interpreter")


class RunningRunner:
    """A runner process and its client."""

    def __init__(self, process: subprocess.Popen[bytes], client: RunnerClient) -> None:
        self.process = process
        self.client = client
        self.info: RunnerInfo | None = None

    async def exit_status(self, seconds: float = 90) -> int:
        """Wait for the end of the process and return its exit status."""
        return await asyncio.to_thread(self.process.wait, seconds)

    def resident_kib(self) -> int:
        """Resident memory of the runner, in KiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")


def alive_with(text: str) -> list[int]:
    """IDs of the processes whose command line contains ``text``, without zombies and this process."""
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
    """Call ``ask`` until ``accept`` returns true for the answer, and return the answer."""
    deadline = time.monotonic() + seconds
    while not accept(answer := await ask()):
        assert time.monotonic() < deadline, f"the answer is still {answer!r}"
        await asyncio.sleep(0.01)
    return answer


Start = Callable[..., Awaitable[RunningRunner]]


@pytest.fixture
def run_plain() -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], socket.socket]]]:
    """Start a runner, optionally as a child of the program ``below``, and return its process and the raw socket."""
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(interpreter: str, below: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        argv = [
            *below,
            "env",
            "-i",
            interpreter,
            "-I",
            "-S",
            "-B",
            compiled_main(interpreter),
            "--fd",
            str(theirs.fileno()),
        ]
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
    """Start a runner and configure it. At the end of the test, each runner is requested to exit."""
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
    """A configured runner under one of the Pythons."""
    return await start_runner(interpreter)


@pytest.fixture(scope="session")
def warm_runners() -> Iterator[Callable[[str], WarmProcess]]:
    with open_warm_runners() as of_interpreter:
        yield of_interpreter


@pytest.fixture
async def start_warm(warm_runners, tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[RunnerClient]]]:
    """``await start_warm(interpreter)``: the client of a configured runner, for tests that do not test its start."""
    running = []

    async def start(interpreter: str) -> RunnerClient:
        ours, theirs = socket.socketpair()
        runners = warm_runners(interpreter)
        with theirs:
            pid = runners.fork(theirs.fileno(), {})
        client = RunnerClient(*await asyncio.open_connection(sock=ours))
        running.append((client, runners, pid))
        await client.configure(SandboxSpec(workspace=str(tmp_path / "workspace"), limits=NO_LIMITS))
        return client

    yield start
    for client, runners, pid in running:
        await client.close()
        assert (await asyncio.to_thread(runners.waitpid, pid))[1] == 0


@pytest.fixture
async def sandbox(start_warm, interpreter: str) -> RunnerClient:
    """The client of a runner under one of the Pythons."""
    return await start_warm(interpreter)


@pytest.fixture
def helpers() -> object:
    """Functions shared by the tests here."""

    class Helpers:
        alive_with = staticmethod(alive_with)
        eventually = staticmethod(eventually)
        until = staticmethod(until)
        compiled_main = staticmethod(compiled_main)

    return Helpers
