"""A file as a patch sees it, and how git writes and names it."""

import hashlib
import stat

import msgspec

from dgym.workspace.paths import decode_path, encode_path

_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_UNESCAPES = {escape: bytes([byte]) for byte, escape in _ESCAPES.items()}


class FileVersion(msgspec.Struct, frozen=True):
    """One version of a file. The data of a symbolic link is its target."""

    data: bytes
    mode: int = 0o644
    is_symlink: bool = False

    @property
    def git_mode(self) -> str:
        """The mode in git's words; of the permissions only the executable bit exists there."""
        if self.is_symlink:
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"

    @property
    def is_binary(self) -> bool:
        """Whether a patch must carry the data as binary: it is not UTF-8, or holds a NUL as git's binaries do."""
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


def blob_id(data: bytes) -> str:
    """Git's SHA-1 id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def quote_path(path: str, prefix: str = "") -> bytes:
    """``prefix`` + ``path`` as git reads it: in C's quotes where a byte is not plain ASCII.

    Git itself leaves spaces unquoted, and then cannot tell where a name like "b /a" ends; quoted it can.
    """
    raw = prefix.encode() + encode_path(path)
    quoted = b"".join(_quote_byte(byte) for byte in raw)
    return raw if quoted == raw and b" " not in raw else b'"' + quoted + b'"'


def _quote_byte(byte: int) -> bytes:
    if byte in _ESCAPES:
        return b"\\" + _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def unquote_path(text: bytes) -> tuple[str, bytes]:
    """Read a path in C's quotes from the beginning of ``text``; also gives what follows the closing quote.

    Raises:
        ValueError: the quotes are not closed, or an escape is unknown.
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
