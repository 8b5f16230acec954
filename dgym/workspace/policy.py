"""What an agent may see, what it may change, and what belongs in its patch.

Three kinds of files in the repository decide, each with gitignore semantics and in any directory: ``.debugignore``
(invisible), ``.debugreadonly`` (visible, never changed) and ``.gitignore`` (never new in a patch). As in git a deeper
file overrules a higher one, a later line an earlier one, and nothing below an excluded directory can be included
again. A task's own patterns are read after all of the repository's files and so overrule them.

Policies are parsed from the pristine copy, never from what an agent may have written, and the two policy files are
protected themselves, wherever they stand. They help the agent and are no boundary of secrecy: programs in the sandbox
can read every file.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dgym.errors import ManifestError
from dgym.workspace.gitignore import Rules, read_line
from dgym.workspace.paths import is_git_directory


class PolicyFileNames:
    """The names under which policy files are found."""

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
"""Names of files and directories that tools leave behind. New files of a patch never have them."""

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
            ManifestError: a pattern of the task's own matches no path, and would protect or hide nothing.
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
        """Whether a new file ``path`` would be generated, or named by the repository's own ``.gitignore``."""
        return is_generated(path) or self._git_ignore.excludes(path, is_dir=is_dir)


def is_policy_file(path: str) -> bool:
    """Whether ``path`` has the name of a policy file."""
    return path.rpartition("/")[2] in (PolicyFileNames.IGNORE, PolicyFileNames.READ_ONLY)


def is_generated(path: str) -> bool:
    """Whether some part of ``path`` is version control's or a tool's own."""
    return is_version_control(path) or any(
        part in GENERATED_NAMES or part.endswith(GENERATED_SUFFIXES) for part in path.split("/")
    )


def is_version_control(path: str) -> bool:
    """Whether ``path`` is a version control's own."""
    return any(part in _OTHER_VERSION_CONTROL or is_git_directory(part) for part in path.split("/"))


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
