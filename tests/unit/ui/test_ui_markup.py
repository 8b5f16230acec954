"""Tests of the conversion of program text to HTML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.ui._pages import clipped, debugger_text, diff_text, terminal_text

TAG = re.compile(r'</?span(?: class="[a-z0-9 ]+")?>')
HOSTILE = st.text(st.sampled_from("\x1b[];m0139:48;5<>&'\"\\/abc\n\r\u202e\ud800 +-@B>"), max_size=60)


@pytest.mark.parametrize("render", [terminal_text, diff_text, debugger_text])
@given(text=HOSTILE)
def test_the_markup_contains_only_spans(render, text):
    rest = TAG.sub("", str(render(text)))
    assert not re.search(r"[<>\"'\x00-\x08\x0b-\x1f\u202e]", rest)
    rest.encode()


def test_colours_become_classes():
    assert str(terminal_text("\x1b[1;31mred\x1b[0m plain")) == '<span class="bold f1">red</span> plain'
    assert str(terminal_text("\x1b[38;5;196mred\x1b[39mplain")) == '<span class="f9">red</span>plain'
    assert str(terminal_text("\x1b[38;2;0;200;0mgreen")) == '<span class="f10">green</span>'


@pytest.mark.attack("page")
def test_terminal_commands_are_shown_as_text():
    link = "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\"
    assert "href" not in str(terminal_text(link))
    assert "\\x1b]8;;https://evil.example" in str(terminal_text(link))
    assert str(terminal_text("\x1b[8mhidden")) == "hidden"


def test_lines_of_a_diff_have_the_class_of_their_kind():
    assert str(diff_text("@@ -1 +1 @@\n-a\n+b\n c\n")) == (
        '<span class="hunk">@@ -1 +1 @@</span><span class="del">-a</span><span class="add">+b</span> c\n'
    )


def test_long_text_keeps_head_and_tail():
    text = clipped("a" * 1000 + "z" * 1000, limit=100)
    assert text.startswith("a" * 50 + "\n")
    assert text.endswith("\n" + "z" * 50)
    assert "1,900 characters" in text


@pytest.mark.timeout(60)  # A regular expression that backtracks would take hours.
@pytest.mark.attack("slow-text")
@pytest.mark.parametrize("text", [" " * 65_536 + "x", "->" + " " * 65_536 + "x", "B" + "1" * 65_536, "\n" * 65_536])
def test_text_takes_time_in_proportion_to_its_length(text):
    debugger_text(text)


def test_lines_of_the_debugger_have_the_class_of_their_kind():
    assert str(debugger_text("  3 B->\tx\n")).startswith("  3")
    assert str(debugger_text("->  4  x\n")) == '<span class="here">-&gt;  4  x</span>'
    assert str(debugger_text("-> B  4  x\n")) == '<span class="here">-&gt; B  4  x</span>'
    assert str(debugger_text("   B  4  x\n")) == '<span class="stop">   B  4  x</span>'
    assert str(debugger_text("      4  x\n")) == "      4  x\n"
