"""Prepare an episode's pod and let it go: what the role "prepare" does around those who drive it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask, ToolSpec
from dgym.env.http_client import HttpClient, Patience
from dgym.session import EpisodeLimits
from dgym.wire import EndReason
from dgym.wire.http import (
    Accepted,
    NamedTool,
    PrepareRequest,
    PrepareResponse,
    ReleaseRequest,
    WorkspaceResponse,
)
from dgym.wire.http import Path as CallPath

_CHUNK_BYTES = 256 * 1024


class RemotePreparation:
    """One attempt's sidecar, as whoever prepares it sees it. All of it may be repeated."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        epoch: int = 0,
        patience: Patience = Patience(),  # noqa: B008 - immutable
    ) -> None:
        self._client = HttpClient(url, token, epoch=epoch, patience=patience)

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
        uploaded = await self._upload(source) if source is not None else None
        request = PrepareRequest(
            task=_without_files(task),
            tools=tuple(
                tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in tools
            ),
            workspace_sha256=uploaded.sha256 if uploaded is not None else None,
            max_steps=limits.max_steps,
            max_rewrites=limits.max_rewrites,
            remaining_seconds=limits.deadline_seconds,
        )
        return (await self._client.call("POST", CallPath.PREPARE, PrepareResponse, body=request)).tools

    async def release(self, *, result_uri: str = "", reason: EndReason | None = None, message: str = "") -> None:
        """The result is stored at ``result_uri``; the pod may end. ``reason`` says why where there is no verdict."""
        request = ReleaseRequest(result_uri=result_uri, reason=reason, message=message)
        await self._client.call("POST", CallPath.RELEASE, Accepted, body=request)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def _upload(self, source: Path) -> WorkspaceResponse:
        return await self._client.send("PUT", CallPath.WORKSPACE, WorkspaceResponse, content=lambda: _chunks(source))


def _without_files(task: DebugTask) -> dict[str, Any]:
    """The task as it travels: its repository went before it."""
    spec = msgspec.structs.replace(task.spec, source=None)
    travelling: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(task, spec=spec))
    return travelling


def _named(tool: str | ToolSpec) -> str | NamedTool:
    return tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options)


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
