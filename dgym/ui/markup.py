"""Text of programs as HTML: colours of terminals, diffs, and everything else written out.

No value becomes an attribute, an address or a style here; colours are classes of the page's own style sheet.
"""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from dgym.terminal import printable

SHOWN_CHARACTERS = 96 * 1024
"""Characters of one text in a page; dgym's own observations have at most 64 KiB."""
_COLOUR_CHANGES = 4_000

_SGR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_BASIC = {30: 0, 40: 0, 90: 8, 100: 8}


def plain(text: str) -> Markup:
    """``text`` escaped, without characters that drive or deceive a reader."""
    return escape(printable(text))


def clipped(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """``text`` with at most ``limit`` characters: head and tail are kept and the cut is marked."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out here …]\n{text[-half:]}"


def terminal_text(text: str) -> Markup:
    """Output of a program with its colours; other commands to a terminal are written out as escapes."""
    parts: list[Markup] = []
    style: frozenset[str] = frozenset()
    position = 0
    for number, match in enumerate(_SGR.finditer(text)):
        if number >= _COLOUR_CHANGES:
            break
        parts.append(_span(text[position : match.start()], style))
        style = _changed(style, match[1])
        position = match.end()
    parts.append(_span(text[position:], style))
    return Markup("").join(parts)


def _span(text: str, style: frozenset[str]) -> Markup:
    if not text or not style:
        return plain(text)
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(style)), plain(text))


def _changed(style: frozenset[str], parameters: str) -> frozenset[str]:
    """The classes after a Select Graphic Rendition sequence (ECMA-48, 8.3.117)."""
    codes = iter([int(part) if part.isdecimal() else 0 for part in re.split("[;:]", parameters)])
    for code in codes:
        if code == 0:
            style = frozenset()
        elif code in (38, 48):
            colour = _extended(codes)
            style = _with_colour(style, "f" if code == 38 else "b", colour)
        elif code in (39, 49):
            style = _with_colour(style, "f" if code == 39 else "b", None)
        elif code in _EFFECTS:
            style |= {_EFFECTS[code]}
        elif code in _ENDS:
            style -= _ENDS[code]
        else:
            base = code // 10 * 10
            if base in _BASIC and code % 10 < 8:
                style = _with_colour(style, "f" if base in (30, 90) else "b", _BASIC[base] + code % 10)
    return style


_EFFECTS = {1: "bold", 2: "dim", 3: "ital", 4: "under", 7: "inv", 9: "strike"}
"""Text is never concealed (8) and never blinks (5)."""
_ENDS = {
    22: frozenset({"bold", "dim"}),
    23: frozenset({"ital"}),
    24: frozenset({"under"}),
    27: frozenset({"inv"}),
    29: frozenset({"strike"}),
}


def _with_colour(style: frozenset[str], ground: str, colour: int | None) -> frozenset[str]:
    rest = frozenset(name for name in style if not re.fullmatch(rf"{ground}\d+", name))
    return rest if colour is None else rest | {f"{ground}{colour}"}


def _extended(codes: Iterator[int]) -> int | None:
    """The nearest of the 16 colours to one of 256, or to red, green and blue; None for what is neither."""
    kind = next(codes, None)
    if kind == 5:
        number = next(codes, 0)
        if number < 16:
            return number
        if number < 232:
            return _nearest((number - 16) // 36 * 51, (number - 16) // 6 % 6 * 51, (number - 16) % 6 * 51)
        return _nearest(*[(number - 232) * 10 + 8] * 3) if number < 256 else None
    if kind == 2:
        return _nearest(next(codes, 0), next(codes, 0), next(codes, 0))
    return None


def _nearest(red: int, green: int, blue: int) -> int:
    bright = 8 if max(red, green, blue) > 191 else 0
    bits = sum(bit for bit, part in ((1, red), (2, green), (4, blue)) if part > 95)
    return bits + bright


def diff_text(text: str) -> Markup:
    """A unified diff, each line in the class of its kind."""
    return Markup("").join(_diff_line(line) for line in _lines(text))


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a newline ends a line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _diff_line(line: str) -> Markup:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "meta"
    else:
        kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
    return _block(kind, plain(line.removesuffix("\n"))) if kind else plain(line)


def _block(kind: str, line: Markup) -> Markup:
    """A line of its own: a block, which needs no newline to end."""
    return Markup('<span class="{}">{}</span>').format(kind, line or Markup(" "))


_STOP = re.compile(r"B\s*\d+\s{2}")
_LISTED = re.compile(r"\d+\s{2}")


def debugger_text(text: str) -> Markup:
    """Output of pdb: the line at which the program stands and lines with breakpoints stand out."""
    return Markup("").join(_debugger_line(line) for line in _lines(text))


def _debugger_line(line: str) -> Markup:
    arrow = line.startswith(("->", ">>"))
    rest = line[2 * arrow :].lstrip()
    stop = _STOP.match(rest) is not None
    kind = "here" if arrow and (stop or _LISTED.match(rest)) else "stop" if stop else ""
    return _block(kind, terminal_text(line.removesuffix("\n"))) if kind else terminal_text(line)
