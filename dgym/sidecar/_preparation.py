"""Preparation of an attempt: the uploaded workspace and trajectory, the session of the task, and the pod's runners.

There is a runner for the sandbox and one for the verifier. Each has a Unix socket that accepts one connection. A pod
has one sandbox; if it is gone, another attempt needs another pod. The sidecar requests the sandbox to exit, but cannot
observe other containers, so the operator reports their termination. Without a report the attempt is lost. A missing
report is not evidence about the agent.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from dgym.api import DebugTask
from dgym.decoding import DECODE_ERRORS
from dgym.errors import InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.sandbox import RunnerClient, Sandbox, SandboxProvider, SandboxSpec
from dgym.session import EpisodeLimits, RecordedTrajectory, SandboxTermination, Session, sandbox_spec
from dgym.tools import load_tools
from dgym.wire import Step
from dgym.wire.http import REPLAY_LIMIT, WORKSPACE_LIMIT, CallError, ErrorCode, PrepareRequest, UploadResponse

_POLL_SECONDS = 0.02
_CONFIGURE_SECONDS = 60.0
_SHARED_TEMPORARY_FILES = "/tmp"  # noqa: S108 - the container's own


class PodSandbox(RunnerClient):
    """A container of this pod. The sidecar requests it to exit, and the operator observes its termination."""

    @property
    def kind(self) -> Literal["pod"]:
        """See ``Sandbox.kind``."""
        return "pod"

    async def stop(self) -> None:
        """Request the runner to exit, without waiting for the container's termination. Idempotent."""
        with contextlib.suppress(InfrastructureError, OSError):
            await self.close()


class Runners:
    """The connections to both runners of the pod."""

    def __init__(self, sandbox: Path, verifier: Path) -> None:
        self._paths = {"sandbox": sandbox, "verifier": verifier}
        self._connected: dict[str, PodSandbox] = {}

    @property
    def missing(self) -> str | None:
        """The runner that is missing, and why. None if both are connected."""
        for name in self._paths:
            if name not in self._connected:
                return f"the {name}'s runner has not started yet"
            if self._connected[name].lost:
                return f"the {name}'s runner is gone"
        return None

    @property
    def starting(self) -> bool:
        """Whether a runner has not been connected yet."""
        return len(self._connected) < len(self._paths)

    def is_lost(self, name: str) -> bool:
        """Return whether the runner ``name`` was connected and is gone."""
        runner = self._connected.get(name)
        return runner is not None and runner.lost

    async def connect(self) -> None:
        """Connect to both runners. The wait has no timeout, because pulling images may take long."""
        async with asyncio.TaskGroup() as group:
            for name, path in self._paths.items():
                group.create_task(self._connect(name, path))

    def get(self, name: str) -> PodSandbox:
        """Return the runner ``name``.

        Raises:
            SandboxLost: It is not connected.
        """
        runner = self._connected.get(name)
        if runner is None or runner.lost:
            raise SandboxLost(f"the {name}'s runner is gone")
        return runner

    async def clear_shared(self) -> Sequence[str]:
        """Remove objects that the sandbox left in the pod's IPC namespace. Returns notes for the result.

        Other resources that the sandbox and the verifier share end with their processes (sockets) or are read-only
        (files with host names).
        """
        return (await self.get("verifier").clear_ipc()).notes

    async def close(self) -> None:
        """Request both runners to exit. Idempotent."""
        for runner in self._connected.values():
            await runner.stop()

    async def _connect(self, name: str, path: Path) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(path))
            except OSError:
                # Polled, because the kernel does not notify this container when another container creates the socket.
                await asyncio.sleep(_POLL_SECONDS)
            else:
                self._connected[name] = PodSandbox(reader, writer)
                return


