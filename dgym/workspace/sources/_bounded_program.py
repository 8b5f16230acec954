"""Run programs that read untrusted archives and repositories, with limits on memory, time, file size and output."""

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from dgym.errors import SourceFailed
from dgym.workspace.sources._fetch import Cancellation
from dgym.workspace.sources._tree import HEADERS_LIMIT, SIZE_LIMIT

TIMEOUT_SECONDS = 900
"""Maximum duration of one program."""

OUTPUT_LIMIT = 1024**2
"""Default maximum number of bytes that a program may print."""

_WATCH_SECONDS = 1.0


class ProgramOutput(NamedTuple):
    """The exit status of a program, its output and its error output."""

    status: int
    output: str
    error_output: str


def run_bounded(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    memory_bytes: int,
    cancellation: Cancellation,
    where: str,
    watch: Callable[[], None] = lambda: None,
    output_limit: int = OUTPUT_LIMIT,
) -> ProgramOutput:
    """Run a program in its own process group and wait for its end.

    Args:
        command: The program and its arguments.
        directory: The working directory.
        environment: The complete environment of the program.
        memory_bytes: Maximum address space of each process.
        cancellation: Ends the program.
        where: The beginning of messages.
        watch: Called about once a second. The program is killed if ``watch`` raises an exception.
        output_limit: Maximum number of bytes that the program may print.

    Raises:
        SourceFailed: The program is not installed, took too long, printed too much or was cancelled.
    """
    program = f"{where}: {Path(command[0]).name}"
    with tempfile.TemporaryFile(dir=directory) as output, tempfile.TemporaryFile(dir=directory) as error_output:
        try:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error_output,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SourceFailed(f"{program} is not installed on this machine") from None
        try:
            largest = SIZE_LIMIT + HEADERS_LIMIT
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest, largest))
            limits: dict[IO[bytes], int] = {output: output_limit, error_output: OUTPUT_LIMIT}
            _wait(process, program, limits, cancellation, watch)
        finally:
            _end(process)
        return ProgramOutput(
            process.returncode, _read(output, output_limit, program), _read(error_output, OUTPUT_LIMIT, program)
        )


def _wait(
    process: subprocess.Popen[bytes],
    program: str,
    limits: Mapping[IO[bytes], int],
    cancellation: Cancellation,
    watch: Callable[[], None],
) -> None:
    begun = time.monotonic()
    deadline, watch_at = begun + TIMEOUT_SECONDS, begun + _WATCH_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            return
        cancellation.check()
        for output, limit in limits.items():
            _check_size(output, limit, program)
        if time.monotonic() > deadline:
            raise SourceFailed(f"{program} took longer than {TIMEOUT_SECONDS} s")
        if time.monotonic() >= watch_at:
            watch()
            watch_at = time.monotonic() + _WATCH_SECONDS


def _check_size(output: IO[bytes], limit: int, program: str) -> None:
    if os.fstat(output.fileno()).st_size > limit:
        raise SourceFailed(f"{program} printed more than {limit} bytes")


def _read(output: IO[bytes], limit: int, program: str) -> str:
    _check_size(output, limit, program)
    output.seek(0)
    return output.read().decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
