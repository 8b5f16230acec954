r"""Write patches in the format of ``git apply``, without git.

Files of a repository can configure git to run commands (``diff.external``, ``core.fsmonitor``, filters). Trusted code
therefore never runs git on an agent's files, and writes patches itself. Only ``\n`` ends a line here. Data that is not
UTF-8 is written as a binary patch, so a patch is always text. A rename is written as a deletion and an addition.
"""

import base64
import hashlib
import stat
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from dgym.workspace._paths import decode_path, encode_path
from dgym.workspace._text import LineMatcher, decode_text

__all__ = ["FileVersion", "unified_diff", "write_patch"]

_CONTEXT = 3
_COMPARED_LINES = 150_000
"""A text with more lines is written as binary, because comparing takes many times the memory of the text."""
_NO_NEWLINE = b"\\ No newline at end of file\n"
_NO_OBJECT = "0" * 40
_BINARY_LINE = 52

_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_UNESCAPES = {escape: bytes([byte]) for byte, escape in _ESCAPES.items()}


class FileVersion(msgspec.Struct, frozen=True):
    """One version of a file. ``data`` of a symbolic link is its target."""

    data: bytes
    mode: int = 0o644
    is_symlink: bool = False

    @property
    def git_mode(self) -> str:
        """The mode in git's notation. Git keeps only the executable bit of the permissions."""
        if self.is_symlink:
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"

    @property
    def is_binary(self) -> bool:
        """Whether a patch must contain the data as binary: it is not UTF-8 or, as in git, contains a NUL byte."""
        if b"\0" in self.data:
            return True
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError:
            return True
        return False

    @property
    def object_id(self) -> str:
        """The id under which git stores the data."""
        return blob_id(self.data)


Versions = tuple[FileVersion | None, FileVersion | None]
"""A file before and after the change. None means that the file does not exist."""


def write_patch(changes: Mapping[str, Versions]) -> bytes:
    """Write the patch from the first to the second version of every path, ordered by path. The patch is valid UTF-8."""
    return b"".join(_file_patch(path, *changes[path]) for path in sorted(changes, key=encode_path))


def unified_diff(path: str, old: bytes, new: bytes) -> str:
    """The change of one text file for people and models, without object ids. Undecodable bytes are replaced."""
    before, after = (decode_text(data).encode("utf-8", "replace") for data in (old, new))
    hunks = b"".join(_hunks(before, after))
    if not hunks:
        return "" if old == new else f"{path}: only its byte order mark or encoding changed\n"
    header = b"--- %s\n+++ %s\n" % (quote_path(path, "a/"), quote_path(path, "b/"))
    return (header + hunks).decode("utf-8", "replace")


def _file_patch(path: str, old: FileVersion | None, new: FileVersion | None) -> bytes:
    if old == new or (old is None and new is None):
        return b""
    if old is not None and new is not None and old.is_symlink != new.is_symlink:
        return _file_patch(path, old, None) + _file_patch(path, None, new)
    header = b"diff --git %s %s\n" % (quote_path(path, "a/"), quote_path(path, "b/"))
    body = _mode_lines(old, new)
    if (old.data if old else b"") != (new.data if new else b"") or not (old and new):
        body += _index_line(old, new) + _content(path, old, new)
    return header + body if body else b""


def _mode_lines(old: FileVersion | None, new: FileVersion | None) -> bytes:
    if old is None:
        assert new is not None
        return f"new file mode {new.git_mode}\n".encode()
    if new is None:
        return f"deleted file mode {old.git_mode}\n".encode()
    if old.git_mode == new.git_mode:
        return b""
    return f"old mode {old.git_mode}\nnew mode {new.git_mode}\n".encode()


def _index_line(old: FileVersion | None, new: FileVersion | None) -> bytes:
    """The line with complete ids. ``git apply`` requires them for a binary patch and checks its result with them."""
    ids = "..".join(version.object_id if version else _NO_OBJECT for version in (old, new))
    mode = f" {old.git_mode}" if old and new and old.git_mode == new.git_mode else ""
    return f"index {ids}{mode}\n".encode()


