"""Parse a patch into the changes that it describes, and apply it to files in memory, without git.

Supported are git's format (extended headers, renames, copies, modes, binary literals and deltas) and plain unified
diffs. The parser is strict: a hunk must have exactly the lines that its header announces, and only the start of another
hunk, file or message may follow it. A tolerant parser would drop such a line, and with it a change, without an error.

``git apply`` is not used because images may lack git, and because files of a repository can configure git to run other
programs. The context of a hunk must stand at exactly the line that the hunk names. ``git apply`` searches for it
elsewhere. If the solution of a task needs such a search, the repository has changed since the solution was written.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Callable
from typing import Literal, NoReturn

import msgspec

from dgym.errors import PatchError, PathError
from dgym.workspace._paths import ancestors, decode_path, is_git_directory, normalize
from dgym.workspace.patches._write import FileVersion, split_on_newline, unquote_path

DATA_LIMIT = 256 * 1024**2
"""Maximum number of bytes that one binary file may unpack to. A delta of a few bytes can request any length."""

Read = Callable[[str], FileVersion | None]

_SYMLINK_MODE = 0o120000
_HUNK = re.compile(rb"@@ -(\d{1,15})(?:,(\d{1,15}))? \+(\d{1,15})(?:,(\d{1,15}))? @@")
_BINARY = re.compile(rb"(literal|delta) (\d{1,15})\n")
_INDEX = re.compile(rb"index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?\n")
_MODES = {b"100644": 0o644, b"100664": 0o664, b"100755": 0o755, b"120000": _SYMLINK_MODE}
_BEGINNINGS = (b"diff ", b"--- ", b"Index: ", b"====", b"From ", b"Only in ")


class Hunk(msgspec.Struct, frozen=True):
    """Replaces the lines ``old`` at line ``start`` (counted from 0) by ``new``.

    ``number`` is the position of the hunk among the hunks of its file, ``line`` the line of the patch where it starts.
    Both count from 1.
    """

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    number: int
    line: int


class BinaryHunk(msgspec.Struct, frozen=True):
    """New data, complete or as a delta."""

    kind: Literal["literal", "delta"]
    data: bytes
    line: int


class FilePatch(msgspec.Struct, kw_only=True):
    """The change of one file. ``old_path`` is None if the file is new, ``new_path`` is None if it is deleted.

    ``old_id`` and ``new_id`` are git's object ids. They may be abbreviated, and are empty if the patch has no ids.
    """

    line: int
    old_path: str | None
    new_path: str | None
    mode: int | None = None
    is_copy: bool = False
    is_rename: bool = False
    old_id: str = ""
    new_id: str = ""
    hunks: list[Hunk] = []
    binary: BinaryHunk | None = None

    @property
    def name(self) -> str:
        """The path for messages."""
        return self.new_path or self.old_path or "?"


def parse_patch(patch: bytes) -> list[FilePatch]:
    """All files of a patch, in the order of the patch.

    Raises:
        PatchError: The text is not a patch, or the patch is incomplete.
    """
    return _Parser(patch).parse()


class _Parser:
    def __init__(self, patch: bytes) -> None:
        self._lines = split_on_newline(patch)
        self._at = 0

    def parse(self) -> list[FilePatch]:
        files: list[FilePatch] = []
        while self._skip_prose(bool(files)):
            files.append(self._git_file() if self._peek().startswith(b"diff --git ") else self._plain_file())
        if not files and any(line.strip() for line in self._lines):
            self._at = 0
            self._fail("it has no 'diff --git' or '---' header, so it is not a patch")
        return files

    def _peek(self, ahead: int = 0) -> bytes:
        """The current line with a newline, even if the patch ends without a newline. Empty at the end of the patch."""
        at = self._at + ahead
        if at >= len(self._lines):
            return b""
        line = self._lines[at]
        return line if line.endswith(b"\n") else line + b"\n"

    def _next(self) -> bytes:
        line = self._peek()
        self._at += 1
        return line

    def _fail(self, why: str, *, file: str = "", hunk: int = 0) -> NoReturn:
        where = f"{file}: " if file else ""
        where += f"hunk {hunk}: " if hunk else ""
        raise PatchError(f"{where}line {self._at + 1} of the patch: {why}")

    def _skip_prose(self, after_file: bool) -> bool:
        """Advance to the header of the next file. Returns False at the end of the patch.

        After a file, other text is an error unless a line introduces it that cannot belong to a hunk.
        """
        in_prose = not after_file
        while line := self._peek():
            if line.startswith(b"diff --git ") or (line.startswith(b"--- ") and self._peek(1).startswith(b"+++ ")):
                return True
            if line.startswith(b"@@ "):
                self._fail("a hunk without a file header")
            if line.startswith((b"-- \n", b"--\n", *_BEGINNINGS)):
                in_prose = True
            elif not in_prose and line.strip():
                self._fail("this line is not part of a hunk; the hunk before it may announce too few lines")
            self._at += 1
        return False

    def _plain_file(self) -> FilePatch:
        line = self._at + 1
        old_path, new_path = self._names()
        patch = FilePatch(line=line, old_path=old_path, new_path=new_path)
        self._hunks(patch)
        if not patch.hunks:
            self._fail("the file has no hunk", file=patch.name)
        return patch

    def _names(self) -> tuple[str | None, str | None]:
        """The paths in the ``---`` and ``+++`` lines, or None for /dev/null."""
        old_path = self._marker(self._next()[4:])
        if not self._peek().startswith(b"+++ "):
            self._fail("'+++' must follow '---'")
        new_path = self._marker(self._next()[4:])
        if old_path is None and new_path is None:
            self._at -= 1
            self._fail("both names are /dev/null")
        return old_path, new_path

    def _marker(self, text: bytes) -> str | None:
        text = text.rstrip(b"\n")
        if not text.startswith(b'"'):
            # Plain diff writes a date after a tab. Git writes nothing after it. A tab within a name is always quoted.
            text = text.split(b"\t")[0].removesuffix(b"\r")
        return None if text == b"/dev/null" else self._path(text, strip=True)

    def _path(self, text: bytes, *, strip: bool) -> str:
        """The path that git or diff wrote as ``text``. ``strip`` removes its first component (a/ or b/)."""
        path, rest = self._unquoted(text) if text.startswith(b'"') else (decode_path(text), b"")
        if rest.strip():
            self._fail(f"{decode_path(rest)!r} follows the path")
        return self._clean(path, strip=strip)

    def _unquoted(self, text: bytes) -> tuple[str, bytes]:
        try:
            return unquote_path(text)
        except ValueError as error:
            self._fail(str(error))

    def _clean(self, path: str, *, strip: bool) -> str:
        if strip:
            prefix, slash, path = path.partition("/")
            if not slash or not prefix:
                self._fail(f"{prefix + slash + path!r} does not begin with a/ or b/")
        if path.startswith("/") or ".." in path.split("/"):
            self._fail(f"{path!r} leaves the repository")
        try:
            clean = normalize(path, "/")
        except PathError as error:
            self._fail(str(error))
        if clean == "." or any(map(is_git_directory, clean.split("/"))):
            self._fail(f"{path!r} cannot be patched")
        return clean

    def _git_file(self) -> FilePatch:
        patch = FilePatch(line=self._at + 1, old_path=None, new_path=None)
        name = self._header_name(self._next()[len(b"diff --git ") :].rstrip(b"\n"))
        headers = self._extended_headers(patch)
        if patch.is_copy or patch.is_rename:
            patch.old_path, patch.new_path = headers.get("from"), headers.get("to")
            if patch.old_path is None or patch.new_path is None:
                self._fail("a rename or copy needs both names")
        else:
            if name is None and not self._peek().startswith(b"--- "):
                self._at = patch.line - 1
                self._fail("the header does not name one file")
            patch.old_path = None if "new" in headers else name
            patch.new_path = None if "deleted" in headers else name
        self._git_content(patch)
        return patch

    def _git_content(self, patch: FilePatch) -> None:
        line = self._peek()
        if line.startswith(b"--- "):
            names = self._names()
            if patch.old_path is None and patch.new_path is None:
                patch.old_path, patch.new_path = names
            if names != (patch.old_path, patch.new_path):
                self._at -= 1
                self._fail("'---' and '+++' contradict the header before them", file=patch.name)
            self._hunks(patch)
            if not patch.hunks:
                self._fail("'---' and '+++' without a hunk", file=patch.name)
        elif line.startswith(b"GIT binary patch"):
            self._at += 1
            patch.binary = self._binary(patch)
            if self._peek().startswith((b"literal ", b"delta ")):
                self._binary(patch)
        elif line.startswith((b"Binary files ", b"Files ")):
            self._fail("a binary file without its data; make the patch with 'git diff --binary'", file=patch.name)

    def _header_name(self, text: bytes) -> str | None:
        """The name in ``diff --git a/NAME b/NAME``, or None if the names differ, as in a rename."""
        if text.startswith(b'"'):
            first, rest = self._unquoted(text)
            second = rest.strip()
            other = self._path(second, strip=True) if second else ""
            return other if self._clean(first, strip=True) == other else None
        # Both halves name the same file, so the space between them is in the middle.
        for match in re.finditer(rb" (?=[^/ ]*/)", text):
            first_half, second_half = text[: match.start()], text[match.end() :]
            if first_half.partition(b"/")[2] == second_half.partition(b"/")[2]:
                return self._path(first_half, strip=True)
        return None

    def _extended_headers(self, patch: FilePatch) -> dict[str, str | None]:
        """Read the lines between ``diff --git`` and the content into ``patch``.

        Returns the keys ``new`` or ``deleted`` with None, and ``from`` and ``to`` with the paths of a rename or copy.
        """
        found: dict[str, str | None] = {}
        while line := self._peek():
            if line.startswith((b"new file mode ", b"deleted file mode ")):
                found[line.split()[0].decode()] = None
                patch.mode = self._mode(line.split()[-1]) if line.startswith(b"new") else None
            elif line.startswith(b"new mode "):
                patch.mode = self._mode(line.split()[-1])
            elif line.startswith((b"rename from ", b"rename to ", b"copy from ", b"copy to ")):
                verb, direction, name = line.rstrip(b"\n").split(b" ", 2)
                patch.is_copy, patch.is_rename = verb == b"copy", verb == b"rename"
                found[direction.decode()] = self._path(name, strip=False)
            elif index := _INDEX.fullmatch(line):
                patch.old_id, patch.new_id = index[1].decode(), index[2].decode()
            elif not line.startswith((b"old mode ", b"similarity index ", b"dissimilarity index ")):
                break
            self._at += 1
        return found

    def _mode(self, text: bytes) -> int:
        if text not in _MODES:
            self._fail(f"mode {text.decode('latin-1')} is neither a file's nor a symbolic link's")
        return _MODES[text]

    def _hunks(self, patch: FilePatch) -> None:
        patch.hunks = []
        while header := _HUNK.match(self._peek()):
            patch.hunks.append(self._hunk(patch, header))
        if self._peek().startswith(b"@@"):
            self._fail("this is not a hunk header", file=patch.name, hunk=len(patch.hunks) + 1)

    def _hunk(self, patch: FilePatch, header: re.Match[bytes]) -> Hunk:
        number, line = len(patch.hunks) + 1, self._at + 1
        start, old_size, new_size = int(header[1]), int(header[2] or 1), int(header[4] or 1)
        at = start if old_size == 0 else start - 1
        if at < 0:
            self._fail("lines count from 1", file=patch.name, hunk=number)
        self._at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        sides: tuple[list[bytes], ...] = ()
        while len(old) < old_size or len(new) < new_size or self._peek().startswith(b"\\"):
            text = self._peek()
            if text.startswith(b"\\"):
                # "\ No newline at end of file" refers to the line before it.
                if not sides:
                    self._fail("no line precedes this line", file=patch.name, hunk=number)
                for side in sides:
                    side[-1] = side[-1].removesuffix(b"\n")
            else:
                # Mail programs and editors remove the space of an empty context line.
                sign, body = (b" ", text) if text in (b"\n", b"\r\n") else (text[:1], text[1:])
                sides = {b" ": (old, new), b"-": (old,), b"+": (new,)}.get(sign, ())
                if not sides:
                    ending = "the hunk has fewer lines than it announces" if text else "the patch ends within the hunk"
                    self._fail(ending, file=patch.name, hunk=number)
                for side in sides:
                    side.append(body)
                if len(old) > old_size or len(new) > new_size:
                    self._fail("the hunk has more lines than it announces", file=patch.name, hunk=number)
            self._at += 1
        return Hunk(at, tuple(old), tuple(new), number, line)

    def _binary(self, patch: FilePatch) -> BinaryHunk:
        line = self._at + 1
        header = _BINARY.fullmatch(self._peek())
        if header is None:
            self._fail("'literal' or 'delta' and a size must follow", file=patch.name)
        self._at += 1
        packed = bytearray()
        while (text := self._peek()) not in (b"\n", b""):
            packed += self._binary_line(text.rstrip(b"\n"), patch)
            self._at += 1
        self._at += 1
        size = int(header[2])
        if size > DATA_LIMIT:
            self._fail(f"{size} bytes are more than {DATA_LIMIT}", file=patch.name)
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(bytes(packed), size + 1)
        except zlib.error as error:
            self._fail(f"the binary data is damaged: {error}", file=patch.name)
        if len(data) != size:
            self._fail(f"the binary data has {len(data)} bytes instead of {size}", file=patch.name)
        return BinaryHunk("literal" if header[1] == b"literal" else "delta", data, line)

    def _binary_line(self, text: bytes, patch: FilePatch) -> bytes:
        code = text[:1]
        size = code[0] - (ord("A") - 1 if code <= b"Z" else ord("a") - 27) if code.isalpha() else 0
        try:
            data = base64.b85decode(text[1:])
        except (ValueError, binascii.Error):
            data = b""
        if not 0 < size <= len(data) < size + 4:
            self._fail("this is not a line of binary data", file=patch.name)
        return data[:size]


def patched_paths(patch: bytes | str) -> list[str]:
    """All paths that a patch reads or writes, sorted. :func:`apply_patch` reads their present versions."""
    files = parse_patch(_bytes(patch))
    return sorted({path for file in files for path in (file.old_path, file.new_path) if path is not None})


def apply_patch(patch: bytes | str, read: Read) -> dict[str, FileVersion | None]:
    """Return the new version of every file that ``patch`` changes, or None for a deleted file.

    Args:
        patch: The output of ``git diff --binary`` or ``diff -u``.
        read: Returns the present version of a path, or None if the file does not exist.

    Raises:
        PatchError: The patch is malformed or does not apply. No file has been changed.
    """
    files = parse_patch(_bytes(patch))
    application = _Application(read, leaving={file.old_path for file in files if _leaves(file)})
    for file in files:
        application.apply(file)
    application.check_directories(files)
    return application.result


def _bytes(patch: bytes | str) -> bytes:
    if isinstance(patch, bytes):
        return patch
    try:
        return patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is not text: {error.reason}") from None


def _leaves(file: FilePatch) -> bool:
    return file.is_rename or file.new_path is None


class _Application:
    """The state while the files of one patch are applied."""

    def __init__(self, read: Read, leaving: set[str | None]) -> None:
        self._read = read
        self._leaving = leaving
        self.result: dict[str, FileVersion | None] = {}

    def apply(self, file: FilePatch) -> None:
        old = self._preimage(file)
        if file.new_path is not None and file.new_path != file.old_path:
            self._check_free(file)
        data = _new_data(file, old.data if old else b"")
        if file.is_rename and file.old_path not in self.result and file.old_path is not None:
            self.result[file.old_path] = None
        if file.new_path is None:
            assert file.old_path is not None
            if data:
                raise PatchError(
                    f"{file.name}: line {file.line} of the patch: the file has lines that the deletion does not remove"
                )
            self.result[file.old_path] = None
        else:
            self.result[file.new_path] = _version(file, old, data)

    def _preimage(self, file: FilePatch) -> FileVersion | None:
        path = file.old_path
        if path is None:
            return None
        # A rename or copy starts from the original file even if an earlier part of the patch changes that file: git
        # writes the parts in any order.
        from_original = file.is_rename or file.is_copy
        version = self._read(path) if from_original or path not in self.result else self.result[path]
        if version is None:
            raise PatchError(f"{path}: line {file.line} of the patch: the file to change does not exist")
        return version

    def _check_free(self, file: FilePatch) -> None:
        path = file.new_path
        assert path is not None
        present = self.result[path] if path in self.result else self._read(path)
        if present is not None and (path in self.result or path not in self._leaving):
            raise PatchError(f"{path}: line {file.line} of the patch: the file to create exists already")

    def check_directories(self, files: list[FilePatch]) -> None:
        """Raise ``PatchError`` if a path lies below a file or a symbolic link."""
        for file in files:
            for above in ancestors(file.new_path or ""):
                present = self.result[above] if above in self.result else self._read(above)
                if present is not None:
                    kind = "a symbolic link" if present.is_symlink else "a file"
                    raise PatchError(f"{file.name}: line {file.line} of the patch: {above} is {kind}, not a directory")


def _version(file: FilePatch, old: FileVersion | None, data: bytes) -> FileVersion:
    if file.mode is None:
        return FileVersion(data, old.mode, old.is_symlink) if old else FileVersion(data)
    if file.mode == _SYMLINK_MODE:
        return FileVersion(data, 0o777, is_symlink=True)
    return FileVersion(data, file.mode)


def _new_data(file: FilePatch, old: bytes) -> bytes:
    if file.binary is None:
        return _apply_hunks(file, old)
    where, version = f"{file.name}: line {file.binary.line} of the patch", FileVersion(old)
    if len(file.old_id) == 40 and file.old_path is not None and file.old_id != version.object_id:
        raise PatchError(f"{where}: the file differs from the file that the patch was made from")
    data = file.binary.data
    if file.binary.kind == "delta":
        try:
            data = apply_delta(old, data)
        except ValueError as error:
            raise PatchError(f"{where}: {error}") from None
    if len(file.new_id) == 40 and file.new_path is not None and file.new_id != FileVersion(data).object_id:
        raise PatchError(f"{where}: the result differs from the announced result")
    return data


def _apply_hunks(file: FilePatch, old: bytes) -> bytes:
    lines = split_on_newline(old)
    result: list[bytes] = []
    at = 0
    for hunk in file.hunks:
        if hunk.start < at:
            raise PatchError(f"{_place(file, hunk)}: it begins before the hunk above it ends")
        end = hunk.start + len(hunk.old)
        if tuple(lines[hunk.start : end]) != hunk.old or hunk.start > len(lines):
            _mismatch(file, hunk, lines)
        result += lines[at : hunk.start]
        result += hunk.new
        at = end
    result += lines[at:]
    for line in result[:-1]:
        if not line.endswith(b"\n"):
            raise PatchError(f"{file.name}: a line without a newline would not be the last line")
    return b"".join(result)


def _place(file: FilePatch, hunk: Hunk) -> str:
    return f"{file.name}: hunk {hunk.number}: line {hunk.line} of the patch"


def _mismatch(file: FilePatch, hunk: Hunk, lines: list[bytes]) -> NoReturn:
    """Raise ``PatchError`` with the first line that differs, or with the line where the hunk would apply."""
    size = len(hunk.old)
    places = [at + 1 for at in range(len(lines) - size + 1) if size and tuple(lines[at : at + size]) == hunk.old]
    if places:
        raise PatchError(f"{_place(file, hunk)}: its lines are not at line {hunk.start + 1} but at line {places[0]}")
    for offset, wanted in enumerate(hunk.old):
        at = hunk.start + offset
        if at >= len(lines):
            break
        if lines[at] != wanted:
            raise PatchError(
                f"{_place(file, hunk)}: line {at + 1} of the file is {_shown(lines[at])}, not {_shown(wanted)}"
            )
    raise PatchError(f"{_place(file, hunk)}: it needs line {hunk.start + size}, but the file has {len(lines)} lines")


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 120 else text[:117] + "...")


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Expand ``delta`` over ``base``.

    Raises:
        ValueError: The delta is damaged, or belongs to another base.
    """
    base_size, at = _size(delta, 0)
    size, at = _size(delta, at)
    if base_size != len(base):
        raise ValueError(f"the delta is for a file of {base_size} bytes, not of {len(base)}")
    if size > DATA_LIMIT:
        raise ValueError(f"the delta requests {size} bytes, more than {DATA_LIMIT}")
    result = bytearray()
    while at < len(delta) and len(result) <= size:
        code = delta[at]
        if code & 0x80:
            start, length, at = _copy(delta, at)
            piece = base[start : start + length]
        else:
            length = code
            piece = delta[at + 1 : at + 1 + length]
            at += 1 + length
        if not length or len(piece) != length:
            raise ValueError("the delta is damaged")
        result += piece
    if len(result) != size:
        raise ValueError(f"the delta produces {len(result)} bytes instead of {size}")
    return bytes(result)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest group first, and the position after it."""
    value = shift = 0
    while at < len(delta):
        byte = delta[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at
    raise ValueError("the delta is cut off")


def _copy(delta: bytes, at: int) -> tuple[int, int, int]:
    """The offset and length of a copy instruction, and the position after it.

    The lower seven bits of the instruction mark which bytes of the two numbers follow.
    """
    code = delta[at]
    at += 1
    numbers = bytearray(7)
    for bit in range(7):
        if code & (1 << bit):
            if at >= len(delta):
                raise ValueError("the delta is cut off")
            numbers[bit] = delta[at]
            at += 1
    return int.from_bytes(numbers[:4], "little"), int.from_bytes(numbers[4:], "little") or 0x10000, at
