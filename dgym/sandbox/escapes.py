"""Escape sequences of terminals: colours, cursor movements, titles. Pure."""

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences (ECMA-48, 5.4)
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)


def without_escapes(text: str) -> str:
    """``text`` without its escape sequences; lines that a terminal would overwrite stay."""
    return _SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text
