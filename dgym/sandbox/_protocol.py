"""The interface of sandboxes, which all kinds of sandboxes implement.

A sandbox is one runner (``dgym/runner``) with one workspace, in a container, in a pod or under bubblewrap. Paths are
absolute inside the sandbox or relative to the workspace. Data from the runner is not trusted: sizes are limited, and
the caller applies its policies.

All methods of ``Sandbox`` raise ``dgym.errors.SandboxLost`` if the runner is gone. File operations that fail inside
raise ``OSError`` or one of its subclasses, such as ``FileNotFoundError``, ``IsADirectoryError``, ``NotADirectoryError``
and ``PermissionError``. ``TimeoutError`` is never raised: the result of a command reports its timeout.
"""

import re
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from dgym.wire import Breakpoint, Frame

EndedBy = Literal["exit", "timeout", "memory", "killed"]
MANIFEST_LIMIT = 250_000
"""Maximum number of paths of a workspace. Both manifests of an episode must fit into the memory of a sidecar."""

DIGEST_LIMIT = 10_000
"""Maximum number of paths of a workspace whose changes are digested after each call."""

SandboxKind = Literal["auto", "bubblewrap", "container", "none"]
"""The values of ``--sandbox``. The kinds of running sandboxes are listed at ``Sandbox.kind``."""

EngineName = Literal["auto", "docker", "podman"]
"""The values of ``--engine``."""

FileType = Literal["file", "directory", "symlink", "other", "missing"]


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the programs in one sandbox; None means unlimited.

    Attributes:
        memory_bytes: Memory of all programs together.
        processes: Number of processes.
        cpu_seconds: CPU time of each process.
        file_size_bytes: Size of each file that is written.
    """

    memory_bytes: int | None = 2 * 1024**3
    processes: int | None = 512
    cpu_seconds: int | None = 3600
    file_size_bytes: int | None = 2 * 1024**3


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of a sandbox, from the task.

    Attributes:
        workspace: Path of the repository inside the sandbox.
        environment: Environment variables of the task, in addition to those that are always passed on.
        activate: A shell line. All commands and the debugger run with the environment variables that it sets.
        interpreter: The Python interpreter of the runner, where it is in an image.
        python: An interpreter or virtual environment for the task's programs, which is put first on PATH. Only for
            local sandboxes. None: a virtual environment that has only pytest.
        limits: Resource limits.
    """

    workspace: str = "/workspace"
    environment: dict[str, str] = {}
    activate: str | None = None
    interpreter: str = "python3"
    python: str | None = None
    limits: SandboxLimits = SandboxLimits()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command.

    Attributes:
        exit_status: Exit status; negative for a signal, as in ``subprocess``. None if the command was not started.
        ended_by: Why the command ended.
        output: Standard output and standard error in the order in which they were written. If they exceed the limit,
            the middle is removed.
        truncated_bytes: Number of bytes removed from ``output``.
        report: Data that the command wrote to the report descriptor; see ``Sandbox.run``.
        cwd: Working directory after the command, in the persistent shell.
    """

    exit_status: int | None
    ended_by: EndedBy
    output: bytes
    truncated_bytes: int = 0
    duration_seconds: float = 0.0
    report: bytes = b""
    cwd: str | None = None

    @property
    def text(self) -> str:
        """The output as text. Bytes that are not UTF-8 are replaced, and terminal escape sequences are removed."""
        return without_escapes(self.output.decode("utf-8", "replace"))


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a path inside the sandbox.

    Attributes:
        real_path: The absolute path inside, with all symbolic links resolved.
        target: Target of a symbolic link.
    """

    path: str
    type: FileType
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    real_path: str = ""
    target: str = ""


class DebugRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One debugger command.

    If the program is not running, it is started with the breakpoints set. Then the command is executed.

    Attributes:
        command: A command of pdb.
        entrypoint: Command line of the program. The program is restarted if it has changed.
        breakpoints: Breakpoints, which keep their numbers.
        restart: Restart the program first.
        listing: Return ``source`` only if the location has changed, and omit the lines that pdb prints about the
            location.
        stdin: Standard input of the program. The program is restarted if it has changed.
    """

    command: str
    entrypoint: str
    breakpoints: tuple[Breakpoint, ...] = ()
    timeout_seconds: float = 60.0
    output_limit: int = 64 * 1024
    restart: bool = False
    listing: bool = False
    stdin: bytes = b""


class DebugResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a debugger command.

    Attributes:
        state: "stopped" at ``frame``; "ended" with ``exit_status``; "killed" by a signal or because it could not be
            interrupted; "idle" if no program runs, such as after ``q``.
        output: Output of the debugger.
        program_output: Output of the program since the last stop.
        source: Lines of source code around the frame.
        source_start: Line number of the first line of ``source``.
        notices: Sentences for the agent, such as that the program was restarted because calc.py changed, that a
            breakpoint was not hit, or that ``-n`` was removed.
        interrupted: The command exceeded its timeout.
        refused: The command is not supported, or the entrypoint cannot be debugged; ``output`` has the reason.
        failed: pdb reported an error.
    """

    state: Literal["stopped", "ended", "killed", "idle"]
    output: str = ""
    program_output: str = ""
    truncated_bytes: int = 0
    frame: Frame | None = None
    source: tuple[str, ...] = ()
    source_start: int = 0
    breakpoints: tuple[Breakpoint, ...] = ()
    exit_status: int | None = None
    notices: tuple[str, ...] = ()
    interrupted: bool = False
    refused: bool = False
    failed: bool = False


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One path of the workspace: a regular file with its hash, or a symbolic link with its target.

    The types "other" (socket, fifo, device) and "unnamed" (the name is not UTF-8; its bytes are escaped in the path)
    exist so that changes of such paths can be refused with a message.
    """

    type: Literal["file", "symlink", "other", "unnamed"]
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""


class WorkspaceDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of all changes of a workspace since its baseline, and the number of its paths.

    ``sha256`` is empty without a baseline, or if there are too many changes or paths.
    """

    sha256: Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")] = ""
    paths: Annotated[int, msgspec.Meta(ge=0, le=DIGEST_LIMIT)] = DIGEST_LIMIT


