r"""Files as lines of text: their encoding, replacing lines and nothing else, and which lines two texts share.

Lines end at ``\r\n``, ``\r`` or ``\n`` and nowhere else, as Python's own tokenizer has it: form feeds and Unicode
separators are part of a line. Lines that are not replaced keep their bytes because they are never decoded; new text
takes the file's encoding and line ending, and a file that ends without a newline keeps ending without one. A file's
encoding is told by its byte order mark, else by a cookie (PEP 263), else it is UTF-8.
"""

import codecs
import re
from collections import Counter
from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from typing import NamedTuple, TypeVar

from dgym.errors import EditError

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"^[ \t\f]*(?:#.*)?$")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""UTF-32 before UTF-16: the mark of the one begins with the mark of the other."""

_WINDOW = 400
_PAIRS = 300_000
"""Pairs of equal lines that difflib may look at in one pass: some tenths of a second."""

Line = TypeVar("Line", bound=str | bytes)


class Span(NamedTuple):
    """Lines ``first`` to ``last``, counted from 1; an insertion before ``first`` has ``last == first - 1``."""

    first: int
    last: int


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` with their endings."""
    return _LINES.findall(text)


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


def byte_order_mark(data: bytes) -> bytes:
    """The mark ``data`` begins with, or nothing."""
    return next((mark for mark, _ in _MARKS if data.startswith(mark)), b"")


def is_wide(data: bytes) -> bool:
    """Whether a line ending is more than one byte (UTF-16, UTF-32), so that bytes cannot be split into lines."""
    return byte_order_mark(data) not in (b"", codecs.BOM_UTF8)


def declared_encoding(data: bytes) -> str:
    """The name of the codec the file itself asks for; UTF-8 when it asks for none that exists."""
    mark = byte_order_mark(data)
    if mark:
        return dict(_MARKS)[mark]
    for line in re.split(rb"\r\n|\r|\n", data[:8192])[:2]:
        cookie = _COOKIE.match(line)
        if cookie:
            return _text_codec(cookie[1].decode("ascii", "replace"))
        if not _BLANK.match(line):
            break
    return "utf-8"


def _text_codec(name: str) -> str:
    """The codec called ``name`` if ASCII text means the same in it, as a cookie that can be read implies."""
    try:
        found = codecs.lookup(name)
        encoded = "a\n".encode(name)
    except (LookupError, UnicodeError):
        return "utf-8"
    return found.name if encoded == b"a\n" and found.name != "utf-8-sig" else "utf-8"


def decode_text(data: bytes) -> str:
    """The text for reading: no byte order mark, undecodable bytes replaced, line endings as they are."""
    mark = byte_order_mark(data)
    return data[len(mark) :].decode(declared_encoding(data), "replace")


class LineMatcher(SequenceMatcher[Line]):
    """difflib's matcher, bounded: its time must not grow with the product of the lengths of two texts.

    Common ends are cut off first. In what is left the longest match is looked for around the middle, so that each half
    is halved again; where lines repeat too often, only rare ones are where a match can begin. The alignment is always
    valid, and longer than necessary only for large texts that have little in common.
    """

    def __init__(self, before: Sequence[Line], after: Sequence[Line]) -> None:
        self._lengths = len(before), len(after)
        self._head, self._tail = _common_ends(before, after)
        occurrences = Counter(after)
        pairs = sum(occurrences[line] for line in before[self._head : len(before) - self._tail])
        super().__init__(None, before, after, autojunk=pairs > _PAIRS)

    def get_matching_blocks(self) -> list[Match]:
        """Maximal runs of equal lines, ascending in both texts, and an empty one at their end."""
        i_end, j_end = self._lengths[0] - self._tail, self._lengths[1] - self._tail
        found = [Match(0, 0, self._head), Match(i_end, j_end, self._tail)]
        pending = [(self._head, i_end, self._head, j_end)]
        while pending:
            i, i_end, j, j_end = pending.pop()
            block = self._longest(i, i_end, j, j_end)
            if block.size:
                found.append(block)
                pending.append((i, block.a, j, block.b))
                pending.append((block.a + block.size, i_end, block.b + block.size, j_end))
        return [*_joined(sorted(found)), Match(*self._lengths, 0)]

    def _longest(self, i: int, i_end: int, j: int, j_end: int) -> Match:
        middle = (i + i_end) // 2
        first, last = max(i, middle - _WINDOW // 2), min(i_end, middle + _WINDOW // 2)
        block = self.find_longest_match(first, last, j, j_end)
        return block if block.size or last - first == i_end - i else self.find_longest_match(i, i_end, j, j_end)


def _common_ends(before: Sequence[Line], after: Sequence[Line]) -> tuple[int, int]:
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return head, tail


def _joined(blocks: list[Match]) -> list[Match]:
    joined: list[Match] = []
    for block in filter(lambda block: block.size, blocks):
        last = joined[-1] if joined else Match(0, 0, 0)
        if (last.a + last.size, last.b + last.size) == (block.a, block.b) and joined:
            joined[-1] = Match(last.a, last.b, last.size + block.size)
        else:
            joined.append(block)
    return joined
