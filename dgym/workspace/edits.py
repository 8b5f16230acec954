r"""Replacing lines of a file and nothing else.

Lines end at ``\r\n``, ``\r`` or ``\n`` and nowhere else, as Python's own tokenizer has it: form feeds and Unicode
separators are part of a line. Lines that are not replaced keep their bytes because they are never decoded; new text
takes the file's encoding and line ending, and a file that ends without a newline keeps ending without one.
"""

import re
from collections import Counter
from typing import NamedTuple

from dgym.workspace.encodings import byte_order_mark, declared_encoding, is_wide
from dgym.workspace.errors import EditError

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BYTE_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Span(NamedTuple):
    """Lines ``first`` to ``last``, counted from 1; an insertion before ``first`` has ``last == first - 1``."""

    first: int
    last: int


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` with their endings."""
    return _LINES.findall(text)


def split_byte_lines(data: bytes) -> list[bytes]:
    """The lines of ``data`` with their endings; for encodings in which ASCII bytes mean ASCII."""
    return _BYTE_LINES.findall(data)


def line_count(data: bytes) -> int:
    """The number of lines of a file."""
    return len(_file_lines(data)[1])


def resolve_span(total: int, start: int | None, end: int | None) -> Span:
    """The lines that ``start`` and ``end`` mean in a file of ``total`` lines.

    Neither: the whole file. ``start`` alone: that line. ``end = start - 1``: an insertion before ``start``.
    ``start = total + 1``: an append.

    Raises:
        EditError: there are no such lines; the message says which there are.
    """
    if start is None:
        if end is not None:
            raise EditError("end was given without start; give both, start alone, or neither for the whole file")
        return Span(1, total)
    if not 1 <= start <= total + 1:
        raise EditError(f"start is {start}, but {_describe(total)}")
    if start == total + 1:
        if end is not None and end not in (total, total + 1):
            raise EditError(f"end is {end}, but start {start} appends to a file of {total} lines; leave end out")
        return Span(start, total)
    if end is None:
        return Span(start, start)
    if not start - 1 <= end <= total:
        raise EditError(
            f"end is {end}, but with start {start} it must be {start} to {total}, or {start - 1} to insert before line "
            f"{start}"
        )
    return Span(start, end)


def _describe(total: int) -> str:
    if total == 0:
        return "the file is empty: start must be 1, or leave the range out"
    return f"the file has {total} lines: start must be 1 to {total}, or {total + 1} to append"


def rewrite_text(old: bytes, start: int | None, end: int | None, new_code: str) -> bytes:
    """Replace the lines that ``start`` and ``end`` mean (see :func:`resolve_span`) by ``new_code``.

    Every new line gets a line ending, except that the last line of a file whose last line had none keeps having none.
    """
    mark, lines = _file_lines(old)
    first, last = resolve_span(len(lines), start, end)
    before, after = lines[: first - 1], lines[last:]
    unterminated = bool(lines) and not lines[-1].endswith(("\r", "\n"))
    newline = _dominant_newline(lines)
    new = [line.rstrip("\r\n") + newline for line in split_lines(new_code.removeprefix("\ufeff"))]
    if unterminated and not after and new:
        # An empty line without an ending would not be a line.
        new[-1] = new[-1].removesuffix(newline) or newline
        if before and not before[-1].endswith(("\r", "\n")):
            before[-1] += newline
    return mark + _encode(old, before, new, after)


def _file_lines(data: bytes) -> tuple[bytes, list[str]]:
    """The byte order mark and the lines. Only wide encodings are decoded; bytes of others pass as Latin-1."""
    mark = byte_order_mark(data)
    body = data[len(mark) :]
    if not is_wide(data):
        return mark, split_lines(body.decode("latin-1"))
    codec = declared_encoding(data)
    try:
        return mark, split_lines(body.decode(codec))
    except UnicodeDecodeError as error:
        raise EditError(f"the file begins as {codec} but is not valid {codec}: {error.reason}") from None


def _encode(old: bytes, before: list[str], new: list[str], after: list[str]) -> bytes:
    if is_wide(old):
        return _encode_as("".join((*before, *new, *after)), declared_encoding(old))
    head, tail = "".join(before).encode("latin-1"), "".join(after).encode("latin-1")
    text = "".join(new)
    if byte_order_mark(old):
        return head + _encode_as(text, "utf-8") + tail
    # What decides is the cookie of the file as it will be: the edit may have written, moved or removed it.
    outline = head + text.encode("ascii", "replace") + tail
    return head + _encode_as(text, declared_encoding(outline)) + tail


def _encode_as(text: str, codec: str) -> bytes:
    try:
        return text.encode(codec)
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise EditError(
            f"{character!r} (U+{ord(character):04X}) cannot be written in {codec}, the file's encoding"
        ) from None


def _dominant_newline(lines: list[str]) -> str:
    endings = Counter(line[len(line.rstrip("\r\n")) :] for line in lines)
    del endings[""]
    return max(endings, key=lambda ending: (endings[ending], ending == "\n")) if endings else "\n"