class Sandbox(Protocol):
    """A running sandbox. All methods may be called concurrently; calls of ``debug`` wait for each other."""

    @property
    def workspace(self) -> str:
        """Absolute path of the workspace inside the sandbox."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the sandbox: "bubblewrap", "none", "container" or "pod"."""
        ...

    @property
    def image(self) -> str:
        """Digest of the container's image; "" for other kinds and in a pod."""
        ...

    @property
    def overlay(self) -> str:
        """Path inside the sandbox of the virtual environment into which projects are installed; "" if it has none."""
        ...

    @property
    def acknowledged(self) -> int:
        """A counter that is increased before a command starts and with each answer.

        If it has not changed since a request was sent, that request has not been executed.
        """
        ...

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
        """Run a shell line (str) or a list of arguments, in a new process group.

        With ``report``, the command inherits a file descriptor whose number is in ``DGYM_REPORT_FD``. The data that it
        writes there (at most 16 MiB) is returned in ``RunResult.report``.
        """
        ...

    async def shell(self, command: str, *, timeout_seconds: float = 30.0, output_limit: int = 64 * 1024) -> RunResult:
        """Run in the persistent shell, which keeps its directory, variables, functions, aliases and options."""
        ...

    async def stat(self, paths: Sequence[str]) -> list[FileStat]:
        """Return a description of each path. ``type`` does not follow a symbolic link at the end of the path."""
        ...

    async def list_directory(self, path: str = ".", *, depth: int = 1, limit: int = 10_000) -> list[FileStat]:
        """Return the entries below ``path`` down to ``depth``, sorted by path. Their paths are relative to ``path``."""
        ...

    async def read_file(self, path: str, *, limit: int = 16 * 1024**2) -> bytes:
        """Return the contents of a file.

        Raises:
            OSError: EFBIG: the file has more than ``limit`` bytes.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a file atomically, and create its parent directories.

        A symbolic link at ``path`` is replaced, not followed. ``mode`` None keeps the mode of an existing file; a new
        file has 0644.
        """
        ...

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, links, and directories with their contents. Missing paths are ignored."""
        ...

    async def manifest(self, *, limit: int = MANIFEST_LIMIT) -> dict[str, ManifestEntry]:
        """Return all paths of the workspace (relative, POSIX), except ``.git``, caches and bytecode.

        Raises:
            OSError: E2BIG: there are more than ``limit`` files and directories, or their paths have more than about 50
                MiB.
        """
        ...

    async def changed(self) -> dict[str, ManifestEntry | None] | None:
        """Return the paths that may have changed since the baseline of ``digest``.

        It calls ``stat`` for each path, and reads the files whose size or ctime differs. A program cannot set back the
        ctime of a file.

        Returns:
            The entries by path, None for a deleted path. None if the baseline is missing or if there are too many
            changes.
        """
        ...

    async def digest(self, *, begin: bool = False) -> WorkspaceDigest:
        """Return a digest of the changes since the baseline: paths, types, executable bits and contents.

        With ``begin``, the current state becomes the baseline. Each path takes a ``stat``, about 4 µs. For files above
        1 MiB the size is digested instead of the contents. The digest is empty if there are more than ``DIGEST_LIMIT``
        files and directories.
        """
        ...

    async def put_archive(self, chunks: AsyncIterator[bytes], *, path: str = ".") -> None:
        """Unpack an uncompressed tar below ``path``."""
        ...

    async def install_project(self) -> Collection[str]:
        """Unpack the files of the installed project into the workspace and the overlay.

        The workspace must already have the source of the project.

        Returns:
            The paths of the workspace that are not in the source. Empty if the image contains the installed project.
        """
        ...

    def get_archive(self, paths: Sequence[str], *, path: str = ".") -> AsyncIterator[bytes]:
        """Return an uncompressed tar of ``paths``, which are below ``path``. Links are stored as links."""
        ...

    async def debug(self, request: DebugRequest) -> DebugResult:
        """Run one debugger command."""
        ...

    async def processes(self) -> list[int]:
        """Return the ids of the processes in the sandbox, except the runner. For tests and diagnosis."""
        ...

    async def end_processes(self) -> int:
        """Kill all processes in the sandbox except the runner, and return their number.

        Raises:
            OSError: EBUSY: some processes could not be killed.
        """
        ...

    async def stop(self) -> None:
        """Terminate all processes in the sandbox, and return when their termination is confirmed. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """Starts the two sandboxes of an episode. The caller must stop them."""

    async def sandbox(self) -> Sandbox:
        """Start the agent's sandbox, with an empty workspace.

        Raises:
            SandboxStartFailed: The sandbox did not start.
        """
        ...

    async def verifier(self) -> Sandbox:
        """Start the verifier, a sandbox with an empty workspace that the agent cannot access.

        Raises:
            SandboxStartFailed: The sandbox did not start.
        """
        ...


_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences (ECMA-48, 5.4)
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)


def without_escapes(text: str) -> str:
    """Remove terminal escape sequences from ``text``. Lines that a terminal would overwrite are kept."""
    return _SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text
