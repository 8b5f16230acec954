"""The session's breakpoints, and how they follow their lines through edits.

The debugger gives the table with every answer. Between answers files change: by ``rewrite``, whose range is known,
or by a shell or the program itself, which is found by comparing with the text remembered for each file that has a
breakpoint. A stat tells whether a file must be read again, so following costs one request while nothing changes.
"""

from collections.abc import Iterable, Sequence

import msgspec

from dgym.sandbox import FileStat, Sandbox
from dgym.wire import Breakpoint
from dgym.workspace import Span, decode_text, shift_for_change, shift_for_edit, split_lines


class _Snapshot(msgspec.Struct, frozen=True):
    text: str
    identity: tuple[str, int, int]


class BreakpointTable:
    """Breakpoints and the texts they were set in.

    The debugger receives the whole table with each command, and restarts the program when a loaded file has changed, so
    a running program needs no message when breakpoints move.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self._sandbox = sandbox
        self._snapshots: dict[str, _Snapshot] = {}

    async def replace(self, breakpoints: Sequence[Breakpoint]) -> None:
        """Take the debugger's table; remember the text of files that are new in it."""
        self.breakpoints = tuple(breakpoints)
        files = {point.file for point in breakpoints}
        for file in self._snapshots.keys() - files:
            del self._snapshots[file]
        await self._remember(files - self._snapshots.keys())

    def clear(self) -> None:
        """Forget every breakpoint."""
        self.breakpoints, self._snapshots = (), {}

    async def follow_edits(self) -> list[str]:
        """Move breakpoints with edits made outside the tools; returns a sentence for each breakpoint dropped."""
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

    async def follow_rewrite(self, path: str, span: Span, old: str, new_code: str) -> list[str]:
        """Move breakpoints of ``path`` after lines ``span`` of ``old`` were replaced by ``new_code``."""
        if all(point.file != path for point in self.breakpoints):
            return []
        replaced = [line.rstrip("\r\n") for line in split_lines(old)[span.first - 1 : span.last]]
        replacement = [line.rstrip("\r\n") for line in split_lines(new_code)]
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
        """The text now; a file that cannot be read counts as empty, so that its breakpoints are dropped."""
        try:
            data = await self._sandbox.read_file(file)
        except OSError:
            data = b""
        return _Snapshot(decode_text(data), _identity(found))


def _identity(found: FileStat) -> tuple[str, int, int]:
    return found.type, found.size, found.mtime_ns
