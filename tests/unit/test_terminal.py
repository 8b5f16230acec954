import json
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.terminal import printable, printable_json, printable_line

ZERO_WIDTH = "\u00ad\u034f\u061c\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\u3164\ufe0f\ufeff\uffa0"
BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from(f"\x1b\x07\x9b\x9d\r\n\t{BIDI}{ZERO_WIDTH}\U000e0041")))


def assert_harmless(text):
    for character in text:
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert character not in BIDI
        assert character not in ZERO_WIDTH
        assert not "\U000e0000" <= character <= "\U000e0fff"


@given(HOSTILE)
@example("\x1b]52;c;cm0gLXJmIC8=\x07")
def test_printable_text_has_no_terminal_escapes(text):
    assert_harmless(printable(text))
    assert_harmless(printable_line(text))
    assert "\n" not in printable_line(text)
    assert printable(printable(text)) == printable(text)


@given(
    st.text(
        st.characters(exclude_categories=["C", "Z"], exclude_characters=f"{BIDI}{ZERO_WIDTH}", max_codepoint=0xFDFF)
    )
)
def test_ordinary_text_is_kept(text):
    kept = re.sub(r"[\u115f\u1160\u17b4\u17b5\u180b-\u180f]", "", text)
    assert printable(kept) == kept


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nü → 漢字\r\n", "a\tb\nü → 漢字\n"),
        ("\x1b[2J", "\\x1b[2J"),
        ("10%\r99%", "10%\\x0d99%"),
        ("if a:\u202e # ⁦", "if a:\\u202e # \\u2066"),
        ("pass\u200bword\U000e0041", "pass\\u200bword\\U000e0041"),
        ("\udc80", "\\udc80"),
    ],
)
def test_escapes_of_special_characters(text, shown):
    assert printable(text) == shown


@given(st.recursive(HOSTILE.map(lambda text: text.encode("utf-8", "replace").decode()), st.lists, max_leaves=4))
def test_printable_json_decodes_to_the_same_value(value):
    shown = printable_json(json.dumps(value, ensure_ascii=False))
    assert_harmless(shown)
    assert json.loads(shown) == value
