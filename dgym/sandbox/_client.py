"""The client of the runner: all of the ``Sandbox`` protocol except ``kind`` and ``stop``, over one connection.

Each kind of sandbox (bubblewrap, a plain process, a container) is a subclass. The type and size of every answer are
checked. An invalid answer raises ``SandboxLost``.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SandboxLost
from dgym.sandbox._channel import Channel
from dgym.sandbox._protocol import (
    DIGEST_LIMIT,
    MANIFEST_LIMIT,
    DebugRequest,
    DebugResult,
    FileStat,
    ManifestEntry,
    RunResult,
    SandboxSpec,
    WorkspaceDigest,
)

T = TypeVar("T")

_SMALL = 60.0
_LARGE = 900.0
_MARGIN = 60.0
_MiB = 1024**2
_REPORT_LIMIT = 16 * _MiB
_LISTING_LIMIT = 64 * _MiB
_MANIFEST_LIMIT = 65 * _MiB  # larger than the runner's own limit, which does not include line ends
_LINE_LIMIT = 64 * 1024
_LONGEST_PATH = 4096
_MOST_CHANGED = 2_000
"""Maximum number of changes that the runner sends. If there are more, it does not send any of them."""
_MANIFEST_LINE = msgspec.json.Decoder(tuple[str, ManifestEntry | None])


class RunnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A runner's answer to ``configure``."""

    pid: int
    workspace: str
    scratch: str