class PodProvider(SandboxProvider):
    """Provides each of the two runners once, configured for the task."""

    def __init__(self, runners: Runners, spec: SandboxSpec) -> None:
        self._runners = runners
        # The image's environment is used, but its TMPDIR may name a directory that does not exist.
        environment = {"TMPDIR": _SHARED_TEMPORARY_FILES, **spec.environment}
        self._spec = msgspec.structs.replace(spec, python=None, environment=environment)
        self._handed_out: set[str] = set()

    async def sandbox(self) -> Sandbox:
        """Return the agent's sandbox.

        Raises:
            SandboxLost: It was used before, or is gone.
        """
        return await self._open("sandbox")

    async def verifier(self) -> Sandbox:
        """Return the verifier. Raises the same exceptions as ``sandbox``."""
        return await self._open("verifier")

    async def _open(self, name: str) -> PodSandbox:
        runner = self._runners.get(name)
        if name in self._handed_out:
            raise SandboxLost(f"this pod has only one {name}, which was used already")
        self._handed_out.add(name)
        # ``activate`` may take minutes; the runner has a separate deadline for it.
        limit = None if self._spec.activate else _CONFIGURE_SECONDS
        try:
            await asyncio.wait_for(runner.configure(self._spec, inherit_environment=True), limit)
        except TimeoutError:
            raise SandboxStartFailed(f"the {name}'s runner did not answer within {_CONFIGURE_SECONDS:g} s") from None
        except OSError as error:
            raise SandboxStartFailed(f"{name}: workspace {self._spec.workspace}: {error.strerror or error}") from error
        return runner


class TerminationReports:
    """The operator's reports about the sandbox's container.

    Args:
        timeout_seconds: Time in which a container must terminate after the request to exit.
        patience_seconds: Time to wait for the operator's report after that.
    """

    def __init__(self, *, timeout_seconds: float, patience_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._terminated = asyncio.Event()
        self._reported = asyncio.Event()
        self._overdue_since: datetime | None = None

    @property
    def overdue(self) -> bool:
        """Whether the container should have terminated, and the operator has not reported its state."""
        return self._overdue_since is not None and not self._reported.is_set()

    def report_terminated(self) -> None:
        """Record the operator's report that the container has terminated."""
        self._terminated.set()
        self._reported.set()

    def report_running(self, observed: datetime) -> bool:
        """Record the operator's report that the container still ran at ``observed``, by the clock of the pod's node.

        Returns:
            False if the report is ignored, because the container need not have terminated at that time.
        """
        # Kubernetes truncates times to whole seconds.
        if self._overdue_since is None or observed < self._overdue_since.replace(microsecond=0):
            return False
        self._reported.set()
        return True

    async def confirmed(self) -> bool:
        """Wait for the operator's report.

        Returns:
            True if the container has terminated, False if it still runs.

        Raises:
            SandboxLost: The report did not arrive in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                await self._reported.wait()
        if not self._reported.is_set():
            self._overdue_since = datetime.now(UTC)
            await self._report()
        return self._terminated.is_set()

    async def _report(self) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._reported.wait()
        except TimeoutError:
            waited = self._timeout_seconds + self._patience_seconds
            message = f"the operator did not report within {waited:g} s whether the sandbox has ended"
            raise SandboxLost(message) from None


class Upload:
    """An uploaded file. It is streamed to disk, hashed, and renamed to its path when it is complete.

    Args:
        path: Path of the file.
        limit: Maximum number of bytes of the file.
        what: Name of the content, for messages.
    """

    def __init__(self, path: Path, *, limit: int, what: str) -> None:
        self.path = path
        self.latest: UploadResponse | None = None
        self._limit = limit
        self._what = what

    async def receive(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Write the chunks to disk, replacing an earlier upload.

        Raises:
            CallError: TOO_LARGE: they have more bytes than the limit.
        """
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix="upload-")
        hashed, size = hashlib.sha256(), 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._limit:
                        raise CallError(ErrorCode.TOO_LARGE, f"a {self._what} has at most {self._limit:,} bytes")
                    hashed.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            os.replace(name, self.path)  # noqa: PTH105 - a rename does not block
        except BaseException:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108 - nor does this
            raise
        self.latest = UploadResponse(bytes=size, sha256=hashed.hexdigest())
        return self.latest

    def check(self, sha256: str) -> None:
        """Check that the uploaded file has this digest.

        Raises:
            CallError: CONFLICT: it has another digest, or no file was uploaded.
        """
        if self.latest is None or self.latest.sha256 != sha256:
            raise CallError(ErrorCode.CONFLICT, f"a {self._what} with this SHA-256 was not uploaded")


