"""The arguments and results of tools: files of the workspace, breakpoints, settings.

Every file operation calls ``resolve``. It applies ``.debugignore``, ``.debugreadonly`` and the bounds of the workspace
to the path as written and to the target of its symbolic links.

These checks only give early feedback to the model: other programs in the sandbox can bypass them. The policy is
enforced on the trusted side, when the agent's changes are exported as a patch.
"""

import shlex
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated

import msgspec

from dgym.errors import PathError, nearest
from dgym.sandbox import EntrypointResult, FileStat, FileType, Sandbox
from dgym.wire import Breakpoint, Frame, Score
from dgym.workspace import LineMatcher, LineRange, Policy, decode_text, is_generated, is_wide, normalize, split_lines

OutputBytes = Annotated[int, msgspec.Meta(ge=1024, le=56 * 1024)]
"""The type of the option ``outputBytes``. Its maximum fits into an observation."""
OUTPUT_BYTES = 8 * 1024
"""The default is small, because every later request to the model contains the observation again."""
READ_LIMIT = 16 * 1024**2
LIST_LIMIT = 10_000
Shifted = tuple[tuple[Breakpoint, ...], tuple[Breakpoint, ...]]
"""The remaining breakpoints with their new lines, and the dropped breakpoints with their old lines."""


