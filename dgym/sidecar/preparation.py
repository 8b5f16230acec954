"""The uploaded workspace: a tar that is streamed to disk, hashed on the way, and in place only when it is whole."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from dgym.sidecar.answers import CallError
from dgym.wire.http import WORKSPACE_LIMIT, ErrorCode, WorkspaceResponse

_NAME = "workspace.tar"


class Uploads:
    """Keeps the last workspace that arrived whole."""

    def __init__(self, directory: Path, *, limit: int = WORKSPACE_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self.latest: WorkspaceResponse | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory / _NAME

    async def receive(self, chunks: AsyncIterator[bytes]) -> WorkspaceResponse:
        """Write the chunks down.

        Raises:
            CallError: They are more than the limit.
        """
        descriptor, name = tempfile.mkstemp(dir=self._directory, prefix="upload-")
        hashed, size = hashlib.sha256(), 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._limit:
                        raise CallError(ErrorCode.TOO_LARGE, f"a workspace has at most {self._limit:,} bytes")
                    hashed.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            os.replace(name, self.path)  # noqa: PTH105 - a rename does not block
        except BaseException:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108 - nor does this
            raise
        self.latest = WorkspaceResponse(bytes=size, sha256=hashed.hexdigest())
        return self.latest
