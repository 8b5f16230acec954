"""Apply a patch to files in memory, without git.

``git apply`` is not used because images may lack git, and because files of a repository can configure git to run other
programs. The context of a hunk must stand at exactly the line that the hunk names. ``git apply`` searches for it
elsewhere. If the solution of a task needs such a search, the repository has changed since the solution was written.
"""

from collections.abc import Callable
from typing import NoReturn

from dgym.errors import PatchError
from dgym.workspace._paths import ancestors
from dgym.workspace.patches._parse import FilePatch, Hunk, parse_patch
from dgym.workspace.patches._write import FileVersion, split_on_newline

__all__ = ["PatchError", "apply_patch", "patched_paths"]

Read = Callable[[str], FileVersion | None]

_SYMLINK_MODE = 0o120000


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
                raise PatchError(f"{file.name}: line {file.line} of the patch: the deletion leaves lines behind")
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
                    raise PatchError(f"{file.name}: line {file.line} of the patch: {above} is {kind}, no directory")


def _version(file: FilePatch, old: FileVersion | None, data: bytes) -> FileVersion:
    if file.mode is None:
        return FileVersion(data, old.mode, old.is_symlink) if old else FileVersion(data)
    if file.mode == _SYMLINK_MODE:
        return FileVersion(data, 0o777, is_symlink=True)
    return FileVersion(data, file.mode)


def _new_data(file: FilePatch, old: bytes) -> bytes:
    if file.binary is None:
        return _apply_hunks(file, old)
    version = FileVersion(old)
    if len(file.old_id) == 40 and file.old_path is not None and file.old_id != version.object_id:
        raise PatchError(f"{file.name}: line {file.binary.line} of the patch: the file is not the one it was made from")
    data = file.binary.data
    if file.binary.kind == "delta":
        try:
            data = apply_delta(old, data)
        except ValueError as error:
            raise PatchError(f"{file.name}: line {file.binary.line} of the patch: {error}") from None
    if len(file.new_id) == 40 and file.new_path is not None and file.new_id != FileVersion(data).object_id:
        raise PatchError(f"{file.name}: line {file.binary.line} of the patch: the result is not the one announced")
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
            raise PatchError(f"{file.name}: a line without a newline would not be the last one")
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


DATA_LIMIT = 256 * 1024**2
"""Maximum number of bytes that a delta may expand to. A delta of a few bytes can request any size."""


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
        raise ValueError(f"the delta asks for {size} bytes, more than {DATA_LIMIT}")
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
        raise ValueError(f"the delta gives {len(result)} bytes instead of {size}")
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
