r"""Makes text from programs, models, files and clusters safe for a terminal.

Control characters move the cursor, set the clipboard (OSC 52) and rename the window. Characters that set the direction
of text or have no width can make a line look different from its contents. Both kinds are replaced by escapes, such as
``\x1b`` for ESC. Newlines and tabs are kept.
"""

import re

_UNPRINTABLE = re.compile(
    # Controls (C0 and C1); Unicode's default ignorable characters: direction, joiners, variation selectors, fillers.
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    # Line and paragraph separators, surrogates, and tags.
    r"\u2028\u2029\ud800-\udfff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """Return ``text`` with unsafe characters replaced by escapes, and CR LF replaced by a newline."""
    return _UNPRINTABLE.sub(_escape, text.replace("\r\n", "\n"))


def printable_line(text: str) -> str:
    """Return ``text`` in one line. Newlines are escaped too, so that the text cannot imitate another line."""
    return printable(text).replace("\n", "\\n")


def printable_json(text: str) -> str:
    """Return a JSON document with unsafe characters replaced by JSON escapes. It decodes to the same value."""
    return _UNPRINTABLE.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))