class ToolError(Exception):
    """The tool cannot execute the call. The message is for the model: it describes the mistake and the valid values."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call: a text and structured fields.

    Fields that are not listed here are copied to the field of the observation with the same name.

    Attributes:
        rewrote: Whether the call counts against ``maxRewrites`` and ``on_rewrite`` is called with ``focus_file``.
        submitted: Whether the call ends the episode.
        unscored: Whether the episode is not scored. Only with ``submitted``.
        evaluation: Output of the task's tests, for agents that show it permanently.
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
    """The task's settings for tools.

    Attributes:
        entrypoint: Command that runs the tests.
        debug_entrypoint: Command that ``pdb`` debugs. Default: ``entrypoint``.
        entrypoint_timeout_seconds: Timeout of ``entrypoint`` in ``eval``.
        pdb_timeout_seconds: Default timeout of a ``pdb`` command.
        bash_timeout_seconds: Default timeout of a ``bash`` command.
        scored_tests: Ids of the tests that determine the score. Empty: all tests that ``eval`` runs and does not skip.
        parser: How the result of the entrypoint is read, as in the task's scoring.
        build_commands: Commands that ``eval`` runs before the entrypoint if the workspace has changed.
        build_timeout_seconds: Timeout of each build command.
        interpreter: A Python 3 interpreter in the sandbox, for the helper scripts of tools.
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
    """A path of the workspace that the policy allows tools to access.

    Attributes:
        path: Relative path with symbolic links resolved.
        shown: Normalized path as written by the model.
        type: Type of the file; ``missing`` if it does not exist.
        size: Size in bytes.
        mode: Permission bits.
        read_only: Whether the policy forbids writing.
    """

    path: str
    shown: str
    type: FileType
    size: int = 0
    mode: int = 0
    read_only: bool = False

    @property
    def exists(self) -> bool:
        """True if a file of any type exists at the path."""
        return self.type != "missing"


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Entries with their paths in the workspace. Each directory comes directly before its contents.

    ``complete`` is False if there are more than ``LIST_LIMIT`` entries.
    """

    entries: list[tuple[str, FileStat]]
    complete: bool


class ToolContext:
    """The state of one episode that tools share. A session creates it at each reset.

    Attributes:
        sandbox: The sandbox of the agent.
        policy: The hidden and the read-only files.
        settings: The task's settings.
        focus_file: The file that was last viewed as a whole or rewritten.
        table: The breakpoints.
    """

    def __init__(self, sandbox: Sandbox, policy: Policy, settings: ToolSettings) -> None:
        self.sandbox = sandbox
        self.policy = policy
        self.settings = settings
        self.focus_file: str | None = None
        self.debugged: str | None = None
        """The entrypoint that the agent gave to ``pdb``. None: that of the task."""
        self.debugged_stdin = ""
        """Standard input of the debugged program."""
        self.evaluated: EntrypointResult | None = None
        """The last run of the entrypoint by ``eval``."""
        self.built: str | None = None
        """Digest of the workspace after the last build. None before the first build and after a failed one."""
        self.table = BreakpointTable(sandbox)
        self._root: str | None = None

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The session's breakpoints."""
        return self.table.breakpoints

    @breakpoints.setter
    def breakpoints(self, breakpoints: tuple[Breakpoint, ...]) -> None:
        self.table.breakpoints = breakpoints

    def breakpoint_lines(self, path: str) -> set[int]:
        """Return the lines of ``path`` that have a breakpoint."""
        return {point.line for point in self.breakpoints if point.file == path}

    async def follow_edits(self) -> list[str]:
        """See ``BreakpointTable.follow_edits``."""
        return await self.table.follow_edits()

    async def resolve(self, path: str, *, for_writing: bool = False, must_exist: bool = True) -> Resolved:
        """Check that tools may access ``path``, and resolve its symbolic links.

        Args:
            path: A path relative to the workspace.
            for_writing: Whether the file is going to be written.
            must_exist: Whether a missing file is an error.

        Raises:
            ToolError: The path is outside the workspace, hidden, missing, or read-only with ``for_writing``.
        """
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
        """Return the content of a file. Raises ToolError if it cannot be read."""
        return await self.read_resolved(await self.resolve(path))

    async def read_text(self, path: str) -> str:
        """Return the text of a file, decoded as Python decodes source files.

        Raises:
            ToolError: The file is binary or cannot be read.
        """
        resolved = await self.resolve(path)
        return as_text(await self.read_resolved(resolved), resolved.shown)

    async def read_resolved(self, resolved: Resolved) -> bytes:
        """Return the content of a file that ``resolve`` returned.

        Raises:
            ToolError: The file is not a regular file, exceeds ``READ_LIMIT`` or cannot be read.
        """
        require_file(resolved)
        if resolved.size > READ_LIMIT:
            raise ToolError(f"`{resolved.shown}` has {resolved.size} bytes; files above {READ_LIMIT} are not read.")
        try:
            return await self.sandbox.read_file(resolved.path, limit=READ_LIMIT)
        except OSError as error:
            raise ToolError(f"`{resolved.shown}` cannot be read: {error.strerror or error}.") from error

    async def write_bytes(self, path: str, data: bytes) -> Resolved:
        """Replace or create a file. Missing parent directories are created.

        Raises:
            ToolError: The policy forbids writing the file, or writing failed.
        """
        resolved = await self.resolve(path, for_writing=True, must_exist=False)
        await self.write_resolved(resolved, data)
        return resolved

    async def write_resolved(self, resolved: Resolved, data: bytes) -> None:
        """Replace or create a file that ``resolve`` returned with ``for_writing``.

        Raises:
            ToolError: The path is not a regular file, or writing failed.
        """
        if resolved.exists:
            require_file(resolved)
        try:
            await self.sandbox.write_file(resolved.path, data)
        except OSError as error:
            raise ToolError(f"`{resolved.shown}` cannot be written: {error.strerror or error}.") from error

    async def list_visible(self, path: str, depth: int) -> Listing:
        """Return the visible entries below the directory ``path``, which ``resolve`` returned.

        Each direct subdirectory is listed with its own request, so that hidden directories such as ``.git`` do not
        count against ``LIST_LIMIT``.
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
        """Return True if the policy hides the entry, or the target of a symbolic link."""
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
        """Return the real path of the workspace, and the stat of ``path``."""
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
        """Return the error for a hidden or missing path.

        For reading, both have the same message, so that it does not reveal hidden files. For writing, the message shows
        that the path is protected.
        """
        if for_writing:
            return ToolError(f"`{shown}` is protected and cannot be written.")
        parent = shown.rpartition("/")[0]
        try:
            siblings = [path for path, _ in (await self.list_visible(parent or ".", depth=1)).entries]
        except ToolError:
            siblings = []
        return ToolError(f"`{shown}` does not exist.{did_you_mean(shown, siblings)}")


def require_file(resolved: Resolved) -> None:
    """Raise ToolError if the path is not a regular file."""
    if resolved.type == "directory":
        raise ToolError(f"`{resolved.shown}` is a directory, not a file.")
    if resolved.type != "file":
        raise ToolError(f"`{resolved.shown}` is not a regular file.")


def as_text(data: bytes, shown: str) -> str:
    """Decode the content of a file. Raises ToolError if it is binary."""
    if b"\0" in data[:8192] and not is_wide(data):
        raise ToolError(f"`{shown}` is a binary file of {len(data)} bytes.")
    return decode_text(data)


def split_words(text: str) -> list[str]:
    """Split a text into words as a shell does. Raises ValueError if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        reason = str(error).lower().rstrip(".")
        raise ValueError(f"cannot be split into words: {reason}. Quote words as in a shell.") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean `x`?"`` for the closest known word; empty if none is close."""
    guess = nearest(word, known)
    return f" Did you mean `{guess}`?" if guess else ""