class ClearedIpc(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects of an IPC namespace were removed, and how many could not be removed."""

    removed: int
    left: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the result of an episode about objects that its sandbox left behind."""
        what = "System V objects and message queues that the sandbox left"
        removed = (f"removed before the tests: {self.removed} {what}",) if self.removed else ()
        return (*removed, f"not to be removed before the tests: {self.left} {what}") if self.left else removed


class RunnerClient:
    """Client of one runner. Calls may be concurrent; debugger calls wait for each other.

    The methods of :class:`dgym.sandbox._protocol.Sandbox` are documented there.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._channel = Channel(reader, writer)
        self._debugging = asyncio.Lock()
        self._workspace = ""

    @property
    def workspace(self) -> str:
        """Absolute path of the workspace in the sandbox; "" before ``configure``."""
        return self._workspace

    @property
    def image(self) -> str:
        """See ``Sandbox.image``; "" unless a subclass overrides it."""
        return ""

    @property
    def overlay(self) -> str:
        """See ``Sandbox.overlay``; "" unless a subclass overrides it."""
        return ""

    @property
    def lost(self) -> bool:
        """Whether the connection to the runner is lost."""
        return self._channel.lost

    @property
    def acknowledged(self) -> int:
        """See ``Sandbox.acknowledged``."""
        return self._channel.acknowledged

    async def configure(self, spec: SandboxSpec, *, inherit_environment: bool = False) -> RunnerInfo:
        """Send the specification to the runner.

        Args:
            spec: The specification.
            inherit_environment: Keep the environment variables of the runner process, such as those of a container
                image.

        Raises:
            SetupFailed: ``activate`` failed.
        """
        arguments = {
            "workspace": spec.workspace,
            "environment": spec.environment,
            "activate": spec.activate,
            "python": spec.python,
            "limits": msgspec.to_builtins(spec.limits),
            "inherit": inherit_environment,
        }
        result, _ = await self._channel.call("configure", arguments, limit=_MiB, deadline=360.0)
        info = _convert(result, RunnerInfo)
        self._workspace = info.workspace
        return info

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        environment: dict[str, str] | None = None,
        stdin: bytes = b"",
        timeout_seconds: float = 30.0,
        output_limit: int = 64 * 1024,
        report: bool = False,
    ) -> RunResult:
        """Run a shell line or an argument list; see ``Sandbox.run``."""
        arguments = {
            "command": command if isinstance(command, str) else list(command),
            "cwd": cwd,
            "environment": environment or {},
            "timeout": timeout_seconds,
            "limit": output_limit,
            "report": report,
        }
        return await self._command(
            "run",
            arguments,
            stdin,
            limit=output_limit + 4096 + (_REPORT_LIMIT if report else 0),
            deadline=timeout_seconds + _MARGIN,
        )

    async def shell(self, command: str, *, timeout_seconds: float = 30.0, output_limit: int = 64 * 1024) -> RunResult:
        """Run in the persistent shell; see ``Sandbox.shell``.

        Calls wait for each other. The timeout begins when the command starts.
        """
        return await self._command(
            "shell",
            {"command": command, "timeout": timeout_seconds, "limit": output_limit},
            limit=output_limit + 4096,
            deadline=2 * timeout_seconds + _MARGIN,
        )

    async def stat(self, paths: Sequence[str]) -> list[FileStat]:
        """Return a description of each path; see ``Sandbox.stat``."""
        result = await self._listing("stat", {}, names(paths))
        if len(result) != len(paths):
            raise SandboxLost("the runner described other paths than were requested")
        return result

    async def list_directory(self, path: str = ".", *, depth: int = 1, limit: int = 10_000) -> list[FileStat]:
        """Return the entries below ``path``; see ``Sandbox.list_directory``."""
        return (await self._listing("list", {"path": path, "depth": depth, "limit": limit}))[:limit]

    async def read_file(self, path: str, *, limit: int = 16 * 1024**2) -> bytes:
        """Return the contents of a file; see ``Sandbox.read_file``."""
        _, payload = await self._channel.call("read", {"path": path, "limit": limit}, limit=limit, deadline=_LARGE)
        return payload

    async def write_file(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a file; see ``Sandbox.write_file``."""
        await self._channel.call("write", {"path": path, "mode": mode}, body=data, limit=0, deadline=_LARGE)

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, links and directories; see ``Sandbox.remove``."""
        await self._channel.call("remove", {}, body=names(paths), limit=0, deadline=_LARGE)

    async def manifest(self, *, limit: int = MANIFEST_LIMIT) -> dict[str, ManifestEntry]:
        """Return all paths of the workspace with their hashes; see ``Sandbox.manifest``."""
        try:
            async with asyncio.timeout(_LARGE):
                lines = await self._lines("manifest", limit, most=limit)
                return {path: entry for path, entry in lines.items() if entry is not None}
        except TimeoutError:
            raise SandboxLost(f"the runner's manifest took longer than {_LARGE:.0f} s") from None

    async def changed(self) -> dict[str, ManifestEntry | None] | None:
        """Return the paths that may have changed since the baseline of ``digest``; see ``Sandbox.changed``."""
        try:
            async with asyncio.timeout(_LARGE):
                return await self._lines("changed", DIGEST_LIMIT, most=_MOST_CHANGED)
        except TimeoutError:
            raise SandboxLost(f"the runner's list of changes took longer than {_LARGE:.0f} s") from None
        except OSError:
            return None

    async def digest(self, *, begin: bool = False) -> WorkspaceDigest:
        """Return the digest of the workspace's changes since its baseline; see ``Sandbox.digest``."""
        arguments = {"begin": begin, "limit": DIGEST_LIMIT}
        try:
            result, _ = await self._channel.call("digest", arguments, limit=_MiB, deadline=_LARGE)
        except OSError:
            return WorkspaceDigest()
        return _convert(result, WorkspaceDigest)

    async def put_archive(self, chunks: AsyncIterator[bytes], *, path: str = ".") -> None:
        """Unpack an uncompressed tar below ``path``; see ``Sandbox.put_archive``."""
        await self._channel.call("unpack", {"path": path}, body=chunks, limit=0, deadline=_LARGE)

    async def install_project(self) -> Collection[str]:
        """Do nothing: the image contains the installed project. See ``Sandbox.install_project``."""
        return ()

    def get_archive(self, paths: Sequence[str], *, path: str = ".") -> AsyncIterator[bytes]:
        """Yield an uncompressed tar of ``paths``; see ``Sandbox.get_archive``. The caller must limit the size."""
        return self._channel.stream("pack", {"path": path}, body=names(paths), idle=_SMALL)

    async def debug(self, request: DebugRequest) -> DebugResult:
        """Run one debugger command; see ``DebugRequest``."""
        arguments = msgspec.structs.asdict(request)
        stdin = arguments.pop("stdin")
        arguments["breakpoints"] = [msgspec.structs.asdict(each) for each in request.breakpoints]
        async with self._debugging:
            result, _ = await self._channel.call(
                "debug",
                arguments,
                body=stdin,
                limit=16 * request.output_limit + 16 * _MiB,
                deadline=request.timeout_seconds + 2 * _MARGIN,
            )
        return _debug_result(result)

    async def processes(self) -> list[int]:
        """Return the ids of the processes in the sandbox; see ``Sandbox.processes``."""
        result, _ = await self._channel.call("processes", {}, limit=_MiB, deadline=_SMALL)
        return _convert(result, list[int])

    async def end_processes(self) -> int:
        """Kill all processes in the sandbox and return their number; see ``Sandbox.end_processes``."""
        result, _ = await self._channel.call("end_processes", {}, limit=_MiB, deadline=_SMALL)
        return _convert(result, int)

    async def clear_ipc(self) -> ClearedIpc:
        """Remove all System V objects and POSIX message queues of the runner's IPC namespace.

        Only for containers that have a separate IPC namespace. Otherwise the machine's objects would be removed.
        """
        result, _ = await self._channel.call("clear_ipc", {}, limit=_MiB, deadline=_SMALL)
        return _convert(result, ClearedIpc)

    async def close(self) -> None:
        """Request the runner to exit, which kills all of its processes, and close the connection. Idempotent."""
        await self._channel.close()

    async def _command(
        self, op: str, arguments: dict[str, Any], stdin: bytes = b"", *, limit: int, deadline: float
    ) -> RunResult:
        """Run a command. If it cannot be sent, return a result instead of raising: the agent wrote the command."""
        try:
            result, payload = await self._channel.call(op, arguments, body=stdin, limit=limit, deadline=deadline)
        except OSError as error:
            if error.errno not in (errno.E2BIG, errno.EILSEQ):
                raise
            message = f"cannot run the command: {error.strerror}\n"
            return RunResult(exit_status=None, ended_by="exit", output=message.encode("utf-8", "replace"))
        return _run_result(result, payload)

    async def _lines(self, op: str, limit: int, *, most: int) -> dict[str, ManifestEntry | None]:
        manifest: dict[str, ManifestEntry | None] = {}
        rest, size = b"", 0
        async with aclosing(self._channel.stream(op, {"limit": limit}, idle=_LARGE)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                lines, _, rest = (rest + chunk).rpartition(b"\n")
                manifest.update(_manifest_lines(lines))
                if len(manifest) > most or len(rest) > _LINE_LIMIT or size > _MANIFEST_LIMIT:
                    raise SandboxLost("the runner's manifest is larger than was requested")
        if rest:
            raise SandboxLost("the runner's manifest is cut off")
        return manifest

    async def _listing(self, op: str, arguments: dict[str, Any], body: bytes = b"") -> list[FileStat]:
        result, _ = await self._channel.call(op, arguments, body=body, limit=_LISTING_LIMIT, deadline=_SMALL)
        return _convert(result, list[FileStat])


def names(paths: Iterable[str]) -> bytes:
    """Encode paths as the body of a request, each with a final NUL. A long list would not fit into a header.

    Raises:
        OSError: A path is not valid text, contains NUL, or has more than 4,096 bytes.
    """
    encoded = bytearray()
    for path in paths:
        try:
            name = path.encode()
        except UnicodeEncodeError as error:
            raise OSError(errno.EILSEQ, f"the path is not text: {error}", ascii(path)) from None
        if b"\0" in name:
            raise OSError(errno.EINVAL, "a path cannot contain NUL", path)
        if len(name) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        encoded += name + b"\0"
    return bytes(encoded)


def _manifest_lines(lines: bytes) -> list[tuple[str, ManifestEntry | None]]:
    try:
        entries = _MANIFEST_LINE.decode_lines(lines)
    except DECODE_ERRORS as error:
        raise SandboxLost(f"the runner's manifest cannot be decoded: {error}") from None
    for path, _ in entries:
        if path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise SandboxLost(f"the runner's manifest names {path!r}")
    return entries


def _convert(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SandboxLost(f"the runner's answer is invalid: {error}") from None


def _run_result(result: Any, payload: bytes) -> RunResult:
    if not isinstance(result, dict) or not isinstance(size := result.pop("output_bytes", None), int):
        raise SandboxLost("the runner's answer is invalid")
    return _convert({**result, "output": memoryview(payload[:size]), "report": memoryview(payload[size:])}, RunResult)


def _debug_result(result: Any) -> DebugResult:
    """Convert the answer to ``debug``. The runner sends the fields of breakpoints in snake_case, not camelCase."""
    if isinstance(result, dict) and isinstance(breakpoints := result.get("breakpoints"), list):
        result["breakpoints"] = [
            {("ignoreCount" if name == "ignore_count" else name): value for name, value in each.items()}
            if isinstance(each, dict)
            else each
            for each in breakpoints
        ]
    return _convert(result, DebugResult)
