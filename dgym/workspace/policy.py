"""What an agent may see, what it may change, and what belongs in its patch.

Three kinds of files in the repository decide, each with gitignore semantics and in any directory: ``.debugignore``
(invisible), ``.debugreadonly`` (visible, never changed) and ``.gitignore`` (not part of a patch). As in git a deeper
file overrules a higher one, a later line an earlier one, and nothing below an excluded directory can be included
again. A task's own patterns are read after all of the repository's files and so overrule them.

Policies are parsed from the pristine copy, never from what an agent may have written, and the two policy files are
protected themselves, wherever they stand.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from dgym.workspace.paths import ancestors, encode_path
from dgym.workspace.wildmatch import Pattern, parse_patterns


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


class Rules:
    """The ignore files of one kind, by the directory they stand in ("" for the workspace)."""

    def __init__(self, files: Mapping[str, str], extra: Sequence[str] = ()) -> None:
        self._by_directory = {directory: parse_patterns(text) for directory, text in files.items()}
        self._extra = parse_patterns("\n".join(extra))
        # Thousands of files share a directory, and its own verdict depends on nothing else.
        self._names_directory = lru_cache(_REMEMBERED_DIRECTORIES)(partial(self._names, is_dir=True))

    def excludes(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether ``path`` or a directory above it is excluded."""
        if not self._by_directory and not self._extra:
            return False
        return any(map(self._names_directory, ancestors(path))) or self._names(path, is_dir=is_dir)

    def _names(self, path: str, *, is_dir: bool) -> bool:
        """What the last pattern that matches ``path`` itself says; the directories above are not excluded."""
        verdict = _last_match(self._extra, path, is_dir=is_dir)
        for directory in ("", *ancestors(path))[::-1]:
            if verdict is not None:
                break
            patterns = self._by_directory.get(directory)
            if patterns:
                below = path[len(directory) + 1 :] if directory else path
                verdict = _last_match(patterns, below, is_dir=is_dir)
        return verdict is True


def _last_match(patterns: Sequence[Pattern], path: str, *, is_dir: bool) -> bool | None:
    encoded = encode_path(path)
    for pattern in reversed(patterns):
        if pattern.matches(encoded, is_dir=is_dir):
            return not pattern.negative
    return None


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
        """
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
    """Whether ``path`` is called like a file that protects others."""
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
