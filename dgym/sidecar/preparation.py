"""Preparation of an attempt: the uploaded workspace, and a session for the task."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask
from dgym.session import EpisodeLimits, SandboxTermination, Session, sandbox_spec
from dgym.sidecar.access import CallError
from dgym.sidecar.runners import PodProvider, Runners
from dgym.tools import load_tools
from dgym.wire.http import WORKSPACE_LIMIT, ErrorCode, PrepareRequest, WorkspaceResponse

_NAME = "workspace.tar"


class Uploads:
    """The last workspace that arrived whole: a tar, streamed to disk, hashed, and renamed into place at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.latest: WorkspaceResponse | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._directory / _NAME

    async def receive(self, chunks: AsyncIterator[bytes]) -> WorkspaceResponse:
        """Write the chunks to disk.

        Raises:
            CallError: They are more than the limit.
        """
        descriptor, name = tempfile.mkstemp(dir=self._directory, prefix="upload-")
        hashed, size = hashlib.sha256(), 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > WORKSPACE_LIMIT:
                        raise CallError(ErrorCode.TOO_LARGE, f"a workspace has at most {WORKSPACE_LIMIT:,} bytes")
                    hashed.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            os.replace(name, self.path)  # noqa: PTH105 - a rename does not block
        except BaseException:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108 - nor does this
            raise
        self.latest = WorkspaceResponse(bytes=size, sha256=hashed.hexdigest())
        return self.latest


def make_session(
    request: PrepareRequest, uploads: Uploads, runners: Runners, termination: SandboxTermination
) -> Session:
    """The session of the task, over the pod's two runners.

    Raises:
        CallError: The task is wrong, or its workspace is not the uploaded one.
        PluginError: A tool cannot be loaded.
    """
    task = _read_task(request.task)
    _check_workspace(task, request, uploads.latest)
    return Session(
        task,
        provider=PodProvider(runners, sandbox_spec(task, None)),
        tools=load_tools(_only_installed(request)),
        source=uploads.path if request.workspace_sha256 is not None else None,
        limits=EpisodeLimits(
            max_steps=request.max_steps,
            max_rewrites=request.max_rewrites,
            deadline_seconds=request.remaining_seconds,
        ),
        termination=termination,
    )


def _read_task(value: dict[str, Any]) -> DebugTask:
    try:
        return msgspec.convert(value, DebugTask)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"task: {error}") from None


def _check_workspace(task: DebugTask, request: PrepareRequest, latest: WorkspaceResponse | None) -> None:
    if request.workspace_sha256 is None:
        if task.spec.source is not None:
            raise CallError(ErrorCode.INVALID_ARGUMENT, "the task has a source; upload it and name its SHA-256")
    elif latest is None or latest.sha256 != request.workspace_sha256:
        raise CallError(ErrorCode.CONFLICT, "no workspace of this SHA-256 was uploaded")


def _only_installed(request: PrepareRequest) -> list[Any]:
    """The tools; a dotted path would import what the pod's image happens to hold."""
    for tool in request.tools:
        name = tool if isinstance(tool, str) else tool.name
        if ":" in name:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"tool {name!r}: a cluster knows the installed tools alone")
    return list(request.tools)
