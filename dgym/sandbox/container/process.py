"""A container attached to us: the engine's program, which carries our frames, and the end of both.

Our end is one socket that is the program's standard input and output. When this process dies the socket closes, the
container's input with it, and the runner inside ends itself.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from dgym.errors import SandboxLost, SandboxStartFailed
from dgym.sandbox.container import ownership
from dgym.sandbox.container.command import LABEL
from dgym.sandbox.container.engine import Engine
from dgym.sandbox.container.ownership import Ownership

_log = logging.getLogger(__name__)
_ERROR_BYTES = 64 * 1024
_DETACH_SECONDS = 10.0
_REMOVE_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class ContainerProcess:
    """One attached container. ``answered``: the runner inside did, so the container is known to exist."""

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
        """Start the engine's program; what the container says and is told goes through the socket.

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
        """Kill and remove the container, and return once it is known to be gone. Idempotent.

        Raises:
            SandboxLost: the engine could not do it in time; whoever cleans up later will.
        """
        try:
            try:
                await remove_container(self._engine, self.name)
            finally:
                await self._detach()
            if not self.answered:
                # What was given up while it was being started may have come into being only now.
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


_log = logging.getLogger(__name__)
_cleaned: set[str] = set()


async def remove_abandoned_containers(engine: Engine) -> list[str]:
    """Remove the containers of this user on this machine that no live process owns; their names.

    Raises:
        SandboxStartFailed: the engine does not answer, or a container cannot be removed.
    """
    existing = await _ours(engine)
    abandoned = [name for name in existing if ownership.is_abandoned(name)]
    for name in abandoned:
        await remove_container(engine, name)
        ownership.forget(name)
    return abandoned


async def remove_abandoned_once(engine: Engine) -> None:
    """The same once in a process, before its first container; a failure is no reason not to start."""
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
    ownership.forget_unused(existing)


async def _ours(engine: Engine) -> list[str]:
    found = await engine.call(
        "ps", "--all", "--filter", f"label={LABEL}={ownership.scope()}", "--format", "{{.Names}}", timeout_seconds=30.0
    )
    if found.status != 0:
        raise SandboxStartFailed(found.why)
    return [name for name in found.output.split() if name.startswith(ownership.PREFIX)]
