"""What an agent may see, what it may change, and what belongs in its patch.

Three kinds of files in the repository decide, each with gitignore semantics and in any directory: ``.debugignore``
(invisible), ``.debugreadonly`` (visible, never changed) and ``.gitignore`` (not part of a patch). As in git a deeper
file overrules a higher one, a later line an earlier one, and nothing below an excluded directory can be included
again. A task's own patterns are read after all of the repository's files and so overrule them.

Policies are parsed from the pristine copy, never from what an agent may have written, and the two policy files are
protected themselves, wherever they stand. They help the agent and are no boundary of secrecy: programs in the sandbox
can read every file. Lines are matched with ``pathspec``, a directory before what is in it; docs/writing-a-task.md lists
what differs from git.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from dgym.errors import ManifestError
from dgym.workspace.paths import ancestors

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern


class PolicyFileNames:
    """The names under which policy files are found."""

    IGNORE: Final = ".debugignore"
    READ_ONLY: Final = ".debugreadonly"
    GIT_IGNORE: Final = ".gitignore"
    ALL: Final = (IGNORE, READ_ONLY, GIT_IGNORE)


GENERATED_NAMES: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
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
"""Names that are never part of a patch: version control and what tools leave behind."""

GENERATED_SUFFIXES: Final = (".pyc", ".pyo", ".egg-info")


_REMEMBERED_DIRECTORIES = 1024
_REMEMBERED_LINES = 4096
_STARS_OF_A_NAME = 3
_DEEP_STARS = 2
_CLASS_ONLY_GIT_READS = re.compile(r"\[[!^]?\]?[^\]]*?(?:[\[\\/]|--|&&|\|\||~~)")


class Rules:
    """The ignore files of one kind, by the directory they stand in ("" for the workspace)."""

    def __init__(self, files: Mapping[str, str], extra: Sequence[str] = ()) -> None:
        self._lines = {directory: _parse(text, _in_one_line(directory)) for directory, text in files.items()}
        self._extra = _parse("\n".join(extra), "")
        self._specs: dict[tuple[str | None, bool], GitIgnoreSpec] = {}
        # Thousands of files share a directory, and its own verdict depends on nothing else.
        self._names_directory = lru_cache(_REMEMBERED_DIRECTORIES)(partial(self._names, is_dir=True))

    def excludes(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether ``path`` or a directory above it is excluded."""
        if not self._lines and not self._extra:
            return False
        return any(map(self._names_directory, ancestors(path))) or self._names(path, is_dir=is_dir)

    def _names(self, path: str, *, is_dir: bool) -> bool:
        """Whether the last line that matches ``path`` itself excludes it; the directories above are not excluded."""
        homes = [directory for directory in ("", *ancestors(path)) if directory in self._lines]
        key = (homes[-1] if homes else None, is_dir)
        if key not in self._specs:
            lines = [*chain.from_iterable(self._lines[home] for home in homes), *self._extra]
            self._specs[key] = _compile(lines, of_directories=is_dir)
        return self._specs[key].match_file(_in_one_line(path), separators=())


def _in_one_line(path: str) -> str:
    """The path with another character for each line break, which pathspec's expressions take for the end.

    No path and no pattern has this character, and whatever matches any character matches it.
    """
    return path.replace("\n", "\0")


def _compile(lines: Iterable[str], *, of_directories: bool) -> "GitIgnoreSpec":
    """The patterns for files, or for directories, whose names have no slash at their end.

    With a slash pathspec would take a directory for something below itself, and let a line that names everything
    ("*") overrule a later one that names the directory ("!src/").
    """
    from pathspec import GitIgnoreSpec

    chosen = [line.removesuffix("/") for line in lines if of_directories or not line.endswith("/")]
    return GitIgnoreSpec(chain.from_iterable(map(_patterns, chosen)), backend="simple")


@lru_cache(_REMEMBERED_LINES)
def _patterns(line: str) -> "Sequence[GitIgnoreSpecPattern]":
    """The line's pattern; none where it is broken, which matches nothing in git either."""
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines([line], backend="simple").patterns
    except (ValueError, re.error):
        return ()


