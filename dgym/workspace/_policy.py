"""The policy of a task: which files the agent may see, which it may change, and which its patch may contain.

Three kinds of files in the repository set the policy. Each can be in any directory and has the syntax of gitignore(5):

- ``.debugignore``: the files are invisible;
- ``.debugreadonly``: the files are visible and cannot be changed;
- ``.gitignore``: the files cannot be added by a patch.

As in git, a file in a deeper directory takes precedence over one above it, and a later line over an earlier one. A path
below an excluded directory cannot be included again. The patterns of the task take precedence over all files.

Policies are parsed from the pristine copy, because an agent can have changed the files in the sandbox. The files
``.debugignore`` and ``.debugreadonly`` themselves are always protected. A policy guides the agent but does not keep
secrets: programs in the sandbox can read every file.

Rules are parsed and matched like ``dir.c`` and ``wildmatch.c`` of git. Git compares bytes, so patterns and paths are
compared as bytes. The matcher keeps all positions that a pattern may have reached as bits of one integer. The time is
therefore at most proportional to the product of both lengths. A backtracking matcher can need exponential time.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from dgym.errors import ManifestError
from dgym.workspace._paths import ancestors, is_git_directory

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
    """All ignore files with the same name.

    Args:
        files: The text of each file by its directory ("" for the workspace).
        extra: Lines relative to the workspace that take precedence over all files.
    """

    def __init__(self, files: Mapping[str, str], extra: Sequence[str] = ()) -> None:
        self._files = {directory: _read(text) for directory, text in files.items()}
        self._extra = _read("\n".join(extra))
        # Cached because thousands of files can share a directory.
        self._excludes_directory = lru_cache(_REMEMBERED_DIRECTORIES)(self._names_directory)

    def excludes(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether ``path`` or a directory above it is excluded."""
        if not self._files and not self._extra:
            return False
        return any(map(self._excludes_directory, ancestors(path))) or self._names(path, is_dir=is_dir)

    def _names_directory(self, path: str) -> bool:
        return self._names(path, is_dir=True)

    def _names(self, path: str, *, is_dir: bool) -> bool:
        """Whether the last line that matches ``path`` itself excludes it, if the directories above are not excluded."""
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
        # Git compares the literal prefix separately. In "a**/b" the stars therefore stand at the start of the rest.
        length = next((at for at, byte in enumerate(body) if byte in _SPECIAL), len(body))
        self._literal, rest = body[:length], body[length:]
        ending = rest[1:]
        self._ending = ending if self._any_directory and rest[:1] == b"*" and not _SPECIAL & set(ending) else None
        self._glob = _Glob(rest)
        self.matches_nothing = self._glob.is_broken or any(name in (b"", b".", b"..") for name in body.split(b"/"))
        """True if no path can match: an empty name, ``.``, ``..``, an unclosed class, or a final backslash."""

    def matches(self, below: bytes, name: bytes, *, is_dir: bool) -> bool:
        """Whether the pattern matches a path.

        Args:
            below: The path relative to the directory of the ignore file.
            name: The last part of the path.
            is_dir: Whether the path is a directory.
        """
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
        """The bytes that each token accepts. The set of a star is empty: the masks below describe stars."""
        self._stars = 0
        self._deep = 0
        """The stars that also accept a slash."""
        self._optional = 0
        """The stars of ``**/``. Together with their slash they can match the empty string."""
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
        """The positions that can be reached from ``arrived`` without another byte."""
        arrived |= (arrived & self._optional) << 2
        return arrived | (arrived & self._stars) << 1

    def _mask(self, byte: int) -> int:
        """The tokens that accept ``byte``, without stars, as a bit mask."""
        digits = "".join("1" if byte in token else "0" for token in reversed(self._tokens))
        return int(digits or "0", 2)

    def _compile(self, pattern: bytes) -> bool:
        """Append the tokens of ``pattern``. Returns False if the pattern is malformed."""
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
    """The bytes of the character class at ``at``, and the position after it.

    Returns None if the class is not closed or its name is unknown.
    """
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
    """The pattern of one line, or None if the line is empty or a comment."""
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
    except UnicodeEncodeError:  # A file name cannot contain such text, so the result matches nothing.
        return text.encode("utf-8", "surrogatepass")


