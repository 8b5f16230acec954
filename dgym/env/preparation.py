"""Prepare an episode's pod and let it go: what the role "prepare" does around those who drive it."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env.http_client import HttpClient, Patience
from dgym.env.remote import read_history
from dgym.errors import AccessRefused, ConflictError, EpisodeOver, SandboxLost, Superseded
from dgym.session import EpisodeLimits
from dgym.wire import EndReason, Result, Step
from dgym.wire.http import (
    Accepted,
    CloseResponse,
    NamedTool,
    PrepareRequest,
    PrepareResponse,
    ReleaseRequest,
    WorkspaceResponse,
)
from dgym.wire.http import Path as CallPath

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 256 * 1024
_RELEASE_SECONDS = 5.0


class RemotePreparation:
    """One attempt's sidecar, as whoever prepares it sees it. All of it may be repeated."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        epoch: int | None = None,
        patience: Patience = Patience(),  # noqa: B008 - immutable
    ) -> None:
        self._client = HttpClient(url, token, epoch=epoch, patience=patience)
        brief = min(patience.silence_seconds, _RELEASE_SECONDS)
        self._at_release = msgspec.structs.replace(patience, silence_seconds=brief)

    async def prepare(
        self,
        task: DebugTask,
        *,
        source: Path | None,
        tools: Sequence[str | ToolSpec],
        limits: EpisodeLimits,
    ) -> tuple[str, ...]:
        """Send the repository and the task; returns the names of the tools.

        ``source`` is a tar; None: the image holds the repository. ``limits.deadline_seconds`` is what is left of it.

        Raises:
            ManifestError: The task, a tool or a limit is wrong, or the repository too large.
            ConflictError: The attempt was prepared otherwise.
        """
        request = PrepareRequest(
            task=_without_files(task),
            tools=tuple(
                tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in tools
            ),
            workspace_sha256=await asyncio.to_thread(_digest, source) if source is not None else None,
            max_steps=limits.max_steps,
            max_rewrites=limits.max_rewrites,
            remaining_seconds=limits.deadline_seconds,
        )
        try:
            return await self._prepare(request)
        except ConflictError:
            # The repository is not there yet, or the attempt is prepared otherwise, which the upload finds out too.
            if source is None:
                raise
        await self._upload(source)
        return await self._prepare(request)

    async def steps(self, start: int) -> list[Step]:
        """The recorded steps from number ``start`` on: what whoever keeps the trajectory of another's episode asks."""
        return await read_history(self._client, start)

    async def result(self) -> Result:
        """Wait for the verdict, whoever brings it about."""
        return (await self._client.call("GET", CallPath.RESULT, CloseResponse)).result

    async def release(self, *, result_uri: str = "", reason: EndReason | None = None, message: str = "") -> None:
        """The result is stored at ``result_uri``; the pod may end. ``reason`` says why where there is no verdict.

        A sidecar that does not answer any more has heard it before, or is gone anyhow; one that refuses the token is
        another's, who has the address of a pod that is gone.
        """
        request = ReleaseRequest(result_uri=result_uri, reason=reason, message=message)
        try:
            await self._client.call("POST", CallPath.RELEASE, Accepted, body=request, patience=self._at_release)
        except Superseded:
            raise
        except (SandboxLost, EpisodeOver, AccessRefused) as error:
            _log.info("the pod was not told that it may end: %s", error)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def _prepare(self, request: PrepareRequest) -> tuple[str, ...]:
        return (await self._client.call("POST", CallPath.PREPARE, PrepareResponse, body=request)).tools

    async def _upload(self, source: Path) -> WorkspaceResponse:
        return await self._client.send("PUT", CallPath.WORKSPACE, WorkspaceResponse, content=lambda: _chunks(source))


def _without_files(task: DebugTask) -> dict[str, Any]:
    """The task as it travels: its repository went before it."""
    spec = msgspec.structs.replace(task.spec, source=None)
    travelling: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(task, spec=spec))
    return travelling


def _named(tool: str | ToolSpec) -> str | NamedTool:
    return tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options)


def _digest(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
