"""Preparation of an attempt: the uploaded workspace and history, and a session for the task."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask
from dgym.decoding import DECODE_ERRORS
from dgym.session import EpisodeLimits, RecordedHistory, SandboxTermination, Session, sandbox_spec
from dgym.sidecar.access import CallError
from dgym.sidecar.runners import PodProvider, Runners
from dgym.tools import load_tools
from dgym.wire import Step
from dgym.wire.http import REPLAY_LIMIT, WORKSPACE_LIMIT, ErrorCode, PrepareRequest, UploadResponse


class Upload:
    """The last file that arrived whole: streamed to disk, hashed, and renamed into place at its end.

    Args:
        path: The file.
        limit: Its bytes at most.
        what: The file's content, for messages.
    """

    def __init__(self, path: Path, *, limit: int, what: str) -> None:
        self.path = path
        self.latest: UploadResponse | None = None
        self._limit = limit
        self._what = what

    async def receive(self, chunks: AsyncIterator[bytes]) -> UploadResponse:
        """Write the chunks to disk.

        Raises:
            CallError: They are more than the limit.
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
        """Refuse a digest that is not the uploaded file's."""
        if self.latest is None or self.latest.sha256 != sha256:
            raise CallError(ErrorCode.CONFLICT, f"no {self._what} of this SHA-256 was uploaded")


class Uploads:
    """The uploaded files of an attempt."""

    def __init__(self, directory: Path) -> None:
        self.workspace = Upload(directory / "workspace.tar", limit=WORKSPACE_LIMIT, what="workspace")
        self.history = Upload(directory / "history.jsonl", limit=REPLAY_LIMIT, what="history")


def make_session(
    request: PrepareRequest,
    uploads: Uploads,
    runners: Runners,
    termination: SandboxTermination,
    changed: Callable[[], None],
) -> Session:
    """The session of the task, over the pod's two runners; ``changed`` is called around each step.

    Raises:
        CallError: The task or the history is wrong, or an uploaded file is another.
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
        history=_history(request, uploads.history),
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


def _history(request: PrepareRequest, uploaded: Upload) -> RecordedHistory | None:
    if request.history_sha256 is None:
        return None
    uploaded.check(request.history_sha256)
    with uploaded.path.open("rb") as lines:
        return RecordedHistory(steps=read_steps(lines), poisoned=request.poisoned_steps)


def read_steps(lines: Iterable[bytes]) -> tuple[Step, ...]:
    """The steps in ``lines``, one of JSON each: the reset, then calls numbered from 1.

    Raises:
        CallError: They are something else.
    """
    steps: list[Step] = []
    try:
        steps += (msgspec.json.decode(line, type=Step) for line in lines)
    except DECODE_ERRORS as error:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"history: line {len(steps) + 1} is no step: {error}") from None
    if not steps or any(step.seq != seq or (step.call is None) != (seq == 0) for seq, step in enumerate(steps)):
        raise CallError(ErrorCode.INVALID_ARGUMENT, "history: it is not the reset and then calls numbered from 1")
    return tuple(steps)


def _only_installed(request: PrepareRequest) -> list[Any]:
    """The tools; a dotted path would import what the pod's image happens to hold."""
    for tool in request.tools:
        name = tool if isinstance(tool, str) else tool.name
        if ":" in name:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"tool {name!r}: a cluster knows the installed tools alone")
    return list(request.tools)
