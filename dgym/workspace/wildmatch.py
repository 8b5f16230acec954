"""One gitignore pattern as a regular expression with git's exact meaning.

Git matches bytes, treats ``[a/]`` as one class that never matches a slash, discards a pattern with a broken class and
takes a ``**`` that follows a literal prefix of a path pattern for a leading one. Libraries differ from git in one or
another of these, and a difference decides whether a secret file is visible, so the translation is ours and is tested
against git itself. Stars become atomic groups wherever a later star makes trying further matches pointless, which
keeps a hostile pattern from taking exponential time.
"""

import re
from typing import NamedTuple

_CLASSES: dict[bytes, bytes] = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb"\t-\r ",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
_WILD = re.compile(rb"[*?\[\\]")
_NAMED_CLASS = re.compile(rb"\[:([^]]*):\]")

_STAR, _DEEP, _REST, _SLASH = b"*", b"**/", b"**", b"/"
"""Markers among the pieces of a regular expression."""


class Pattern(NamedTuple):
    """One line of an ignore file. ``regex`` is None for a pattern that can never match."""

    regex: re.Pattern[bytes] | None
    negative: bool
    directories_only: bool
    basename_only: bool

    def matches(self, path: bytes, *, is_dir: bool) -> bool:
        """Whether the pattern names ``path``, relative to the directory of its ignore file."""
        if self.regex is None or (self.directories_only and not is_dir):
            return False
        name = path.rpartition(b"/")[2] if self.basename_only else path
        return self.regex.fullmatch(name) is not None


def parse_patterns(text: str) -> list[Pattern]:
    """The patterns of an ignore file, comments and blank lines left out."""
    text = text.removeprefix("\ufeff")
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "surrogatepass")  # a name no file can have; the other lines still count
    patterns = []
    for line in encoded.split(b"\n"):
        bare = line.removesuffix(b"\r")
        if bare and not bare.startswith(b"#"):
            patterns.append(_parse_line(_without_trailing_spaces(bare)))
    return patterns


def _without_trailing_spaces(line: bytes) -> bytes:
    end, escaped = 0, False
    for index, byte in enumerate(line):
        if byte != ord(" ") or escaped:
            end = index + 1
        escaped = byte == ord("\\") and not escaped
    return line[:end]


def _parse_line(line: bytes) -> Pattern:
    negative = line.startswith(b"!")
    body = line[1:] if negative else line
    directories_only = body.endswith(b"/")
    if directories_only:
        body = body[:-1]
    basename_only = b"/" not in body
    regex = None
    if body:
        tokens = _tokens(body.removeprefix(b"/") if not basename_only else body, in_path=not basename_only)
        regex = None if tokens is None else re.compile(_expression(tokens), re.DOTALL)
    return Pattern(regex, negative, directories_only, basename_only)


def _tokens(pattern: bytes, *, in_path: bool) -> list[bytes] | None:
    """Regular expression pieces and markers, or None when git would never match the pattern."""
    wild = _WILD.search(pattern)
    prefix = wild.start() if wild else len(pattern)
    tokens = [_SLASH if byte == ord("/") else re.escape(bytes([byte])) for byte in pattern[:prefix]]
    at = prefix
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            token, at = _stars(pattern, at, boundary=in_path and (at == prefix or pattern[at - 1 : at] == b"/"))
        elif byte == b"[":
            found = _bracket(pattern, at)
            if found is None:
                return None
            token, at = found
        elif byte == b"\\":
            if at + 1 == len(pattern):
                return None
            token, at = _literal(pattern[at + 1 : at + 2]), at + 2
        else:
            token, at = (rb"[^/]" if byte == b"?" else _literal(byte)), at + 1
        tokens.append(token)
    return tokens


def _literal(byte: bytes) -> bytes:
    return _SLASH if byte == b"/" else re.escape(byte)


def _stars(pattern: bytes, at: int, *, boundary: bool) -> tuple[bytes, int]:
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    if end - at > 1 and boundary:
        if end == len(pattern):
            return _REST, end
        if pattern[end : end + 1] == b"/":
            return _DEEP, end + 1
        if pattern[end : end + 2] == b"\\/":
            return rb".*", end
    return _STAR, end


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """The class that begins at ``at`` and where it ends; None when it is broken."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    previous: int | None = None
    start = at
    while pattern[at : at + 1] != b"]" or at == start:
        if pattern[at : at + 1] == b"-" and previous is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            high, at = _member(pattern, at + 1)
            if high is None:
                return None
            members.append(_range(previous, high))
            previous = None
        elif (named := _NAMED_CLASS.match(pattern, at)) is not None:
            if named[1] not in _CLASSES:
                return None
            members.append(_CLASSES[named[1]])
            previous, at = None, named.end()
        else:
            previous, at = _member(pattern, at)
            if previous is None:
                return None
            members.append(_range(previous, previous))
    inside = b"".join(members)
    if negated:
        return b"[^/" + inside + b"]", at + 1
    return (rb"(?!/)[" + inside + b"]" if inside else rb"(?!)"), at + 1


def _member(pattern: bytes, at: int) -> tuple[int | None, int]:
    """The byte at ``at``, or after a backslash there, and where the next one stands; no byte at the end."""
    if pattern[at : at + 1] == b"\\":
        at += 1
    return (pattern[at] if at < len(pattern) else None), at + 1


def _range(low: int, high: int) -> bytes:
    return rb"\x%02x-\x%02x" % (low, high) if low <= high else b""


def _expression(tokens: list[bytes]) -> bytes:
    """Join the pieces; a star or ``**`` that another one follows need only try its first match."""
    parts: list[bytes] = []
    star_open = deep_open = False
    for index, token in enumerate(tokens):
        if token in (_SLASH, _DEEP, _REST, _STAR) and star_open:
            parts.append(b")")
            star_open = False
        if token in (_DEEP, _REST) and deep_open:
            parts.append(b")")
            deep_open = False
        if token == _STAR:
            star_open = _followed_by_star(tokens, index + 1)
            parts.append(rb"(?>[^/]*?" if star_open else rb"[^/]*")
        elif token == _DEEP:
            deep_open = any(later in (_DEEP, _REST) for later in tokens[index + 1 :])
            parts.append(rb"(?>(?:.*?/)??" if deep_open else rb"(?:.*/)?")
        elif token == _REST:
            parts.append(rb".*")
        else:
            parts.append(token)
    return b"".join(parts)


def _followed_by_star(tokens: list[bytes], start: int) -> bool:
    for token in tokens[start:]:
        if token in (_SLASH, _DEEP, _REST):
            return False
        if token == _STAR:
            return True
    return False
