import codecs
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.errors import EditError
from dgym.workspace import LineRange, decode_text, line_count, resolve_span, rewrite_text, split_lines
from dgym.workspace._text import declared_encoding


@pytest.mark.parametrize(
    ("old", "start", "end", "new", "expected"),
    [
        # The grammar: whole file, single line, range, insertion, append.
        (b"a\nb\nc\n", None, None, "x", b"x\n"),
        (b"a\nb\nc\n", 2, None, "x", b"a\nx\nc\n"),
        (b"a\nb\nc\n", 2, 3, "x\ny\nz", b"a\nx\ny\nz\n"),
        (b"a\nb\nc\n", 2, 1, "x\n", b"a\nx\nb\nc\n"),
        (b"a\nb\nc\n", 1, 0, "x", b"x\na\nb\nc\n"),
        (b"a\nb\nc\n", 4, None, "x", b"a\nb\nc\nx\n"),
        (b"a\nb\nc\n", 4, 3, "x", b"a\nb\nc\nx\n"),
        (b"a\nb\nc\n", 2, 2, "", b"a\nc\n"),
        (b"a\n", None, None, "", b""),
        (b"", 1, None, "x", b"x\n"),
        (b"", None, None, "x\ny", b"x\ny\n"),
        (b"a\nb\n", 1, None, "\n", b"\nb\n"),
        # A missing final newline stays missing. Other lines keep their newlines.
        (b"a\nb", 1, None, "x", b"x\nb"),
        (b"a\nb", 2, None, "x\n", b"a\nx"),
        (b"a\nb", 3, None, "x\n", b"a\nb\nx"),
        (b"a\nb", 2, None, "", b"a\n"),
        (b"a\nb", None, None, "x\ny\n", b"x\ny"),
        # New code takes the file's line ending.
        (b"a\r\nb\r\n", 2, None, "x\ny\n", b"a\r\nx\r\ny\r\n"),
        (b"a\rb\r", 1, None, "x\n", b"x\rb\r"),
        (b"a\nb\r\nc\r\n", 1, None, "x", b"x\r\nb\r\nc\r\n"),
        (b"a\nb\n", 2, None, "x\r\ny", b"a\nx\ny\n"),
        # Only \r\n, \r and \n end lines.
        (b"a\x0cb\n\xe2\x80\xa8c\nd\n", 2, None, "x\x0cy", b"a\x0cb\nx\x0cy\nd\n"),
        # Bytes that are not text are kept.
        (b"\xff\xfd\nb\n\x80", 2, None, "\u00e9", b"\xff\xfd\n\xc3\xa9\n\x80"),
        # Encodings: cookie, byte order marks.
        (b"# coding: latin-1\nx = '\xe9'\n", 2, None, "y = '\u00fc'", b"# coding: latin-1\ny = '\xfc'\n"),
        (b"#!/x\n# -*- coding: cp1251 -*-\na\n", 3, None, "\u0436", b"#!/x\n# -*- coding: cp1251 -*-\n\xe6\n"),
        (b"# coding: latin-1\na\n", 1, None, "# coding: utf-8\n# \u00e9", b"# coding: utf-8\n# \xc3\xa9\na\n"),
        (b"# coding: latin-1\na\n", None, None, "\u20ac", b"\xe2\x82\xac\n"),
        (b"# coding: nonsense\na\n", 2, None, "\u00e9", b"# coding: nonsense\n\xc3\xa9\n"),
        (codecs.BOM_UTF8 + b"a\nb\n", 1, 0, "x", codecs.BOM_UTF8 + b"x\na\nb\n"),
        (codecs.BOM_UTF8 + b"a\n", None, None, "\ufeffx", codecs.BOM_UTF8 + b"x\n"),
    ],
)
def test_rewrite(old, start, end, new, expected):
    assert rewrite_text(old, start, end, new) == expected


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encodings(codec):
    mark = "\ufeff".encode(codec)
    old = mark + "a\r\n\u010a\u0a0d\r\nc".encode(codec)
    assert rewrite_text(old, 1, None, "\u00e9\n\u20ac") == mark + "\u00e9\r\n\u20ac\r\n\u010a\u0a0d\r\nc".encode(codec)
    assert line_count(old) == 3
    assert decode_text(old) == "a\r\n\u010a\u0a0d\r\nc"


