"""A runner process on this machine: its connection, and the confirmed termination of all that it started.

Under bubblewrap the runner is process 1 of a PID namespace. When process 1 ends the kernel kills the namespace, and
process 1 is not gone before every other process in it is: waiting for one process is enough, and no program inside
can escape it. Without bubblewrap there is no such handle, so what is left behind is searched for.

Bubblewrap dies with the thread that started it, so all of a process are started by one thread that lives as long as the
process. That thread also has a session keyring of its own, which what it starts inherits: the user's keys stay outside.
"""

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from dgym.errors import SandboxStartFailed
from dgym.sandbox.local import seccomp

_log = logging.getLogger(__name__)

_ERROR_BYTES = 64 * 1024
_DEAD_SECONDS = 30.0
_LOOK_SECONDS = 0.01
_KEYCTL_JOIN_SESSION_KEYRING = 1


class RunnerProcess:
    """One runner process, its connection and its standard error."""

    def __init__(self, popen: "subprocess.Popen[bytes]", connection: socket.socket, errors: int) -> None:
        self._connection: socket.socket | None = connection
        self._popen = popen
        self._errors = errors
        self._init = -1
        self._init_id = 0

    @property
    def main_process(self) -> int:
        """The id, on this machine, of the process whose death ends the sandbox."""
        return self._init_id or self._popen.pid

    @classmethod
    async def start(
        cls, prefix: Sequence[str], runner: Sequence[str], environment: dict[str, str], *, deadline_seconds: float
    ) -> "RunnerProcess":
        """Start ``runner`` with one end of a socket pair, under bubblewrap if ``prefix`` is its command line.

        Raises:
            SandboxStartFailed: it could not be started; the message holds what was written to standard error.
        """
        if not prefix:
            return _spawn(runner, environment)
        with seccomp.open_filter() as file:
            spawn = partial(_spawn_under_bubblewrap, prefix, runner, environment, file.fileno())
            process, information = _launcher(os.getpid()).submit(spawn).result()
        try:
            await process._find_init(information, deadline_seconds)
        except BaseException:
            await process.kill()
            raise
        finally:
            os.close(information)
        return process

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Our end of the socket pair as streams, which the caller closes."""
        assert self._connection is not None
        streams = await asyncio.open_connection(sock=self._connection)
        self._connection = None
        return streams

    def last_words(self) -> str:
        """What the runner or bubblewrap wrote to standard error (the first 64 KiB)."""
        if self._errors < 0:
            return ""
        return os.pread(self._errors, _ERROR_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace").strip()

    async def kill(self) -> None:
        """Kill the runner and, under bubblewrap, its namespace; return once all are terminated. Idempotent."""
        if self._connection is not None:
            self._connection.close()
        if self._init >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            await readable(self._init, _DEAD_SECONDS)
        else:
            await self._kill_tree()
        await self.ended(_DEAD_SECONDS)
        for descriptor in (self._init, self._errors):
            if descriptor >= 0:
                os.close(descriptor)
        self._init = self._errors = -1

    async def ended(self, timeout_seconds: float) -> bool:
        """Wait for the process we started and reap it; False when it still runs after the timeout."""
        if self._popen.poll() is None:
            descriptor = os.pidfd_open(self._popen.pid)
            try:
                await readable(descriptor, timeout_seconds)
            finally:
                os.close(descriptor)
        return self._popen.poll() is not None

    async def _kill_tree(self) -> None:
        """Kill the process and what descends from it: half-made, bubblewrap does not yet die with its parent."""
        if self._popen.poll() is not None:
            return
        below = await asyncio.to_thread(descendants, self._popen.pid)
        self._popen.kill()
        for process in below:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    async def _find_init(self, information: int, deadline_seconds: float) -> None:
        """Read the id of process 1 inside from the JSON that bubblewrap writes once that process exists."""
        end = time.monotonic() + deadline_seconds
        received = b""
        while self._init < 0:
            if not await readable(information, end - time.monotonic()):
                raise SandboxStartFailed(f"bubblewrap did not start within {deadline_seconds:g} s: {self.last_words()}")
            chunk = os.read(information, 4096)
            if not chunk:
                await self.ended(_DEAD_SECONDS)
                raise SandboxStartFailed(f"bubblewrap could not make the sandbox: {self.last_words()}")
            received += chunk
            with suppress(ValueError):
                self._init_id = int(json.loads(received)["child-pid"])
                self._init = _open_process(self._init_id)


async def readable(descriptor: int, timeout_seconds: float) -> bool:
    """Wait until a descriptor can be read (for a process: until it has ended); False at the timeout."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), max(0.0, timeout_seconds))
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True


