r"""Patches as ``git apply`` takes them, written without git.

A tree can configure git (``diff.external``, ``core.fsmonitor``, filters) to run commands, so the trusted side never
lets git look at an agent's tree and writes patches itself. Lines end at ``\n`` alone here; what is not UTF-8 travels
as a binary patch, so that a patch is always text. A rename is a deletion and an addition.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping

from dgym.workspace.patches.format import FileVersion, quote_path
from dgym.workspace.paths import encode_path
from dgym.workspace.text import LineMatcher, decode_text

__all__ = ["FileVersion", "unified_diff", "write_patch"]

_CONTEXT = 3
_NO_NEWLINE = b"\\ No newline at end of file\n"
_NO_OBJECT = "0" * 40
_BINARY_LINE = 52

Versions = tuple[FileVersion | None, FileVersion | None]
"""A file before and after; None where there is none."""


def write_patch(changes: Mapping[str, Versions]) -> bytes:
    """The patch that makes every ``path`` what its second version is, ordered by path; pure ASCII or UTF-8."""
    return b"".join(_file_patch(path, *changes[path]) for path in sorted(changes, key=encode_path))


def unified_diff(path: str, old: bytes, new: bytes) -> str:
    """The change of one text file for people and models: no object ids, bytes that are no text replaced."""
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
    """Full ids: ``git apply`` takes a binary patch only with them, and proves the result by them."""
    ids = "..".join(version.object_id if version else _NO_OBJECT for version in (old, new))
    mode = f" {old.git_mode}" if old and new and old.git_mode == new.git_mode else ""
    return f"index {ids}{mode}\n".encode()


def _content(path: str, old: FileVersion | None, new: FileVersion | None) -> bytes:
    before, after = old.data if old else b"", new.data if new else b""
    if any(version and version.is_binary for version in (old, new)):
        return b"GIT binary patch\n" + _literal(after) + _literal(before)
    hunks = b"".join(_hunks(before, after))
    if not hunks:
        return b""
    names = (quote_path(path, "a/") if old else b"/dev/null", quote_path(path, "b/") if new else b"/dev/null")
    return b"--- %s\n+++ %s\n" % names + hunks


def _literal(data: bytes) -> bytes:
    packed = zlib.compress(data)
    lines = [b"literal %d\n" % len(data)]
    for start in range(0, len(packed), _BINARY_LINE):
        chunk = packed[start : start + _BINARY_LINE]
        size = len(chunk) + (ord("A") - 1 if len(chunk) <= 26 else ord("a") - 27)
        lines.append(bytes([size]) + base64.b85encode(chunk, pad=True) + b"\n")
    return b"".join(lines) + b"\n"


def split_on_newline(data: bytes) -> list[bytes]:
    """The lines of a patch or of a patched file with their endings; a newline alone ends a line."""
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
