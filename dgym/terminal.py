r"""Text of programs, models, files and clusters as a terminal may show it.

A terminal obeys control characters: they move the cursor, set the clipboard (OSC 52) and rename the window. Characters
that set the direction of text or that have no width make a line read differently from what it is. Both kinds are
written out as escapes, ``\x1b`` for ESC; newlines and tabs stay.
"""

import re

_UNPRINTABLE = re.compile(
    # Controls (C0 and C1), then what Unicode calls default ignorable: direction, joiners, variation selectors, fillers.
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    # Separators of lines and paragraphs, half surrogate pairs, and tags.
    r"\u2028\u2029\ud800-\udfff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """``text`` with every character that drives or deceives a terminal written out; CR LF becomes a newline."""
    return _UNPRINTABLE.sub(_escape, text.replace("\r\n", "\n"))


def printable_line(text: str) -> str:
    """``text`` in one line: newlines are written out as well, so that the text cannot forge another line."""
    return printable(text).replace("\n", "\\n")


def printable_json(text: str) -> str:
    """A JSON document, indented or not, with the same characters as JSON's escapes: it decodes to the same value."""
    return _UNPRINTABLE.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))
