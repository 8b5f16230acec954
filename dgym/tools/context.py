"""A tool's view of the episode (files under policy, the session's breakpoints, the sandbox), and its answers.

Every file operation goes through ``resolve``, which applies ``.debugignore``, ``.debugreadonly`` and the workspace's
bounds both to the path as written and to where its symbolic links lead. The checks here keep honest models on the
path; what finally counts is checked again on the trusted side when the agent's changes are taken out.
"""

import stat

import msgspec

from dgym.errors import PathError
from dgym.sandbox import EntrypointResult, FileStat, FileType, Sandbox
from dgym.tools.breakpoint_table import BreakpointTable
from dgym.tools.text import nearest
from dgym.wire import Breakpoint, Frame, Score
from dgym.workspace import Policy, decode_text, is_generated, is_wide, normalize

READ_LIMIT = 16 * 1024**2
LIST_LIMIT = 10_000


class ToolError(Exception):
    """The tool cannot execute the call; the message names for the model the mistake and the valid values."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer with structured fields beside its text.

    ``rewrote`` counts against ``maxRewrites`` and fires ``on_rewrite`` with ``focus_file``; ``submitted`` ends the
    episode, with ``unscored`` without a score; ``evaluation`` is the output of the task's tests, for agents that keep
    it in view. The other fields go into the observation under the same name.
    """

    text: str
    ok: bool = True
    truncated_bytes: int = 0
    exit_status: int | None = None
    frame: Frame | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    diff: str | None = None
    score: Score | None = None
    focus_file: str | None = None
    rewrote: bool = False
    submitted: bool = False
    unscored: bool = False
    evaluation: str | None = None


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The task's settings for tools; times in seconds.

    ``debug_entrypoint``: what pdb runs, if not ``entrypoint``. ``scored_tests``: the ids that count (empty: every
    test that eval ran and did not skip). ``parser``: how the entrypoint's result is read, as in the task's
    scoring. ``build_commands``: what eval runs before the entrypoint if the workspace has changed. ``interpreter``:
    a Python 3 inside the sandbox for the tools' own helpers.
    """

    entrypoint: str = "python -m pytest -q"
    debug_entrypoint: str | None = None
    entrypoint_timeout_seconds: float = 300.0
    pdb_timeout_seconds: float = 60.0
    bash_timeout_seconds: float = 30.0
    scored_tests: tuple[str, ...] = ()
    parser: str = "auto"
    build_commands: tuple[str, ...] = ()
    build_timeout_seconds: float = 1800.0
    interpreter: str = "python3"


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A path of the workspace that policy lets a tool touch.

    ``path`` is relative with symbolic links resolved, ``shown`` as the model wrote it (normalised).
    """

    path: str
    shown: str
    type: FileType
    size: int = 0
    mode: int = 0
    read_only: bool = False

    @property
    def exists(self) -> bool:
        """Whether something stands there."""
        return self.type != "missing"


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Entries with their paths in the workspace, each directory directly before what it holds.

    Not ``complete`` when there are more than ``LIST_LIMIT``.
    """

    entries: list[tuple[str, FileStat]]
    complete: bool


class ToolContext:
    """The tools' view of one episode; a session makes one at each reset."""

    def __init__(self, sandbox: Sandbox, policy: Policy, settings: ToolSettings) -> None:
        self.sandbox = sandbox
        self.policy = policy
        self.settings = settings
        self.focus_file: str | None = None
        self.debugged: str | None = None
        """The entrypoint that pdb debugs, if not the task's."""
        self.debugged_stdin = ""
        """What the debugged program reads from standard input."""
        self.evaluated: EntrypointResult | None = None
        """The last run of the entrypoint by ``eval``."""
        self.built: str | None = None
        """The digest of the workspace after the build commands ran last."""
        self.table = BreakpointTable(sandbox)
        self._root: str | None = None

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The session's breakpoints, by number."""
        return self.table.breakpoints

    @breakpoints.setter
    def breakpoints(self, breakpoints: tuple[Breakpoint, ...]) -> None:
        self.table.breakpoints = breakpoints

    def breakpoint_lines(self, path: str) -> set[int]:
        """Lines of ``path`` that have one."""
        return {point.line for point in self.breakpoints if point.file == path}

    async def follow_edits(self) -> list[str]:
        """Move breakpoints with edits by a shell or the program; returns a sentence for each breakpoint dropped."""
        return await self.table.follow_edits()

    async def resolve(self, path: str, *, for_writing: bool = False, must_exist: bool = True) -> Resolved:
        """Apply policy to ``path``; ``ToolError`` when a tool may not touch it or misses it."""
        shown = self._normalize(path)
        root, found = await self._stat(shown)
        real = self._inside(root, found, shown)
        if found.type == "symlink":
            (found,) = await self.sandbox.stat([found.real_path])
        directory = found.type == "directory"
        if self._ignored(shown, directory) or self._ignored(real, directory):
            raise await self._refusal(shown, for_writing=for_writing)
        if found.type == "missing" and must_exist:
            raise await self._refusal(shown, for_writing=False)
        protected = self.policy.read_only(shown, directory) or self.policy.read_only(real, directory)
        if for_writing and protected:
            raise ToolError(f"`{shown}` is read-only and cannot be changed.")
        return Resolved(
            path=real,
            shown=shown,
            type=found.type,
            size=found.size,
            mode=stat.S_IMODE(found.mode),
            read_only=protected,
        )

    async def read_bytes(self, path: str) -> bytes:
        """The content of a visible file."""
        return await self.read_resolved(await self.resolve(path))

    async def read_text(self, path: str) -> str:
        """The text of a visible file, decoded as Python would; ``ToolError`` for a binary file."""
        resolved = await self.resolve(path)
        return as_text(await self.read_resolved(resolved), resolved.shown)

    async def read_resolved(self, resolved: Resolved) -> bytes:
        """The content of a file that ``resolve`` gave."""
        require_file(resolved)
        if resolved.size > READ_LIMIT:
            raise ToolError(f"`{resolved.shown}` has {resolved.size} bytes; files above {READ_LIMIT} are not read.")
        try:
            return await self.sandbox.read_file(resolved.path, limit=READ_LIMIT)
        except OSError as error:
            raise ToolError(f"`{resolved.shown}` cannot be read: {error.strerror or error}.") from error

    async def write_bytes(self, path: str, data: bytes) -> Resolved:
        """Replace or create a file that policy lets a tool write, with the directories above it."""
        resolved = await self.resolve(path, for_writing=True, must_exist=False)
        await self.write_resolved(resolved, data)
        return resolved

    async def write_resolved(self, resolved: Resolved, data: bytes) -> None:
        """Replace or create a file that ``resolve`` gave for writing."""
        if resolved.exists:
            require_file(resolved)
        try:
            await self.sandbox.write_file(resolved.path, data)
        except OSError as error:
            raise ToolError(f"`{resolved.shown}` cannot be written: {error.strerror or error}.") from error

    async def list_visible(self, path: str, depth: int) -> Listing:
        """The visible entries below the directory ``path`` (as ``resolve`` returned it).

        Each directory directly below is listed by its own request, so that hidden trees such as ``.git`` do not count
        against the limit.
        """
        listing = await self._list(path, 1)
        entries, complete = listing.entries, listing.complete
        for directory, entry in list(entries) if depth > 1 else []:
            if entry.type == "directory":
                below = await self._list(directory, depth - 1)
                complete = complete and below.complete and len(entries) + len(below.entries) <= LIST_LIMIT
                entries += below.entries[: max(LIST_LIMIT - len(entries), 0)]
        return Listing(entries=sorted(entries, key=lambda item: item[0].split("/")), complete=complete)

    async def _list(self, path: str, depth: int) -> Listing:
        try:
            entries = await self.sandbox.list_directory(path, depth=depth, limit=LIST_LIMIT)
        except OSError as error:
            raise ToolError(f"`{path}` cannot be listed: {error.strerror or error}.") from error
        above = "" if path == "." else f"{path}/"
        named = [(above + entry.path, entry) for entry in entries]
        shown = [(full, entry) for full, entry in named if not is_generated(full) and not self._hides(full, entry)]
        return Listing(entries=shown, complete=len(entries) < LIST_LIMIT)

    def _hides(self, path: str, entry: FileStat) -> bool:
        """Whether policy hides an entry, or what a symbolic link leads to."""
        if self.policy.ignored(path, entry.type == "directory"):
            return True
        root = f"{self._root}/"
        return (
            entry.type == "symlink"
            and entry.real_path.startswith(root)
            and self._ignored(entry.real_path[len(root) :], True)
        )

    def _ignored(self, path: str, directory: bool) -> bool:
        return path != "." and self.policy.ignored(path, directory)

    def _normalize(self, path: str) -> str:
        try:
            return normalize(path, self.sandbox.workspace)
        except PathError as error:
            raise ToolError(f"{error}.") from None

    async def _stat(self, path: str) -> tuple[str, FileStat]:
        """Where the workspace really is, and what stands at ``path``."""
        try:
            if self._root is None:
                (root,) = await self.sandbox.stat(["."])
                self._root = root.real_path or self.sandbox.workspace
            (found,) = await self.sandbox.stat([path])
        except OSError as error:
            raise ToolError(f"`{path}` cannot be reached: {error.strerror or error}.") from error
        return self._root, found

    def _inside(self, root: str, found: FileStat, shown: str) -> str:
        if found.real_path == root:
            return "."
        prefix = root.rstrip("/") + "/"
        if not found.real_path.startswith(prefix):
            raise ToolError(f"`{shown}` leads outside the workspace through a symbolic link.")
        return found.real_path[len(prefix) :]

    async def _refusal(self, shown: str, *, for_writing: bool) -> ToolError:
        """Hidden and missing files look alike to a reader; a writer learns that the name is taken."""
        if for_writing:
            return ToolError(f"`{shown}` is protected and cannot be written.")
        parent = shown.rpartition("/")[0]
        try:
            siblings = [path for path, _ in (await self.list_visible(parent or ".", depth=1)).entries]
        except ToolError:
            siblings = []
        return ToolError(f"`{shown}` does not exist.{nearest(shown, siblings)}")


def require_file(resolved: Resolved) -> None:
    """``ToolError`` unless it is a regular file."""
    if resolved.type == "directory":
        raise ToolError(f"`{resolved.shown}` is a directory, not a file.")
    if resolved.type != "file":
        raise ToolError(f"`{resolved.shown}` is not a regular file.")


def as_text(data: bytes, shown: str) -> str:
    """Decoded text; ``ToolError`` for a binary file."""
    if b"\0" in data[:8192] and not is_wide(data):
        raise ToolError(f"`{shown}` is a binary file of {len(data)} bytes.")
    return decode_text(data)