def numbered(
    lines: Sequence[str], first: int, *, breakpoints: Collection[int] = (), current: int | None = None
) -> list[str]:
    """Return the lines with their numbers, ``B`` at breakpoints and ``->`` at the current line."""
    width = len(str(first + len(lines)))
    arrow = "   " if current is not None else ""
    rendered = []
    for number, line in enumerate(lines, first):
        pointer = "-> " if number == current else arrow
        mark = "B" if number in breakpoints else " "
        rendered.append(f"{pointer}{mark} {number:>{width}}  {line}".rstrip())
    return rendered


def cut_notice(cut: int, advice: str) -> str:
    """Return a sentence about the number of bytes that were cut from an output; empty if none were cut."""
    return f"{plural(cut, 'byte')} cut; {advice}." if cut else ""


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: ``"1 line"``, ``"2 lines"``, ``"2 matches"``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


class _Snapshot(msgspec.Struct, frozen=True):
    text: str
    identity: tuple[str, int, int]


class BreakpointTable:
    """Breakpoints, and the last known text of each file that has one.

    When breakpoints move, the running program is not notified. The debugger gets the whole table with the next command,
    and restarts the program if a loaded file has changed.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self._sandbox = sandbox
        self._snapshots: dict[str, _Snapshot] = {}

    async def replace(self, breakpoints: Sequence[Breakpoint]) -> None:
        """Replace the table by that of the debugger, and store the text of files that had no breakpoint before."""
        self.breakpoints = tuple(breakpoints)
        files = {point.file for point in breakpoints}
        for file in self._snapshots.keys() - files:
            del self._snapshots[file]
        await self._remember(files - self._snapshots.keys())

    def clear(self) -> None:
        """Remove all breakpoints."""
        self.breakpoints, self._snapshots = (), {}

    async def follow_edits(self) -> list[str]:
        """Move breakpoints after edits by a shell or by the program. Returns a sentence per dropped breakpoint."""
        await self._remember({point.file for point in self.breakpoints} - self._snapshots.keys())
        if not self._snapshots:
            return []
        files = list(self._snapshots)
        notices: list[str] = []
        for file, found in zip(files, await self._sandbox.stat(files), strict=True):
            old = self._snapshots[file]
            if _identity(found) == old.identity:
                continue
            new = await self._snapshot(file, found)
            if new.text != old.text:
                kept, dropped = shift_for_change(self.breakpoints, file, old.text, new.text)
                notices += self._take(kept, dropped, "its line is gone")
            self._snapshots[file] = new
        self._forget_unused()
        return notices

    async def follow_rewrite(self, path: str, span: LineRange, old: str, new_code: str) -> list[str]:
        """Move breakpoints of ``path`` after lines ``span`` of ``old`` were replaced by ``new_code``.

        Returns:
            A sentence per dropped breakpoint.
        """
        if all(point.file != path for point in self.breakpoints):
            return []
        replaced = _bare_lines(old)[span.first - 1 : span.last]
        replacement = _bare_lines(new_code)
        kept, dropped = shift_for_edit(
            self.breakpoints, path, *span, len(replacement), replaced=replaced, replacement=replacement
        )
        notices = self._take(kept, dropped, "its line was replaced")
        (found,) = await self._sandbox.stat([path])
        self._snapshots[path] = await self._snapshot(path, found)
        self._forget_unused()
        return notices

    def _take(self, kept: Iterable[Breakpoint], dropped: Sequence[Breakpoint], why: str) -> list[str]:
        self.breakpoints = tuple(kept)
        return [f"Breakpoint {point.number} at {point.file}:{point.line} was dropped: {why}." for point in dropped]

    def _forget_unused(self) -> None:
        files = {point.file for point in self.breakpoints}
        self._snapshots = {file: snapshot for file, snapshot in self._snapshots.items() if file in files}

    async def _remember(self, files: Iterable[str]) -> None:
        names = sorted(files)
        if names:
            for file, found in zip(names, await self._sandbox.stat(names), strict=True):
                self._snapshots[file] = await self._snapshot(file, found)

    async def _snapshot(self, file: str, found: FileStat) -> _Snapshot:
        """Read the file. A file that cannot be read is treated as empty, so that its breakpoints are dropped."""
        try:
            data = await self._sandbox.read_file(file)
        except OSError:
            data = b""
        return _Snapshot(decode_text(data), _identity(found))


def _identity(found: FileStat) -> tuple[str, int, int]:
    return found.type, found.size, found.mtime_ns


def shift_for_edit(
    breakpoints: Iterable[Breakpoint],
    path: str,
    start: int,
    end: int,
    new_line_count: int,
    *,
    replaced: Sequence[str] = (),
    replacement: Sequence[str] = (),
) -> Shifted:
    """Move breakpoints after lines ``start`` to ``end`` of ``path`` were replaced by ``new_line_count`` lines.

    ``end`` is ``start - 1`` for an insertion. A breakpoint within the range is dropped. It is kept if ``replaced`` and
    ``replacement`` are given and its line is in both.
    """
    growth = new_line_count - (end - start + 1)
    inside = _alignment(replaced, replacement)

    def follow(line: int) -> int | None:
        if line < start:
            return line
        if line > end:
            return line + growth
        offset = inside(line - start + 1)
        return None if offset is None else start - 1 + offset

    return _shift(breakpoints, path, follow)


def shift_for_change(breakpoints: Iterable[Breakpoint], path: str, old_text: str, new_text: str) -> Shifted:
    """Move breakpoints after ``path`` changed from ``old_text`` to ``new_text``. Line endings are ignored."""
    return _shift(breakpoints, path, _alignment(_bare_lines(old_text), _bare_lines(new_text)))


def _bare_lines(text: str) -> list[str]:
    return [line.rstrip("\r\n") for line in split_lines(text)]


def _alignment(before: Sequence[str], after: Sequence[str]) -> Callable[[int], int | None]:
    places = {
        block.a + offset + 1: block.b + offset + 1
        for block in LineMatcher(before, after).get_matching_blocks()
        for offset in range(block.size)
    }
    return places.get


def _shift(breakpoints: Iterable[Breakpoint], path: str, follow: Callable[[int], int | None]) -> Shifted:
    kept: list[Breakpoint] = []
    dropped: list[Breakpoint] = []
    for breakpoint_ in breakpoints:
        line = follow(breakpoint_.line) if breakpoint_.file == path else breakpoint_.line
        if line is None:
            dropped.append(breakpoint_)
        elif line == breakpoint_.line:
            kept.append(breakpoint_)
        else:
            kept.append(msgspec.structs.replace(breakpoint_, line=line))
    return tuple(kept), tuple(dropped)