class PolicyFileNames:
    """The names of policy files."""

    IGNORE: Final = ".debugignore"
    READ_ONLY: Final = ".debugreadonly"
    GIT_IGNORE: Final = ".gitignore"
    ALL: Final = (IGNORE, READ_ONLY, GIT_IGNORE)


_OTHER_VERSION_CONTROL: Final = frozenset({".hg", ".svn"})
GENERATED_NAMES: Final = frozenset(
    {
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".cache",
        ".tox",
        ".nox",
        ".eggs",
    }
)
"""Names of files and directories that tools create. A patch does not add such files."""

GENERATED_SUFFIXES: Final = (".pyc", ".pyo", ".egg-info")


def _require_matched(field: str, lines: Sequence[str]) -> None:
    for index, line in enumerate(lines):
        pattern = read_line(line)
        if pattern is not None and pattern.matches_nothing:
            raise ManifestError(
                f"{field}[{index}]: {line!r} matches no path; write names below the repository without an empty name,"
                " '.' or '..', close every '[' and put a character after every backslash"
            )


class Policy:
    """The policy of one task. All paths are normalised and relative to the workspace."""

    def __init__(self, *, ignore: Rules, read_only: Rules, git_ignore: Rules) -> None:
        self._ignore = ignore
        self._read_only = read_only
        self._git_ignore = git_ignore

    @classmethod
    def parse(cls, files: Mapping[str, str], ignore: Sequence[str] = (), read_only: Sequence[str] = ()) -> "Policy":
        """Parse a policy.

        Args:
            files: The text of every policy file of the pristine copy by its path. Other files are skipped.
            ignore: Patterns of the task, as lines of a ``.debugignore`` at the root.
            read_only: Patterns of the task, as lines of a ``.debugreadonly`` at the root.

        Raises:
            ManifestError: A pattern of the task cannot match any path.
        """
        _require_matched("ignorePatterns", ignore)
        _require_matched("readOnlyPatterns", read_only)
        return cls(
            ignore=Rules(_named(files, PolicyFileNames.IGNORE), ignore),
            read_only=Rules(_named(files, PolicyFileNames.READ_ONLY), read_only),
            git_ignore=Rules(_named(files, PolicyFileNames.GIT_IGNORE)),
        )

    def ignored(self, path: str, is_dir: bool = False) -> bool:
        """Whether the agent's file tools behave as if ``path`` did not exist."""
        return self._ignore.excludes(path, is_dir=is_dir)

    def read_only(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` is protected from changes: it is read-only, ignored, or a policy file."""
        return (
            is_policy_file(path)
            or self._read_only.excludes(path, is_dir=is_dir)
            or self._ignore.excludes(path, is_dir=is_dir)
        )

    def excluded_from_patch(self, path: str, is_dir: bool = False) -> bool:
        """Whether a patch may not add ``path``: it is generated, or excluded by ``.gitignore`` of the repository."""
        return is_generated(path) or self._git_ignore.excludes(path, is_dir=is_dir)


def is_policy_file(path: str) -> bool:
    """Whether ``path`` is a ``.debugignore`` or ``.debugreadonly``."""
    return path.rpartition("/")[2] in (PolicyFileNames.IGNORE, PolicyFileNames.READ_ONLY)


def is_generated(path: str) -> bool:
    """Whether a part of ``path`` belongs to version control or is generated by a tool."""
    return is_version_control(path) or any(
        part in GENERATED_NAMES or part.endswith(GENERATED_SUFFIXES) for part in path.split("/")
    )


def is_version_control(path: str) -> bool:
    """Whether a part of ``path`` belongs to version control (``.git``, ``.hg``, ``.svn``)."""
    return any(part in _OTHER_VERSION_CONTROL or is_git_directory(part) for part in path.split("/"))


def policy_files(paths: Iterable[str]) -> list[str]:
    """The ``paths`` that :meth:`Policy.parse` reads."""
    return [path for path in paths if path.rpartition("/")[2] in PolicyFileNames.ALL]


def _named(files: Mapping[str, str], name: str) -> dict[str, str]:
    found = {}
    for path, text in files.items():
        directory, _, base = path.rpartition("/")
        if base == name:
            found[directory] = text
    return found
