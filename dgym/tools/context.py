"""What a tool may know and do: files under policy, the session's breakpoints, the sandbox.

Every file operation goes through ``resolve``, which applies ``.debugignore``, ``.debugreadonly`` and the workspace's
bounds both to the path as written and to where its symbolic links lead. The checks here keep honest models on the
path; what finally counts is checked again on the trusted side when the agent's changes are taken out.
"""

import stat

import msgspec

from dgym.sandbox.protocol import FileStat, FileType, Sandbox
from dgym.tools.base import ToolError
from dgym.tools.breakpoint_table import BreakpointTable
from dgym.tools.settings import ToolSettings
from dgym.tools.text import nearest
from dgym.wire import Breakpoint
from dgym.workspace.edits import decode_text
from dgym.workspace.paths import PathError, normalize
from dgym.workspace.policy import Policy

READ_LIMIT = 16 * 1024**2


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


class ToolContext:
    """The tools' view of one episode; a session makes one at each reset."""

    def __init__(self, sandbox: Sandbox, policy: Policy, settings: ToolSettings) -> None:
        self.sandbox = sandbox
        self.policy = policy
        self.settings = settings
        self.focus_file: str | None = None
        self.table = BreakpointTable(sandbox)
        self._root: str | None = None

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The session's breakpoints, by number."""
        return self.table.breakpoints

    def breakpoint_lines(self, path: str) -> set[int]:
        """Lines of ``path`` that have one."""
        return {point.line for point in self.breakpoints if point.file == path}

    async def follow_edits(self) -> list[str]:
        """Move breakpoints along with changes a shell or the program made; sentences about those dropped."""
        return await self.table.follow_edits()

    async def resolve(self, path: str, *, for_writing: bool = False, must_exist: bool = True) -> Resolved:
        """Apply policy to ``path``; ``ToolError`` when a tool may not touch it or misses it."""
        shown = self._normalize(path)
        if self.policy.ignored(shown):
            raise await self._refusal(shown, for_writing=for_writing)
        root, found = await self._stat(shown)
        real = self._inside(root, found, shown)
        if real != shown and self.policy.ignored(real):
            raise await self._refusal(shown, for_writing=for_writing)
        if found.type == "symlink":
            (found,) = await self.sandbox.stat([found.real_path])
        if found.type == "missing" and must_exist:
            raise await self._refusal(shown, for_writing=False)
        directory = found.type == "directory"
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
        if resolved.exists:
            require_file(resolved)
        try:
            await self.sandbox.write_file(resolved.path, data)
        except OSError as error:
            raise ToolError(f"`{resolved.shown}` cannot be written: {error.strerror or error}.") from error
        return resolved

    def visible(self, path: str, entry: FileStat) -> bool:
        """Whether an entry of a listing may be shown."""
        return not self.policy.ignored(path, entry.type == "directory")

    def _normalize(self, path: str) -> str:
        try:
            return normalize(path, self.sandbox.workspace)
        except PathError as error:
            raise ToolError(f"{error} Paths are relative to the workspace and stay inside it.") from None

    async def _stat(self, path: str) -> tuple[str, FileStat]:
        """Where the workspace really is, and what stands at ``path``."""
        if self._root is None:
            root, found = await self.sandbox.stat([".", path])
            self._root = root.real_path or self.sandbox.workspace
            return self._root, found
        (found,) = await self.sandbox.stat([path])
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
        parent, _, name = shown.rpartition("/")
        try:
            siblings = await self.sandbox.list_directory(parent or ".", depth=1, limit=1000)
        except OSError:
            siblings = []
        join = f"{parent}/" if parent else ""
        names = [join + entry.path for entry in siblings if self.visible(join + entry.path, entry)]
        return ToolError(f"`{shown}` does not exist.{nearest(join + name, names)}")


def require_file(resolved: Resolved) -> None:
    """``ToolError`` unless it is a regular file."""
    if resolved.type == "directory":
        raise ToolError(f"`{resolved.shown}` is a directory, not a file.")
    if resolved.type != "file":
        raise ToolError(f"`{resolved.shown}` is not a regular file.")


def as_text(data: bytes, shown: str) -> str:
    """Decoded text; ``ToolError`` for a binary file."""
    if b"\0" in data[:8192]:
        raise ToolError(f"`{shown}` is a binary file of {len(data)} bytes.")
    return decode_text(data)