def test_a_broken_wide_file_is_refused():
    with pytest.raises(EditError, match="not valid utf-16-le"):
        rewrite_text(codecs.BOM_UTF16_LE + b"a", 1, None, "x")


def test_text_that_the_encoding_cannot_represent_is_refused():
    with pytest.raises(EditError, match=r"U\+20AC.*iso8859-1"):
        rewrite_text(b"# coding: latin-1\n", 2, None, "\u20ac")
    with pytest.raises(EditError, match=r"U\+D800.*utf-8"):
        rewrite_text(b"", None, None, "\ud800")


@pytest.mark.parametrize(
    ("total", "start", "end", "message"),
    [
        (3, None, 2, "end was given without start"),
        (3, 0, None, "start must be 1 to 3, or 4 to append"),
        (3, -1, None, "start must be 1 to 3"),
        (3, 5, None, "the file has 3 lines"),
        (3, 2, 0, "must be 2 to 3, or 1 to insert before line 2"),
        (3, 2, 4, "must be 2 to 3"),
        (3, 4, 9, "leave end out"),
        (0, 2, None, "the file is empty"),
    ],
)
def test_missing_lines_are_refused(total, start, end, message):
    with pytest.raises(EditError, match=message):
        resolve_span(total, start, end)


lines = st.lists(st.sampled_from(("a", "b", "", "\u00e9", "\x0c", "\u2028", "\x85")), max_size=8)
newlines = st.sampled_from(("\n", "\r\n", "\r"))


@given(lines, newlines, st.booleans(), lines, newlines, st.booleans(), st.data())
def test_a_rewrite_is_a_replacement_of_lines(old, newline, terminated, new, new_newline, new_terminated, data):
    old_text = newline.join(old) + (newline if terminated and old else "")
    total = len(split_lines(old_text))
    start = data.draw(st.integers(1, total + 1))
    end = data.draw(st.integers(start - 1, total))
    new_text = new_newline.join(new) + (new_newline if new_terminated and new else "")
    result = rewrite_text(old_text.encode(), start, end, new_text).decode()
    bare = [line.rstrip("\r\n") for line in split_lines(old_text)]
    expected = [*bare[: start - 1], *(line.rstrip("\r\n") for line in split_lines(new_text)), *bare[end:]]
    assert [line.rstrip("\r\n") for line in split_lines(result)] == expected
    untouched_head = "".join(split_lines(old_text)[: start - 1])
    assert result.startswith(untouched_head)


@given(st.binary(max_size=60), st.text(alphabet="ab\n", max_size=10))
@example(b"\xef\xbb\xbf", "a")
def test_lines_outside_the_range_keep_their_bytes(old, new):
    if old.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return
    before = [line.encode("latin-1") for line in split_lines(old.decode("latin-1"))]
    for first in range(1, len(before) + 1):
        result = rewrite_text(old, first, first, new)
        assert result.startswith(b"".join(before[: first - 1]) if first > 1 else b"")
        assert result.endswith(b"".join(before[first:]))


@given(st.text(alphabet="a\r\n\x0c\x85\u2028", max_size=20))
def test_lines_end_where_python_ends_them(text):
    with io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", newline="") as reader:
        assert split_lines(text) == list(reader)
    assert "".join(split_lines(text)) == text


def test_spans():
    assert resolve_span(3, None, None) == LineRange(1, 3)
    assert resolve_span(3, 2, None) == LineRange(2, 2)
    assert resolve_span(3, 2, 1) == LineRange(2, 1)
    assert resolve_span(3, 4, 4) == LineRange(4, 3)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"", "utf-8"),
        (b"# vim: set fileencoding=latin-1 :\n", "iso8859-1"),
        (b"x = 1\n# coding: latin-1\n", "utf-8"),
        (b"\n# coding: latin-1\n", "iso8859-1"),
        (b"\n\n# coding: latin-1\n", "utf-8"),
        (b"# coding: rot13\n", "utf-8"),
        (b"# coding: utf-16\n", "utf-8"),
        (b"# coding: utf-8-sig\n", "utf-8"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", "utf-8"),
    ],
)
def test_declared_encoding(data, encoding):
    assert declared_encoding(data) == encoding


def test_decode_text_replaces_undecodable_bytes():
    assert decode_text(codecs.BOM_UTF8 + b"a\xff\r\n") == "a\ufffd\r\n"
