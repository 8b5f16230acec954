r"""Text files: detect the encoding, replace lines, and match the lines of two texts.

Only ``\r\n``, ``\r`` and ``\n`` end a line, as in Python's tokenizer. Form feeds and Unicode separators are part of a
line. Lines that are not replaced keep their bytes, because they are not decoded. New text takes the encoding and the
line ending of the file. A newline is not added at the end of a file. The encoding of a file follows from its byte order
mark or else from its coding cookie (PEP 263). The default is UTF-8.
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
"""UTF-32 comes before UTF-16, because the UTF-32-LE mark begins with the UTF-16-LE mark."""

_WINDOW = 400
_PAIRS = 300_000
"""Maximum number of pairs of equal lines that difflib compares in one pass, which takes some tenths of a second."""

Line = TypeVar("Line", bound=str | bytes)


class LineRange(NamedTuple):
    """Lines ``first`` to ``last``, counted from 1. An insertion before ``first`` has ``last == first - 1``."""

    first: int
    last: int


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` with their endings."""
    return _LINES.findall(text)


def line_count(data: bytes) -> int:
    """The number of lines of a file."""
    return len(_file_lines(data)[1])


def resolve_span(total: int, start: int | None, end: int | None) -> LineRange:
    """The lines that ``start`` and ``end`` select in a file of ``total`` lines.

    - neither is given: the whole file;
    - only ``start`` is given: that line;
    - ``end = start - 1``: an insertion before ``start``;
    - ``start = total + 1``: an append.

    Raises:
        EditError: The file does not have these lines. The message contains the valid range.
    """
    if start is None:
        if end is not None:
            raise EditError("end was given without start; give both, start alone, or neither for the whole file")
        return LineRange(1, total)
    if not 1 <= start <= total + 1:
        raise EditError(f"start is {start}, but {_describe(total)}")
    if start == total + 1:
        if end is not None and end not in (total, total + 1):
            raise EditError(f"end is {end}, but start {start} appends to a file of {total} lines; leave end out")
        return LineRange(start, total)
    if end is None:
        return LineRange(start, start)
    if not start - 1 <= end <= total:
        raise EditError(
            f"end is {end}, but with start {start} it must be {start} to {total}, or {start - 1} to insert before line "
            f"{start}"
        )
    return LineRange(start, end)


def _describe(total: int) -> str:
    if total == 0:
        return "the file is empty: start must be 1, or leave the range out"
    return f"the file has {total} lines: start must be 1 to {total}, or {total + 1} to append"


def rewrite_text(old: bytes, start: int | None, end: int | None, new_code: str) -> bytes:
    """Replace the lines that ``start`` and ``end`` select (see :func:`resolve_span`) by ``new_code``.

    Every new line gets a line ending. If the last line of the file had none, the new last line has none either.

    Raises:
        EditError: The lines do not exist, or the text cannot be decoded or encoded.
    """
    mark, lines = _file_lines(old)
    first, last = resolve_span(len(lines), start, end)
    before, after = lines[: first - 1], lines[last:]
    unterminated = bool(lines) and not lines[-1].endswith(("\r", "\n"))
    newline = _dominant_newline(lines)
    new = [line.rstrip("\r\n") + newline for line in split_lines(new_code.removeprefix("\ufeff"))]
    if unterminated and not after and new:
        # An empty line without a line ending would disappear.
        new[-1] = new[-1].removesuffix(newline) or newline
        if before and not before[-1].endswith(("\r", "\n")):
            before[-1] += newline
    return mark + _encode(old, before, new, after)


def _file_lines(data: bytes) -> tuple[bytes, list[str]]:
    """The byte order mark and the lines. Only UTF-16 and UTF-32 are decoded. Other bytes are read as Latin-1."""
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
    # The cookie of the new file is used, because the edit may have added, moved or removed it.
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
    """The byte order mark at the beginning of ``data``, or empty bytes."""
    return next((mark for mark, _ in _MARKS if data.startswith(mark)), b"")


def is_wide(data: bytes) -> bool:
    """Whether the encoding is UTF-16 or UTF-32, so that the bytes cannot be split into lines without decoding."""
    return byte_order_mark(data) not in (b"", codecs.BOM_UTF8)


def declared_encoding(data: bytes) -> str:
    """The name of the codec that the file declares. UTF-8 if it declares none, or one that does not exist."""
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
    """The codec ``name`` if it is a superset of ASCII, else UTF-8: in other codecs the cookie would be unreadable."""
    try:
        found = codecs.lookup(name)
        encoded = "a\n".encode(name)
    except (LookupError, UnicodeError):
        return "utf-8"
    return found.name if encoded == b"a\n" and found.name != "utf-8-sig" else "utf-8"


def decode_text(data: bytes) -> str:
    """The text without byte order mark. Undecodable bytes are replaced. Line endings are kept."""
    mark = byte_order_mark(data)
    return data[len(mark) :].decode(declared_encoding(data), "replace")


class LineMatcher(SequenceMatcher[Line]):
    """A ``SequenceMatcher`` whose time does not grow with the product of the lengths of both texts.

    The common beginning and end are removed first. The longest match is then searched around the middle of the rest,
    and the parts before and after the match are searched in the same way. If lines repeat too often, a match can only
    begin at a rare line (``autojunk``). The alignment is always valid. It is longer than necessary only for large texts
    that have little in common.
    """

    def __init__(self, before: Sequence[Line], after: Sequence[Line]) -> None:
        self._lengths = len(before), len(after)
        self._head, self._tail = _common_ends(before, after)
        occurrences = Counter(after)
        pairs = sum(occurrences[line] for line in before[self._head : len(before) - self._tail])
        super().__init__(None, before, after, autojunk=pairs > _PAIRS)

    def get_matching_blocks(self) -> list[Match]:
        """Maximal runs of equal lines, ascending in both texts, and an empty run at the end."""
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
