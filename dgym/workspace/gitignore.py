"""Rules of gitignore(5), read and matched as git's ``dir.c`` and ``wildmatch.c`` do.

Git compares bytes, so patterns and paths are compared as bytes. A pattern keeps every position that it can have
reached as a bit of one number: the time grows with the product of both lengths, whatever the pattern.
"""

import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

from dgym.workspace.paths import ancestors

_REMEMBERED_DIRECTORIES = 1024
_SPECIAL = frozenset(b"*?[\\")
_SLASH = ord("/")
_OF_A_NAME = frozenset(range(256)) - {_SLASH}
_CLASSES = {
    name.encode(): frozenset(characters.encode())
    for name, characters in {
        "alnum": string.ascii_letters + string.digits,
        "alpha": string.ascii_letters,
        "blank": " \t",
        "cntrl": "".join(map(chr, [*range(32), 127])),
        "digit": string.digits,
        "graph": "".join(map(chr, range(33, 127))),
        "lower": string.ascii_lowercase,
        "print": "".join(map(chr, range(32, 127))),
        "punct": string.punctuation,
        "space": " \t\n\r",  # Git's isspace() is false for \v and \f.
        "upper": string.ascii_uppercase,
        "xdigit": string.hexdigits,
    }.items()
}


class Rules:
    """The ignore files of one kind, by the directory they stand in ("" for the workspace).

    ``extra`` are lines of the workspace that overrule all files.
    """

    def __init__(self, files: Mapping[str, str], extra: Sequence[str] = ()) -> None:
        self._files = {directory: _read(text) for directory, text in files.items()}
        self._extra = _read("\n".join(extra))
        # Thousands of files share a directory, and whether it is excluded depends on nothing else.
        self._excludes_directory = lru_cache(_REMEMBERED_DIRECTORIES)(self._names_directory)

    def excludes(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether ``path`` or a directory above it is excluded."""
        if not self._files and not self._extra:
            return False
        return any(map(self._excludes_directory, ancestors(path))) or self._names(path, is_dir=is_dir)

    def _names_directory(self, path: str) -> bool:
        return self._names(path, is_dir=True)

    def _names(self, path: str, *, is_dir: bool) -> bool:
        """Whether the last line that matches ``path`` itself excludes it. The directories above are not excluded."""
        name = _encode(path.rpartition("/")[2])
        homes = [home for home in reversed(("", *ancestors(path))) if home in self._files]
        for home, patterns in chain([("", self._extra)], ((home, self._files[home]) for home in homes)):
            below = _encode(path[len(home) + 1 :] if home else path)
            for pattern in reversed(patterns):
                if pattern.matches(below, name, is_dir=is_dir):
                    return not pattern.includes
        return False


class Pattern:
    """One line of an ignore file."""

    def __init__(self, line: bytes) -> None:
        self.includes = line.startswith(b"!")
        body = line.removeprefix(b"!")
        self._directories_only = body.endswith(b"/")
        body = body.removesuffix(b"/")
        self._any_directory = b"/" not in body
        body = body.removeprefix(b"/")
        # Git compares the literal beginning by itself. So the stars of "a**/b" are the first characters of the rest.
        length = next((at for at, byte in enumerate(body) if byte in _SPECIAL), len(body))
        self._literal, rest = body[:length], body[length:]
        ending = rest[1:]
        self._ending = ending if self._any_directory and rest[:1] == b"*" and not _SPECIAL & set(ending) else None
        self._glob = _Glob(rest)
        self.matches_nothing = self._glob.is_broken or any(name in (b"", b".", b"..") for name in body.split(b"/"))
        """True if no path can match: an empty name, ``.``, ``..``, a class without an end, a final backslash."""

    def matches(self, below: bytes, name: bytes, *, is_dir: bool) -> bool:
        """Whether the pattern matches the path that is ``below`` the directory of its file, and is called ``name``."""
        if self._directories_only and not is_dir:
            return False
        text = name if self._any_directory else below
        if not text.startswith(self._literal):
            return False
        if self._ending is not None:
            return text.endswith(self._ending, len(self._literal))
        return self._glob.matches(text[len(self._literal) :])


class _Glob:
    """A compiled pattern of wildmatch with the flag ``WM_PATHNAME``."""

    def __init__(self, pattern: bytes) -> None:
        self._tokens: list[frozenset[int]] = []
        """The bytes that each token takes once, or any number of times if it is a star."""
        self._stars = 0
        self._deep = 0
        """The stars that take a slash."""
        self._optional = 0
        """The stars of ``**/``, which may match nothing together with their slash."""
        self._masks: dict[int, int] = {}
        self.is_broken = not self._compile(pattern)
        self._end = 1 << len(self._tokens)

    def matches(self, text: bytes) -> bool:
        """Whether the pattern matches the whole ``text``."""
        if self.is_broken:
            return False
        reached = self._enter(1)
        for byte in text:
            if not reached:
                return False
            mask = self._masks.get(byte)
            if mask is None:
                mask = self._masks[byte] = self._mask(byte)
            stars = reached & (self._deep if byte == _SLASH else self._stars)
            reached = stars | stars << 1 | self._enter((reached & mask) << 1)
        return bool(reached & self._end)

    def _enter(self, arrived: int) -> int:
        """The positions reached without another byte from those that were just reached."""
        arrived |= (arrived & self._optional) << 2
        return arrived | (arrived & self._stars) << 1

    def _mask(self, byte: int) -> int:
        """The tokens, other than stars, that take ``byte``."""
        digits = "".join("1" if byte in token else "0" for token in reversed(self._tokens))
        return int(digits or "0", 2)

    def _compile(self, pattern: bytes) -> bool:
        """Append the tokens of ``pattern``; False if it is malformed."""
        at = 0
        while at < len(pattern):
            byte = pattern[at]
            if byte == ord("*"):
                at = self._compile_stars(pattern, at)
                continue
            if byte == ord("["):
                found = _read_class(pattern, at)
                if found is None:
                    return False
                token, at = found
                self._tokens.append(token)
                continue
            if byte == ord("\\"):
                at += 1
                if at == len(pattern):
                    return False
            self._tokens.append(_OF_A_NAME if byte == ord("?") else frozenset({pattern[at]}))
            at += 1
        return True

    def _compile_stars(self, pattern: bytes, at: int) -> int:
        rest = pattern[at:].lstrip(b"*")
        end = len(pattern) - len(rest)
        is_name = (at == 0 or pattern[at - 1] == _SLASH) and (not rest or rest.startswith((b"/", b"\\/")))
        is_deep = end - at > 1 and is_name
        bit = 1 << len(self._tokens)
        if is_deep and rest.startswith(b"/"):
            if self._optional & bit >> 2:
                return end + 1  # "**/**/" is "**/".
            self._optional |= bit
        self._stars |= bit
        self._deep |= bit if is_deep else 0
        self._tokens.append(frozenset())
        return end


def _read_class(pattern: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """The bytes of the class that begins at ``at``, and where it ends. None if it has no end or an unknown name."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    first, previous = True, 0
    while first or pattern[at : at + 1] != b"]":
        first = False
        byte, following = (pattern[at], pattern[at + 1 : at + 2]) if at < len(pattern) else (0, b"")
        if byte == ord("-") and previous and following not in (b"", b"]"):
            at += 2 if following == b"\\" else 1
            if at >= len(pattern):
                return None
            members.update(range(previous, pattern[at] + 1))
            byte = 0
        elif byte == ord("[") and following == b":":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and pattern[end - 1] == ord(":"):
                named = _CLASSES.get(pattern[at + 2 : end - 1])
                if named is None:
                    return None
                members |= named
                at, byte = end, 0
            else:
                members.add(byte)
        else:
            at += byte == ord("\\")
            if at >= len(pattern):
                return None
            byte = pattern[at]
            members.add(byte)
        previous = byte
        at += 1
    return (_OF_A_NAME - members if negated else frozenset(members - {_SLASH})), at + 1


def read_line(line: str) -> Pattern | None:
    """The pattern of one line; None for a comment and an empty line."""
    row = _encode(line).removesuffix(b"\r").partition(b"\0")[0]
    if not row or row.startswith(b"#"):
        return None
    at = end = 0
    while at < len(row):
        if row[at] == ord(" "):
            at += 1
        else:
            at = end = at + (2 if row[at] == ord("\\") else 1)
    return Pattern(row[:end]) if end else None


def _read(text: str) -> list[Pattern]:
    lines = map(read_line, text.removeprefix("\ufeff").split("\n"))
    return [pattern for pattern in lines if pattern is not None]


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # No name of a file has such text.
        return text.encode("utf-8", "surrogatepass")