def _parse(text: str, directory: str) -> list[str]:
    """The lines of the ignore file in ``directory``, as lines of one at the root; comments and blank ones left out."""
    lines = []
    for row in text.removeprefix("\ufeff").split("\n"):
        # Git reads no further than to a zero byte.
        line = row.partition("\0")[0]
        bare = line if line.endswith("\\ ") else line.rstrip()
        sign = "!" if bare.startswith("!") else ""
        body = "/".join(map(_normal_stars, bare.removeprefix(sign).split("/")))
        if body.strip("/ ") and not bare.startswith("#") and not _is_passed_over(body):
            lines.append(sign + _anchored(body, directory))
    return lines


def _normal_stars(name: str) -> str:
    """``**`` means something as a whole name only; beside other characters it is a star, as in git."""
    return "**" if re.fullmatch(r"\*{2,}", name) else re.sub(r"\*{2,}", "*", name)


def _is_passed_over(body: str) -> bool:
    """Whether Python would read the pattern otherwise than git (an empty name, some classes), or try it for hours."""
    names = body.split("/")
    return (
        "//" in body
        or _CLASS_ONLY_GIT_READS.search(body) is not None
        or names.count("**") > _DEEP_STARS
        or any(name.count("*") > _STARS_OF_A_NAME for name in names)
    )


def _require_matched(field: str, lines: Sequence[str]) -> None:
    for index, line in enumerate(lines):
        if not line.startswith("#") and _is_passed_over("/".join(map(_normal_stars, line.split("/")))):
            raise ManifestError(
                f"{field}[{index}]: {line!r} cannot be matched; write at most three * in a name, two **, no //, and"
                " classes without slash, backslash and ["
            )


def _anchored(body: str, directory: str) -> str:
    if not directory:
        return body
    anywhere = "" if "/" in body.removesuffix("/") else "**/"
    above = re.sub(r"[\\\[\]!*#?]", r"\\\g<0>", directory)
    return f"/{above}/{anywhere}{body.removeprefix('/')}"


class Policy:
    """The rules of one task. All paths are normalised and relative to the workspace."""

    def __init__(self, *, ignore: Rules, read_only: Rules, git_ignore: Rules) -> None:
        self._ignore = ignore
        self._read_only = read_only
        self._git_ignore = git_ignore

    @classmethod
    def parse(cls, files: Mapping[str, str], ignore: Sequence[str] = (), read_only: Sequence[str] = ()) -> "Policy":
        """Read a policy.

        Args:
            files: the text of every policy file of the pristine copy by its path; others are passed over.
            ignore: the task's own patterns, as lines of a ``.debugignore`` at the root.
            read_only: likewise for ``.debugreadonly``.

        Raises:
            ManifestError: a pattern of the task's own cannot be matched, and would protect or hide nothing.
        """
        _require_matched("ignorePatterns", ignore)
        _require_matched("readOnlyPatterns", read_only)
        return cls(
            ignore=Rules(_named(files, PolicyFileNames.IGNORE), ignore),
            read_only=Rules(_named(files, PolicyFileNames.READ_ONLY), read_only),
            git_ignore=Rules(_named(files, PolicyFileNames.GIT_IGNORE)),
        )

    def ignored(self, path: str, is_dir: bool = False) -> bool:
        """Whether the agent's file tools behave as if ``path`` were not there."""
        return self._ignore.excludes(path, is_dir=is_dir)

    def read_only(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` is protected from change: read-only, ignored, or a policy file."""
        return (
            is_policy_file(path)
            or self._read_only.excludes(path, is_dir=is_dir)
            or self._ignore.excludes(path, is_dir=is_dir)
        )

    def excluded_from_patch(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` is generated, or named by the repository's own ``.gitignore``."""
        return is_generated(path) or self._git_ignore.excludes(path, is_dir=is_dir)


def is_policy_file(path: str) -> bool:
    """Whether ``path`` has the name of a policy file."""
    return path.rpartition("/")[2] in (PolicyFileNames.IGNORE, PolicyFileNames.READ_ONLY)


def is_generated(path: str) -> bool:
    """Whether some part of ``path`` is version control's or a tool's own."""
    return any(part in GENERATED_NAMES or part.endswith(GENERATED_SUFFIXES) for part in path.split("/"))


def policy_files(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that :meth:`Policy.parse` wants to read."""
    return [path for path in paths if path.rpartition("/")[2] in PolicyFileNames.ALL]


def _named(files: Mapping[str, str], name: str) -> dict[str, str]:
    found = {}
    for path, text in files.items():
        directory, _, base = path.rpartition("/")
        if base == name:
            found[directory] = text
    return found