class Uploads:
    """The uploaded files of an attempt."""

    def __init__(self, directory: Path) -> None:
        self.workspace = Upload(directory / "workspace.tar", limit=WORKSPACE_LIMIT, what="workspace")
        self.trajectory = Upload(directory / "trajectory.jsonl", limit=REPLAY_LIMIT, what="trajectory")


def make_session(
    request: PrepareRequest,
    uploads: Uploads,
    runners: Runners,
    termination: SandboxTermination,
    changed: Callable[[], None],
) -> Session:
    """Create the session of the task with the pod's two runners. ``changed`` is called before and after each step.

    Raises:
        CallError: The task or the trajectory is invalid, or an uploaded file has another digest.
        PluginError: A tool cannot be loaded.
    """
    task = _read_task(request.task)
    _check_workspace(task, request, uploads.workspace)
    session = Session(
        task,
        provider=PodProvider(runners, sandbox_spec(task, None)),
        tools=load_tools(_only_installed(request)),
        source=uploads.workspace.path if request.workspace_sha256 is not None else None,
        limits=EpisodeLimits(
            max_steps=request.max_steps,
            max_rewrites=request.max_rewrites,
            deadline_seconds=request.remaining_seconds,
        ),
        termination=termination,
        trajectory=_trajectory(request, uploads.trajectory),
        changed=changed,
    )
    if request.usage is not None:
        session.record_usage(request.usage)
    return session


def _read_task(value: dict[str, Any]) -> DebugTask:
    try:
        return msgspec.convert(value, DebugTask)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"task: {error}") from None


def _check_workspace(task: DebugTask, request: PrepareRequest, workspace: Upload) -> None:
    if request.workspace_sha256 is not None:
        workspace.check(request.workspace_sha256)
    elif task.spec.source is not None:
        raise CallError(ErrorCode.INVALID_ARGUMENT, "the task has a source; upload it and name its SHA-256")


def _trajectory(request: PrepareRequest, uploaded: Upload) -> RecordedTrajectory | None:
    if request.trajectory_sha256 is None:
        return None
    uploaded.check(request.trajectory_sha256)
    with uploaded.path.open("rb") as lines:
        return RecordedTrajectory(steps=read_steps(lines), poisoned=request.poisoned_steps)


def read_steps(lines: Iterable[bytes]) -> tuple[Step, ...]:
    """Parse steps, one JSON object per line: the reset, then calls numbered from 1.

    Raises:
        CallError: INVALID_ARGUMENT: the lines are not such steps.
    """
    steps: list[Step] = []
    try:
        steps += (msgspec.json.decode(line, type=Step) for line in lines)
    except DECODE_ERRORS as error:
        raise CallError(
            ErrorCode.INVALID_ARGUMENT, f"trajectory: line {len(steps) + 1} is not a step: {error}"
        ) from None
    if not steps or any(step.seq != seq or (step.call is None) != (seq == 0) for seq, step in enumerate(steps)):
        raise CallError(
            ErrorCode.INVALID_ARGUMENT,
            "trajectory: it does not start with the reset, followed by calls numbered from 1",
        )
    return tuple(steps)


def _only_installed(request: PrepareRequest) -> list[Any]:
    """Return the tools. Dotted paths are refused, because they could import any module of the pod's image."""
    for tool in request.tools:
        name = tool if isinstance(tool, str) else tool.name
        if ":" in name:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"tool {name!r}: in a cluster only installed tools can be used")
    return list(request.tools)
