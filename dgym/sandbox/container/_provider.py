"""The provider of sandboxes in docker or podman containers. They run the same runner as a pod, in the task's image.

The runner's files are mounted read-only from the cache below the user's home directory, because engines in virtual
machines share only that directory with their host. The connection to the runner is the container's standard input and
output.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Literal

import msgspec

from dgym.errors import DgymError, ManifestError, SandboxLost, SandboxStartFailed
from dgym.sandbox._cache import cache_directory, shared_runner
from dgym.sandbox._client import RunnerClient
from dgym.sandbox._protocol import EngineName, SandboxKind, SandboxProvider, SandboxSpec
from dgym.sandbox.container._engine import Engine, Image, find_engine
from dgym.sandbox.container._process import (
    Container,
    ContainerProcess,
    Ownership,
    command_line,
    remove_abandoned_once,
    scope,
)
from dgym.sandbox.local import bubblewrap_works, check_workspace

__all__ = ["ContainerProvider", "ContainerSandbox"]

_log = logging.getLogger(__name__)
_START_SECONDS = 120.0
_TMP_INSIDE = "/tmp"  # noqa: S108 - the container's own


class ContainerProvider(SandboxProvider):
    """Starts the sandbox and the verifier in containers of one image.

    Args:
        spec: Specification of the sandboxes. Its ``python`` is ignored, because the image has an interpreter.
        engine: docker or podman.
        image: An image that ``engine`` has.
        delivered: True if the workspace is initially empty; False if the image has the repository at
            ``spec.workspace``.
        in_place: Run programs as the image's user even if ``delivered`` is true.
        cpus: Number of processors that may be used; None: all.
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

    async def sandbox(self) -> "ContainerSandbox":
        """Start a container, the agent's sandbox or the verifier."""
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

    verifier = sandbox

    async def _configure(self, sandbox: "ContainerSandbox", process: ContainerProcess) -> None:
        # ``activate`` may take minutes; the runner has a separate deadline for it.
        limit = None if self._spec.activate else _START_SECONDS
        try:
            await asyncio.wait_for(sandbox.configure(self._spec, inherit_environment=True), limit)
        except TimeoutError:
            raise SandboxStartFailed(f"the runner did not answer within {_START_SECONDS:g} s") from None
        except SandboxLost as error:
            raise SandboxStartFailed(self._explain(await process.error_output() or str(error))) from error
        except OSError as error:
            raise SandboxStartFailed(f"workspace {self._spec.workspace}: {error.strerror or error}") from error
        process.answered = True
        if not self._delivered and not await sandbox.list_directory(limit=1):
            raise ManifestError(
                f"image {self._image.name!r} contains no files at {self._spec.workspace}: set workingDirectory to the "
                "directory of its repository, or give the task a source"
            )

    def _explain(self, output: str) -> str:
        hint = ""
        if "executable file not found" in output or "no such file or directory" in output.lower():
            hint = f"; does the image have {self._spec.interpreter!r} (the task's 'interpreter')?"
        if "__main__.py" in output or str(cache_directory()) in output:
            hint = (
                f"; {cache_directory()} must be readable for the engine: an engine on another machine cannot be used, "
                "and an engine in a virtual machine must share your home directory"
            )
        return f"the runner did not start in image {self._image.name!r}: {output}{hint}"


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
        """See ``Sandbox.kind``."""
        return "container"

    @property
    def image(self) -> str:
        """See ``Sandbox.image``."""
        return self._image.digest

    @property
    def name(self) -> str:
        """Name of the container in its engine."""
        return self._process.name

    async def stop(self) -> None:
        """Kill all processes in the container, and return when it is removed. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        # Shielded, so that a cancelled caller does not interrupt it and leave the container behind.
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        # Standard input is closed first, because that also ends a container that is still being started.
        with suppress(DgymError, OSError):
            await self.close()
        await self._process.remove()


async def choose_engine(
    sandbox: SandboxKind, engine: EngineName, *, image: str | None, delivered: bool, python: str | None
) -> Engine | None:
    """Choose the container engine for a task; None if it runs without containers.

    With "auto", a task that names an image runs in a container if an engine is available. Other tasks run under
    bubblewrap or, if it does not work, in a container of dgym's image. "auto" never runs a task without isolation. If a
    ``python`` of this machine is requested, "auto" does not choose a container, which does not have that interpreter.

    Args:
        sandbox: The requested kind of sandbox.
        engine: The requested engine.
        image: The image that the task names, if any.
        delivered: False if the repository is in the image.
        python: The requested interpreter of this machine.

    Raises:
        ManifestError: The task, the kind of sandbox and the interpreter cannot be combined.
        SandboxStartFailed: A container is necessary and no engine is available.
    """
    in_image = image is not None and not delivered
    if in_image and sandbox in ("bubblewrap", "none"):
        # Without the image the workspace would be empty.
        raise ManifestError(
            f"the repository is in the image {image!r}, which the sandbox {sandbox!r} does not use; choose "
            "'container', or give the task a source"
        )
    if sandbox == "container" or in_image:
        if python is not None:
            raise ManifestError(
                f"python {python!r} is an interpreter of this machine, which is not available in a container; give "
                "the task an 'image' with the interpreter that it needs"
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
