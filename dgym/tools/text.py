"""Text in and out of tools: words of a call, numbered lines, bounds."""

import shlex
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated

from msgspec import Meta

OutputBytes = Annotated[int, Meta(ge=1024, le=56 * 1024)]
"""The type of the option ``outputBytes``; the largest fits into an observation."""

OUTPUT_BYTES = 8 * 1024
"""Every later step pays for an observation, so the default is small."""


def split_words(text: str) -> list[str]:
    """Split as a shell would; ``ValueError`` names what is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        reason = str(error).lower().rstrip(".")
        raise ValueError(f"cannot be split into words: {reason}. Quote words as in a shell.") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """``" Did you mean `x`?"`` for the closest known word, or nothing."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean `{matches[0]}`?" if matches else ""


def numbered(
    lines: Sequence[str], first: int, *, breakpoints: Collection[int] = (), current: int | None = None
) -> list[str]:
    """Lines with their numbers, ``B`` at breakpoints and ``->`` at the current line."""
    width = len(str(first + len(lines)))
    arrow = "   " if current is not None else ""
    rendered = []
    for number, line in enumerate(lines, first):
        pointer = "-> " if number == current else arrow
        mark = "B" if number in breakpoints else " "
        rendered.append(f"{pointer}{mark} {number:>{width}}  {line}".rstrip())
    return rendered


def cut_notice(cut: int, advice: str) -> str:
    """A sentence about the bytes that the marks in an answer count; nothing where none were cut."""
    return f"{plural(cut, 'byte')} cut; {advice}." if cut else ""


def plural(count: int, noun: str) -> str:
    """``"1 line"``, ``"2 lines"``, ``"2 matches"``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
