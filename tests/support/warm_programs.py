"""Start of dgym's programs for tests, forked from a process that has imported their modules."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.warm_process import WarmProcess

_PROGRAM = """
import os, sys

{imports}

def start(log):
    os.dup2(log, 2)
    os.close(log)
    sys.argv[1:] = []
    sys.exit(program.main())
"""
AGENT_POD = """
import dgym.episodes._local
import dgym.episodes.agent_pod.__main__ as program
import dgym.llm._openai_client
"""
SIDECAR = """
import dgym.sidecar.__main__ as program
with program._without_tls():
    import dgym.sidecar._serving
"""


class WarmProgram:
    """Forks a program from a process. Each fork has separate environment variables."""

    def __init__(self, process: WarmProcess) -> None:
        self._process = process

    def start(self, environment: Mapping[str, str], log: Path) -> "ForkedProgram":
        """Start the program, with its standard error appended to ``log``."""
        with log.open("ab") as file:
            return ForkedProgram(self._process, self._process.fork(file.fileno(), environment))


class ForkedProgram:
    """The attributes of ``subprocess.Popen`` that tests use."""

    def __init__(self, process: WarmProcess, pid: int) -> None:
        self._process = process
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = self._process.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: The process has not ended in time.
        """
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            select.select([descriptor], [], [], timeout)
            os.close(descriptor)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("dgym", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def open_warm_program(imports: str) -> Iterator[WarmProgram]:
    """A program that is forked from a warm process. That process ends with the context."""
    with WarmProcess([sys.executable], _PROGRAM.format(imports=imports)) as process:
        yield WarmProgram(process)
