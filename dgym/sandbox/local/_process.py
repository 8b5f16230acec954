"""A runner process on this machine: its connection, and the confirmed termination of all processes that it started.

Under bubblewrap the runner is process 1 of a PID namespace. When process 1 ends, the kernel kills all other processes
of the namespace before process 1 is gone. Therefore it is enough to wait for process 1, and programs inside cannot
escape. Without bubblewrap this namespace does not exist, so leftover processes are searched for.

Bubblewrap is killed when the thread that started it ends. Therefore one thread, which lives as long as this process,
starts all of them. That thread also has a separate session keyring, which its child processes inherit, so that they
cannot use the user's keys.
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
from dgym.sandbox.local import _bubblewrap

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
        """Id, on this machine, of the process whose end terminates the sandbox."""
        return self._init_id or self._popen.pid

    @classmethod
    async def start(
        cls, prefix: Sequence[str], runner: Sequence[str], environment: dict[str, str], *, deadline_seconds: float
    ) -> "RunnerProcess":
        """Start ``runner`` with one end of a socket pair. ``prefix`` is the command line of bubblewrap, or empty.

        Raises:
            SandboxStartFailed: It could not be started. The message contains the standard error.
        """
        if not prefix:
            return _spawn(runner, environment)
        with _bubblewrap.open_filter() as file:
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
        """Return this process's end of the socket pair as streams. The caller must close them."""
        assert self._connection is not None
        streams = await asyncio.open_connection(sock=self._connection)
        self._connection = None
        return streams

    def error_output(self) -> str:
        """Return the standard error of the runner and bubblewrap (the first 64 KiB)."""
        if self._errors < 0:
            return ""
        return os.pread(self._errors, _ERROR_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace").strip()

    async def kill(self) -> None:
        """Kill the runner and, under bubblewrap, its namespace. Returns when all are terminated. Idempotent."""
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
        """Wait for the started process and reap it. Returns False if it still runs after the timeout."""
        if self._popen.poll() is None:
            descriptor = os.pidfd_open(self._popen.pid)
            try:
                await readable(descriptor, timeout_seconds)
            finally:
                os.close(descriptor)
        return self._popen.poll() is not None

    async def _kill_tree(self) -> None:
        """Kill the process and its descendants. While bubblewrap starts, they do not die with their parent yet."""
        if self._popen.poll() is not None:
            return
        below = await asyncio.to_thread(descendants, self._popen.pid)
        self._popen.kill()
        for process in below:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    async def _find_init(self, information: int, deadline_seconds: float) -> None:
        """Read the id of process 1 of the namespace from the JSON that bubblewrap writes when that process exists."""
        end = time.monotonic() + deadline_seconds
        received = b""
        while self._init < 0:
            if not await readable(information, end - time.monotonic()):
                raise SandboxStartFailed(
                    f"bubblewrap did not start within {deadline_seconds:g} s: {self.error_output()}"
                )
            chunk = os.read(information, 4096)
            if not chunk:
                await self.ended(_DEAD_SECONDS)
                raise SandboxStartFailed(f"bubblewrap could not create the sandbox: {self.error_output()}")
            received += chunk
            with suppress(ValueError):
                self._init_id = int(json.loads(received)["child-pid"])
                self._init = _open_process(self._init_id)


async def readable(descriptor: int, timeout_seconds: float) -> bool:
    """Wait until a descriptor is readable (a pidfd: until the process has ended). Returns False on timeout."""
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
    """Kill the processes that a runner without a PID namespace left behind. Returns the ids of those that still live.

    Processes are recognised by their HOME, which is below the sandbox's private directory. ``known`` are descendants
    that were found before the runner ended.
    """
    end = time.monotonic() + _DEAD_SECONDS
    mark = os.fsencode(directory) + b"/"
    started = {process: start for process in known if (start := _start_time(process)) is not None}
    while True:
        # In a thread, because reading the environment of all processes of the machine would block other episodes.
        marked = await asyncio.to_thread(_marked, mark)
        left = {process for process, start in started.items() if _start_time(process) == start} | marked
        if not left or time.monotonic() > end:
            return sorted(left)
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        await asyncio.sleep(_LOOK_SECONDS)


def descendants(process: int) -> set[int]:
    """Return the ids of all descendants of ``process``."""
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
    """Return the thread that starts all bubblewraps of this process. The argument separates forked processes."""
    return ThreadPoolExecutor(1, "dgym-bubblewrap", initializer=_join_session_keyring)


def _join_session_keyring() -> None:
    """Replace the user's session keyring by an empty one, for this thread and its child processes."""
    try:
        import ctypes  # Python may be built without it

        libc = ctypes.CDLL(None, use_errno=True)
        number = _bubblewrap.call_number("keyctl", os.uname().machine)
        if libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except (ImportError, OSError) as error:
        # Not an error: the kernel has no keys or a container refuses the call, and the sandbox refuses keyctl anyway.
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
    # Its size is fixed, so that programs inside cannot fill the machine's memory through standard error.
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
            if mark in Path(f"/proc/{process}/environ").read_bytes() and _start_time(process) is not None:
                found.add(process)
    return found - {os.getpid()}


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - twice as fast, and polled


def _start_time(process: int) -> bytes | None:
    """Return the start time of a process, because its id may be reused; None if the process is dead."""
    fields = _stat(process)
    return fields[19] if fields and fields[0] not in (b"Z", b"X") else None


def _stat(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
