"""An attached container: the engine's program, which carries the runner's frames, and the removal of both.

Our end is one socket that is the program's standard input and output. When this process dies the socket closes, the
container's input with it, and the runner inside ends itself. A container also has a lock of the same name, which the
kernel releases at its owner's death: a container whose lock is free was left behind.
"""

import asyncio
import hashlib
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from dgym.errors import SandboxLost, SandboxStartFailed
from dgym.locks import acquire, try_acquire
from dgym.sandbox.container.command import LABEL
from dgym.sandbox.container.engine import Engine, lock_directory

_log = logging.getLogger(__name__)
_ERROR_BYTES = 64 * 1024
_DETACH_SECONDS = 10.0
_REMOVE_SECONDS = 60.0
_LOOK_SECONDS = 0.1


PREFIX = "dgym-"
_SUFFIX = ".lock"
_YOUNG_SECONDS = 60.0


class Ownership:
    """The name of one container, and the lock that its owner holds while it lives."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(8)}"
        self._path = lock_directory() / f"{self.name}{_SUFFIX}"
        self._lock = acquire(self._path)

    def release(self) -> None:
        """Remove the lock once the container is removed. Idempotent."""
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


class ContainerProcess:
    """One attached container. ``answered``: its runner has answered, so the container exists."""

    def __init__(self, engine: Engine, ownership: Ownership, process: asyncio.subprocess.Process) -> None:
        self.name = ownership.name
        self.answered = False
        self._engine = engine
        self._ownership = ownership
        self._process = process
        self._errors = bytearray()
        self._reading = asyncio.get_running_loop().create_task(self._read_errors())

    @classmethod
    async def start(
        cls, engine: Engine, ownership: Ownership, arguments: Sequence[str]
    ) -> tuple["ContainerProcess", socket.socket]:
        """Start the engine's program; returns it and the socket to the container's standard input and output.

        Raises:
            SandboxStartFailed: the program could not be started.
        """
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C in our terminal is ours to act on.
            process = await asyncio.create_subprocess_exec(
                engine.program,
                *arguments,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise SandboxStartFailed(f"{engine.program} cannot be run: {error.strerror}") from error
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(engine, ownership, process), ours

    async def last_words(self) -> str:
        """What the engine or the runner wrote to standard error, once the program has ended (or soon)."""
        await asyncio.wait([self._reading], timeout=_DETACH_SECONDS)
        return self._errors.decode("utf-8", "replace").strip()

    async def remove(self) -> None:
        """Kill and remove the container; return once its removal is confirmed. Idempotent.

        Raises:
            SandboxLost: the engine did not remove it in time; a later cleanup will.
        """
        try:
            try:
                await remove_container(self._engine, self.name)
            finally:
                await self._detach()
            if not self.answered:
                # A start that was cancelled may have created the container only now.
                await remove_container(self._engine, self.name)
        except SandboxStartFailed as error:
            raise SandboxLost(f"container {self.name} could not be removed: {error}") from None
        self._ownership.release()

    async def _detach(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _DETACH_SECONDS)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            await self._process.wait()
        # Helpers of the engine may hold standard error open for longer than it lives.
        await asyncio.wait([self._reading], timeout=_DETACH_SECONDS)
        self._reading.cancel()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_ERROR_BYTES):
            self._errors += chunk[: _ERROR_BYTES - len(self._errors)]


async def remove_container(engine: Engine, name: str) -> None:
    """Kill and remove a container with its anonymous volumes; done when the engine knows no such container.

    Raises:
        SandboxStartFailed: it is still there after a minute, or the engine does not answer.
    """
    at_once = ("--time", "0") if engine.flavor == "podman" else ()
    end = time.monotonic() + _REMOVE_SECONDS
    while True:
        removed = await engine.call("rm", "--force", "--volumes", *at_once, name)
        if removed.status == 0 or await _is_unknown(engine, name):
            return
        if time.monotonic() > end:
            raise SandboxStartFailed(removed.why)
        _log.debug("container %s is not gone yet: %s", name, removed.why)
        await asyncio.sleep(_LOOK_SECONDS)


async def _is_unknown(engine: Engine, name: str) -> bool:
    found = await engine.call("ps", "--all", "--quiet", "--filter", f"name=^{name}$")
    return found.status == 0 and not found.output.strip()


_cleaned: set[str] = set()


async def remove_abandoned_containers(engine: Engine) -> list[str]:
    """Remove the containers of this user on this machine that no live process owns; their names.

    Raises:
        SandboxStartFailed: the engine does not answer, or a container cannot be removed.
    """
    existing = await _ours(engine)
    abandoned = [name for name in existing if is_abandoned(name)]
    for name in abandoned:
        await remove_container(engine, name)
        forget(name)
    return abandoned


async def remove_abandoned_once(engine: Engine) -> None:
    """Call ``remove_abandoned_containers`` before this process's first container; a failure is logged, not raised."""
    if engine.program in _cleaned:
        return
    _cleaned.add(engine.program)
    try:
        for name in await remove_abandoned_containers(engine):
            _log.info("removed container %s, which a process that is gone left behind", name)
    except SandboxStartFailed as error:
        _log.warning("abandoned containers could not be removed: %s", error)


async def remove_unused_locks(engines: Iterable[Engine]) -> None:
    """Remove the locks of processes that died, where none of these engines has a container of that name."""
    existing: set[str] = set()
    for engine in engines:
        existing.update(await _ours(engine))
    forget_unused(existing)


async def _ours(engine: Engine) -> list[str]:
    found = await engine.call(
        "ps", "--all", "--filter", f"label={LABEL}={scope()}", "--format", "{{.Names}}", timeout_seconds=30.0
    )
    if found.status != 0:
        raise SandboxStartFailed(found.why)
    return [name for name in found.output.split() if name.startswith(PREFIX)]


def scope() -> str:
    """The label value of this user's containers on this machine: an engine may serve others too."""
    described = f"{platform.node()}\0{os.getuid()}\0{lock_directory().resolve()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_abandoned(name: str) -> bool:
    """True when the owner of that container of this scope is dead."""
    try:
        lock = try_acquire(lock_directory() / f"{name}{_SUFFIX}", create=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def forget(name: str) -> None:
    """Remove the lock of an abandoned container that was removed."""
    (lock_directory() / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def forget_unused(existing: set[str]) -> None:
    """Remove the locks of processes that died before or after their container existed."""
    young = time.time() - _YOUNG_SECONDS
    for path in lock_directory().glob(f"{PREFIX}*{_SUFFIX}"):
        name = path.name.removesuffix(_SUFFIX)
        with suppress(OSError):
            # Between its making and its locking a lock looks abandoned.
            if name not in existing and path.lstat().st_mtime < young and is_abandoned(name):
                path.unlink()
