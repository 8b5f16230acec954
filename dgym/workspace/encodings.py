"""How the text of a source file is encoded: a byte order mark, else a PEP 263 cookie, else UTF-8."""

import codecs
import re

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
