"""Sandboxes in docker or podman containers: the runner that pods run, in the task's own image.

The runner's files are mounted read-only from the cache below the user's home, the one place that engines in virtual
machines share with their host, and are reached over the container's standard input and output.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Literal

import msgspec

from dgym.errors import DgymError, ManifestError, SandboxLost, SandboxStartFailed
from dgym.sandbox.cache import cache_directory, shared_runner
from dgym.sandbox.client import RunnerClient
from dgym.sandbox.container.command import Container, command_line
from dgym.sandbox.container.engine import Engine, Image, find_engine
from dgym.sandbox.container.process import ContainerProcess, Ownership, remove_abandoned_once, scope
from dgym.sandbox.local import bubblewrap_works, check_workspace
from dgym.sandbox.protocol import EngineName, Sandbox, SandboxKind, SandboxProvider, SandboxSpec

__all__ = ["ContainerProvider", "ContainerSandbox"]

_log = logging.getLogger(__name__)
_START_SECONDS = 120.0
_TMP_INSIDE = "/tmp"  # noqa: S108 - the container's own


class ContainerProvider(SandboxProvider):
    """Opens sandbox and verifier in containers of one image.

    Args:
        spec: what the task needs; its ``python`` is ignored: the image has its own.
        engine: docker or podman.
        image: an image that engine has.
        delivered: the workspace begins empty; False when the image holds the repository at ``spec.workspace``.
        in_place: programs run as the image's own user even where the repository is delivered.
        cpus: processors that may be used; None for all.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        engine: Engine,
        image: Image,
        delivered: bool = True,
        in_place: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._spec = msgspec.structs.replace(spec, python=None, environment={"TMPDIR": _TMP_INSIDE, **spec.environment})
        self._engine = engine
        self._image = image
        self._delivered = delivered
        self._in_place = in_place
        self._cpus = cpus

    async def sandbox(self) -> Sandbox:
        """Start the agent's sandbox."""
        return await self._open()

    async def verifier(self) -> Sandbox:
        """Start the verifier: another container of the same image."""
        return await self._open()

    async def _open(self) -> "ContainerSandbox":
        check_workspace(self._spec.workspace)
        await remove_abandoned_once(self._engine)
        ownership = Ownership()
        try:
            container = Container(
                name=ownership.name,
                scope=scope(),
                image=self._image,
                runner=str(await asyncio.to_thread(shared_runner)),
                workspace=self._spec.workspace,
                interpreter=self._spec.interpreter,
                delivered=self._delivered,
                in_place=self._in_place,
                limits=self._spec.limits,
                cpus=self._cpus,
            )
            arguments = command_line(self._engine, container)
            process, connection = await ContainerProcess.start(self._engine, ownership, arguments)
        except BaseException:
            ownership.release()
            raise
        reader, writer = await asyncio.open_connection(sock=connection)
        sandbox = ContainerSandbox(reader, writer, process, self._image)
        try:
            await self._configure(sandbox, process)
        except BaseException:
            with suppress(SandboxLost):
                await sandbox.stop()
            raise
        return sandbox

    async def _configure(self, sandbox: "ContainerSandbox", process: ContainerProcess) -> None:
        # An ``activate`` line may take minutes; the runner has a deadline of its own for it.
        limit = None if self._spec.activate else _START_SECONDS
        try:
            await asyncio.wait_for(sandbox.configure(self._spec, inherit_environment=True), limit)
        except TimeoutError:
            raise SandboxStartFailed(f"the runner did not answer within {_START_SECONDS:g} s") from None
        except SandboxLost as error:
            raise SandboxStartFailed(self._explain(await process.last_words() or str(error))) from error
        except OSError as error:
            raise SandboxStartFailed(f"workspace {self._spec.workspace}: {error.strerror or error}") from error
        process.answered = True
        if not self._delivered and not await sandbox.list_directory(limit=1):
            raise ManifestError(
                f"image {self._image.name!r} holds nothing at {self._spec.workspace}: set workingDirectory to where "
                "its repository is, or give the task a source"
            )

    def _explain(self, said: str) -> str:
        hint = ""
        if "executable file not found" in said or "no such file or directory" in said.lower():
            hint = f"; does the image have {self._spec.interpreter!r} (the task's 'interpreter')?"
        if "__main__.py" in said or str(cache_directory()) in said:
            hint = (
                f"; {cache_directory()} must be readable for the engine: one on another machine cannot be used, one in "
                "a virtual machine must share your home directory"
            )
        return f"the runner did not start in image {self._image.name!r}: {said}{hint}"


class ContainerSandbox(RunnerClient):
    """A running container."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: ContainerProcess, image: Image
    ) -> None:
        super().__init__(reader, writer)
        self._process = process
        self._image = image
        self._stopping: asyncio.Task[None] | None = None

    @property
    def kind(self) -> Literal["container"]:
        """Always "container"."""
        return "container"

    @property
    def image(self) -> str:
        """The digest of its image."""
        return self._image.digest

    @property
    def name(self) -> str:
        """The container's name in its engine."""
        return self._process.name

    async def stop(self) -> None:
        """Kill everything inside; return once the container is removed. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        # Shielded from a cancelled caller: a stop that is not finished would leave the container.
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        # Closing standard input first also ends a container that is still being started.
        with suppress(DgymError, OSError):
            await self.close()
        await self._process.remove()


async def choose_engine(
    sandbox: SandboxKind, engine: EngineName, *, image: str | None, delivered: bool, python: str | None
) -> Engine | None:
    """The engine whose containers the task runs in; None when it runs without containers.

    With "auto" a task that names an image goes into a container if an engine answers; otherwise bubblewrap comes
    first, then a container of dgym's own image; never no isolation. A ``python`` of this machine is a reason not
    to take a container, where it does not exist.

    Args:
        sandbox: the kind requested.
        engine: the engine requested.
        image: the image the task names, if any.
        delivered: False when the repository is in the image.
        python: the interpreter of this machine requested.

    Raises:
        ManifestError: the task, the sandbox and the interpreter requested do not fit together.
        SandboxStartFailed: a container is needed and no engine answers.
    """
    in_image = image is not None and not delivered
    if in_image and sandbox in ("bubblewrap", "none"):
        # It would debug an empty directory.
        raise ManifestError(
            f"the repository is in the image {image!r}, which the sandbox {sandbox!r} does not use; take 'container', "
            "or give the task a source"
        )
    if sandbox == "container" or in_image:
        if python is not None:
            raise ManifestError(
                f"python {python!r} is an interpreter of this machine, which a container does not see; give the task "
                "an 'image' with the interpreter it needs"
            )
        return await find_engine(engine)
    if sandbox != "auto" or python is not None:
        return None
    if image is None and await asyncio.to_thread(bubblewrap_works):
        return None
    try:
        return await find_engine(engine)
    except SandboxStartFailed:
        return None
