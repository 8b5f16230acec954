"""What every sandbox can do, wherever it runs: the seam between trusted code and the runner.

A sandbox is one runner (``dgym/runner``) inside a container, a pod or bubblewrap, with one workspace. Paths are
absolute inside the sandbox or relative to the workspace. Nothing that comes back is trusted: sizes are bounded, and
policy is applied by the caller.

Every method raises ``dgym.errors.SandboxLost`` when the runner is gone, ``FileNotFoundError`` /
``IsADirectoryError`` / ``NotADirectoryError`` / ``PermissionError`` / ``OSError`` for file operations that failed
inside, and ``TimeoutError`` never: commands that run out of time are results.
"""

import re
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from dgym.wire import Breakpoint, Frame

EndedBy = Literal["exit", "timeout", "memory", "killed"]
MANIFEST_LIMIT = 250_000
"""Files and directories of a workspace; both manifests of an episode fit into the memory of a sidecar."""

DIGEST_LIMIT = 10_000
"""Files and directories of a workspace whose changes are digested after a call."""

SandboxKind = Literal["auto", "bubblewrap", "container", "none"]
"""The values of ``--sandbox``; a running sandbox is of one of the kinds in ``Sandbox.kind``."""

EngineName = Literal["auto", "docker", "podman"]
"""The values of ``--engine``."""