def _content(path: str, old: FileVersion | None, new: FileVersion | None) -> bytes:
    before, after = old.data if old else b"", new.data if new else b""
    if any(version and (version.is_binary or version.data.count(b"\n") > _COMPARED_LINES) for version in (old, new)):
        return b"".join((b"GIT binary patch\n", _literal(after), _literal(before)))
    hunks = b"".join(_hunks(before, after))
    if not hunks:
        return b""
    names = (quote_path(path, "a/") if old else b"/dev/null", quote_path(path, "b/") if new else b"/dev/null")
    return b"--- %s\n+++ %s\n" % names + hunks


def _literal(data: bytes) -> bytearray:
    packed = zlib.compress(data)
    lines = bytearray(b"literal %d\n" % len(data))
    for start in range(0, len(packed), _BINARY_LINE):
        chunk = packed[start : start + _BINARY_LINE]
        size = len(chunk) + (ord("A") - 1 if len(chunk) <= 26 else ord("a") - 27)
        lines += bytes([size]) + base64.b85encode(chunk, pad=True) + b"\n"
    lines += b"\n"
    return lines


def split_on_newline(data: bytes) -> list[bytes]:
    r"""The lines of a patch or of a patched file with their endings. Only ``\n`` ends a line."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _hunks(old: bytes, new: bytes) -> Iterator[bytes]:
    before, after = split_on_newline(old), split_on_newline(new)
    for group in LineMatcher(before, after).get_grouped_opcodes(_CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        lines = [b"@@ -%s +%s @@\n" % (_extent(i, i_end), _extent(j, j_end))]
        for tag, a, a_end, b, b_end in group:
            if tag == "equal":
                lines.extend(_line(b" ", line) for line in before[a:a_end])
            else:
                lines.extend(_line(b"-", line) for line in before[a:a_end])
                lines.extend(_line(b"+", line) for line in after[b:b_end])
        yield b"".join(lines)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + _NO_NEWLINE


def _extent(start: int, end: int) -> bytes:
    size = end - start
    if size == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if size else start, size)


def blob_id(data: bytes) -> str:
    """Git's SHA-1 id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def quote_path(path: str, prefix: str = "") -> bytes:
    """``prefix`` + ``path`` in git's notation: quoted as in C if it has a byte other than printable ASCII.

    A path with a space is quoted too. Git writes it unquoted, and then cannot find the end of a name like "b /a".
    """
    raw = prefix.encode() + encode_path(path)
    quoted = b"".join(_quote_byte(byte) for byte in raw)
    return raw if quoted == raw and b" " not in raw else b'"' + quoted + b'"'


def _quote_byte(byte: int) -> bytes:
    if byte in _ESCAPES:
        return b"\\" + _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def unquote_path(text: bytes) -> tuple[str, bytes]:
    """Read a path, quoted as in C, from the beginning of ``text``.

    Returns:
        The path, and the bytes after the closing quote.

    Raises:
        ValueError: The quotes are not closed, or an escape is unknown.
    """
    raw = bytearray()
    at = 1
    while text[at : at + 1] != b'"':
        if at >= len(text):
            raise ValueError("the quoted path is not closed")
        if text[at : at + 1] != b"\\":
            raw += text[at : at + 1]
            at += 1
            continue
        escape = text[at + 1 : at + 2]
        if escape in _UNESCAPES:
            raw += _UNESCAPES[escape]
            at += 2
        else:
            raw.append(_octal(text[at + 1 : at + 4]))
            at += 4
    return decode_path(bytes(raw)), text[at + 1 :]


def _octal(digits: bytes) -> int:
    if len(digits) != 3 or digits[:1] not in b"0123" or not digits.isdigit():
        raise ValueError(f"unknown escape \\{digits.decode('latin-1')} in a quoted path")
    return int(digits, 8)