async def kill_leftovers(directory: Path, known: set[int]) -> list[int]:
    """Kill the processes that outlived a runner without a PID namespace; return the ids of those that survive.

    Every command was started with a HOME below the sandbox's private directory, which is how its descendants are
    recognised; ``known`` are descendants seen before the runner died.
    """
    end = time.monotonic() + _DEAD_SECONDS
    mark = os.fsencode(directory) + b"/"
    births = {process: birth for process in known if (birth := _birth(process)) is not None}
    while True:
        # In a thread: reading the environment of every process of the machine would stall the episodes beside this one.
        marked = await asyncio.to_thread(_marked, mark)
        left = {process for process, birth in births.items() if _birth(process) == birth} | marked
        if not left or time.monotonic() > end:
            return sorted(left)
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        await asyncio.sleep(_LOOK_SECONDS)


def descendants(process: int) -> set[int]:
    """The ids of all processes below ``process``."""
    children: dict[int, list[int]] = {}
    for other in _processes():
        fields = _stat(other)
        if fields:
            children.setdefault(int(fields[1]), []).append(other)
    found: set[int] = set()
    queue = [process]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


@cache
def _launcher(_process: int) -> ThreadPoolExecutor:
    """The thread that starts every bubblewrap of this process; a forked process has one of its own."""
    return ThreadPoolExecutor(1, "dgym-bubblewrap", initializer=_join_session_keyring)


def _join_session_keyring() -> None:
    """Leave the user's session keyring for an empty one: in this thread, and in what it starts."""
    try:
        import ctypes  # a Python may be built without it

        libc = ctypes.CDLL(None, use_errno=True)
        number = seccomp.call_number("keyctl", os.uname().machine)
        if libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except (ImportError, OSError) as error:
        # Kernels without keys, and containers that refuse the call: keyctl is refused inside in any case.
        _log.debug("no session keyring for sandboxes: %s", error)


def _spawn_under_bubblewrap(
    prefix: Sequence[str], runner: Sequence[str], environment: dict[str, str], filtering: int
) -> tuple[RunnerProcess, int]:
    information, writing = os.pipe()
    wrapper = [*prefix, "--info-fd", str(writing), "--seccomp", str(filtering), "--"]
    try:
        return _spawn([*wrapper, *runner], environment, (writing, filtering)), information
    except BaseException:
        os.close(information)
        raise
    finally:
        os.close(writing)


def _spawn(command: Sequence[str], environment: dict[str, str], handed_over: Sequence[int] = ()) -> RunnerProcess:
    ours, theirs = socket.socketpair()
    errors = os.memfd_create("runner-errors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Fixed in size, so that nothing inside can fill the machine's memory by way of its standard error.
    os.ftruncate(errors, _ERROR_BYTES)
    fcntl.fcntl(errors, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    try:
        popen = subprocess.Popen(
            [*command, "--fd", str(theirs.fileno())],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(theirs.fileno(), *handed_over),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        os.close(errors)
        raise SandboxStartFailed(f"the runner could not be started: {error}") from error
    finally:
        theirs.close()
    ours.setblocking(False)
    return RunnerProcess(popen, ours, errors)


def _open_process(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        raise SandboxStartFailed("the runner ended at once") from None


def _marked(mark: bytes) -> set[int]:
    found: set[int] = set()
    for process in _processes():
        with suppress(OSError):
            if mark in Path(f"/proc/{process}/environ").read_bytes() and _birth(process) is not None:
                found.add(process)
    return found - {os.getpid()}


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - twice as fast, and polled


def _birth(process: int) -> bytes | None:
    """The start time of a process, which distinguishes it from a later one of the same id; None once it is dead."""
    fields = _stat(process)
    return fields[19] if fields and fields[0] not in (b"Z", b"X") else None


def _stat(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