FileType = Literal["file", "directory", "symlink", "other", "missing"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what runs inside one sandbox; None means unbounded."""

    memory_bytes: int | None = 2 * 1024**3
    processes: int | None = 512
    cpu_seconds: int | None = 3600
    file_size_bytes: int | None = 2 * 1024**3


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox needs to know of a task before it starts.

    ``workspace``: where the repository stands inside. ``environment``: the task's own variables, added to the
    allow-list. ``activate``: a shell line whose resulting environment every command and the debugger run in.
    ``interpreter``: runs the runner. ``python``: a virtual environment or interpreter for the task's programs, put
    first on PATH (local sandboxes; None: a bare one with pytest).
    """

    workspace: str = "/workspace"
    environment: dict[str, str] = {}
    activate: str | None = None
    interpreter: str = "python3"
    python: str | None = None
    limits: Limits = Limits()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. ``output`` is standard output and error in the order they were written, head and tail.

    ``exit_status`` is negative for a signal, as in ``subprocess``; None when it never started. ``report`` is what
    the command wrote to the report descriptor (see ``run``).
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
        """The output as text: bytes that are not UTF-8 are replaced, escape sequences of terminals left out."""
        return without_escapes(self.output.decode("utf-8", "replace"))


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    """A path inside the sandbox. ``real_path`` has every symbolic link resolved (absolute, inside)."""

    path: str
    type: FileType
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    real_path: str = ""
    target: str = ""


class DebugRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One debugger command.

    The program is started (or restarted) lazily under ``entrypoint`` with ``breakpoints`` restored under their
    numbers, then ``command`` runs. ``stdin`` is what the program reads from standard input. ``restart`` drops a
    running program first; an ``entrypoint`` or ``stdin`` other than the running program's also restarts. With
    ``listing`` the answer has ``source`` only when the place has changed, and then not pdb's own lines about it.
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
    """The debugger's answer.

    ``output``: what the debugger said. ``program_output``: what the program wrote since the last stop. ``state``:
    "stopped" at ``frame``; "ended" with ``exit_status``; "killed" (it could not be interrupted or died of a
    signal); "idle" (no program runs: after ``q``). ``source``: lines around the frame, the first being number
    ``source_start``. ``notices``: sentences the agent must know (restarted because calc.py changed; breakpoint 2
    was never hit because …; -n removed). ``interrupted``: the command hit its timeout. ``refused``: the command is
    not supported or the entrypoint cannot be debugged; ``output`` says why. ``failed``: pdb answered it with an error.
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

    ``type`` "other" (socket, fifo, device) and "unnamed" (the name is not UTF-8, its bytes are escaped in the path)
    appear so that a change of them can be refused and named.
    """

    type: Literal["file", "symlink", "other", "unnamed"]
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""


class WorkspaceDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of all changes of a workspace since its baseline, and the number of its paths.

    ``sha256`` is empty when there is no baseline yet or too much has changed.
    """

    sha256: Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")] = ""
    paths: Annotated[int, msgspec.Meta(ge=0, le=DIGEST_LIMIT)] = DIGEST_LIMIT


class Sandbox(Protocol):
    """One running sandbox. All methods may be called concurrently, except that debug calls queue."""

    @property
    def workspace(self) -> str:
        """The workspace's absolute path as programs inside see it."""
        ...

    @property
    def kind(self) -> str:
        """One of bubblewrap, none, container and pod."""
        ...

    @property
    def image(self) -> str:
        """The digest of the container's image; "" without a container, and in a pod."""
        ...

    @property
    def overlay(self) -> str:
        """The path inside of the environment that projects are installed into; "" if the image has its own."""
        ...

    @property
    def acknowledged(self) -> int:
        """Grows before a command begins, and with every answer: unchanged, nothing that was sent since has begun."""
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
        """Run a shell line (str) or an argument list, in its own process group.

        With ``report`` the command inherits a descriptor whose number is in ``DGYM_REPORT_FD``; what it writes
        there (at most 16 MiB) comes back in ``RunResult.report``.
        """
        ...

    async def shell(self, command: str, *, timeout_seconds: float = 30.0, output_limit: int = 64 * 1024) -> RunResult:
        """Run in the persistent shell: directory, variables, functions, aliases and options carry over."""
        ...

    async def stat(self, paths: Sequence[str]) -> list[FileStat]:
        """Describe each path (not following a final symbolic link for ``type``)."""
        ...

    async def list_directory(self, path: str = ".", *, depth: int = 1, limit: int = 10_000) -> list[FileStat]:
        """Entries below ``path`` down to ``depth``, sorted by path; ``path`` of each is relative to ``path``."""
        ...

    async def read_file(self, path: str, *, limit: int = 16 * 1024**2) -> bytes:
        """The file's bytes; ``OSError`` (EFBIG) above ``limit``."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Replace or create atomically, parents included; ``mode`` None keeps the old mode (0644 when new)."""
        ...

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, links and whole directories; a missing one is fine."""
        ...

    async def manifest(self, *, limit: int = MANIFEST_LIMIT) -> dict[str, ManifestEntry]:
        """Every path of the workspace (relative, POSIX) but ``.git``, caches and bytecode.

        ``OSError`` (E2BIG) above ``limit`` files and directories, or when their paths have more than about 50 MiB.
        """
        ...

    async def changed(self) -> dict[str, ManifestEntry | None] | None:
        """The entries of the paths that may have changed since the baseline of ``digest``; None for a deleted path.

        Returns None if the baseline is missing or too much has changed. It takes a ``stat`` of each path and reads the
        files whose size or time of change differs. A program cannot set back the time of change.
        """
        ...

    async def digest(self, *, begin: bool = False) -> WorkspaceDigest:
        """Digest paths, types, executable bits and contents of what has changed since the baseline.

        ``begin`` makes the present state the baseline. Costs a ``stat`` of each path: about 4 µs. Files above 1 MiB
        count with their size. There is no digest above ``DIGEST_LIMIT`` files and directories.
        """
        ...

    async def put_archive(self, chunks: AsyncIterator[bytes], *, path: str = ".") -> None:
        """Unpack an uncompressed tar below ``path``."""
        ...

    async def install_project(self) -> Collection[str]:
        """Write what the installation of the project wrote, into the workspace, which holds its source, and beside it.

        Returns the workspace's paths that the source does not have; none if the image has the project.
        """
        ...

    def get_archive(self, paths: Sequence[str], *, path: str = ".") -> AsyncIterator[bytes]:
        """The named paths below ``path`` as an uncompressed tar (links as links)."""
        ...

    async def debug(self, request: DebugRequest) -> DebugResult:
        """Run one debugger command; see ``DebugRequest``."""
        ...

    async def processes(self) -> list[int]:
        """Process ids alive inside, other than the runner's own (for tests and diagnosis)."""
        ...

    async def end_processes(self) -> int:
        """Kill every process inside other than the runner; returns how many ran.

        ``OSError`` (EBUSY) when some are left that cannot be killed.
        """
        ...

    async def stop(self) -> None:
        """Terminate everything inside; return once termination is confirmed. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """Opens the two sandboxes of an episode; the caller stops each one it opened."""

    async def sandbox(self) -> Sandbox:
        """Start the agent's sandbox (empty workspace); ``SandboxStartFailed`` when it does not come up."""
        ...

    async def verifier(self) -> Sandbox:
        """Start the verifier (empty workspace), never touched by the agent."""
        ...


_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences (ECMA-48, 5.4)
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)


def without_escapes(text: str) -> str:
    """``text`` without its escape sequences; lines that a terminal would overwrite stay."""
    return _SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text
