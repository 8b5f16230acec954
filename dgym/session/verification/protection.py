"""Which files decide about tests, and so are taken from the untouched repository whatever the agent made of them.

This is on top of the task's own policy: an author who protects nothing still gets tests that mean something.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from dgym.untrusted import TEXT_LIMIT, parse_toml
from dgym.workspace import ancestors
from dgym.workspace.patches import FileVersion

CONFIGURATION_NAMES = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
_HIJACKING_MODULES = frozenset({"pytest", "_pytest", "sitecustomize", "usercustomize"})
_METADATA_SUFFIXES = (".dist-info", ".egg-info", ".egg")
_LIBRARIES_OF_TESTS = frozenset(
    {
        *("cmath", "decimal", "difflib", "doctest", "fractions", "hypothesis", "math", "mock", "nose", "numpy"),
        *("operator", "pandas", "parameterized", "py", "testtools", "unittest"),
    }
)
ADDED_TESTS = "tests that were added do not count"
PYTEST_SECTION = "its section about pytest differs"
_SOURCE_ROOTS = ("", "src/", "lib/")
_TEST_DIRECTORIES = frozenset({"test", "tests"})
_MODULE_SUFFIXES = (".py", ".so", ".pyc")


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """``files`` and everything below ``directories`` stay as they are in the untouched repository (``pristine``)."""

    pristine: frozenset[str]
    files: frozenset[str]
    directories: frozenset[str]

    def why_refused(self, path: str) -> str | None:
        """Why a change of ``path`` does not count; None when it does."""
        if path in self.files:
            return "it decides about the tests"
        if path not in self.pristine and (why := self.why_dropped(path)) is not None:
            return why
        below = path + "/"
        if any(path.startswith(directory + "/") or directory == path for directory in self.directories):
            return "it stands among the tests"
        if any(file.startswith(below) for file in self.files) or any(d.startswith(below) for d in self.directories):
            return "tests stand below it"
        if any(path.startswith(file + "/") for file in self.files):
            return "a file of the tests stands above it"
        return None

    def why_dropped(self, path: str) -> str | None:
        """Why a new file takes no part in scoring; None when it does.

        A repository that has a package of the test framework's name is that framework, and may grow.
        """
        for directory in _hijacking_directories(path):
            if not any(known.startswith(directory + "/") for known in self.pristine):
                return "a new package of this name would stand in for the test framework"
        for root in _SOURCE_ROOTS:
            if path.startswith(root) and self._stands_for_library(path[len(root) :], root):
                return "a new module of this name would stand in for one that tests compare with"
        return why_dropped(path)

    def _stands_for_library(self, path: str, root: str) -> bool:
        first, _, below = path.partition("/")
        stem = first.partition(".")[0]
        if not (below or first.endswith(_MODULE_SUFFIXES)):
            return False
        if stem not in _LIBRARIES_OF_TESTS:
            return False
        return not any(known.startswith((f"{root}{stem}/", f"{root}{stem}.")) for known in self.pristine)

    def holds(self, path: str) -> bool:
        """Whether ``path`` of the untouched repository is put back after commands that run the agent's code."""
        return path in self.files or any(path.startswith(directory + "/") for directory in self.directories)


def protect(pristine: Iterable[str], test_ids: Iterable[str], more: Iterable[str] = ()) -> Protection:
    """The protection of the repository with the paths ``pristine`` whose tests are ``test_ids``.

    An id names its file relative to pytest's root directory, which may be below the workspace, so a file is found by
    the end of its path. ``more`` are paths that scoring itself writes.
    """
    paths = frozenset(pristine)
    wanted = {identifier.partition("::")[0] for identifier in test_ids}
    tests = {path for path in paths if any(tail in wanted for tail in _tails(path))} | set(more)
    directories = {directory for file in tests if (directory := _test_directory(file)) is not None}
    configuration = {path for path in paths if decides_about_tests(path)}
    return Protection(pristine=paths, files=frozenset(tests | configuration), directories=frozenset(directories))


def decides_about_tests(path: str) -> bool:
    """Whether pytest or Python reads a file of this name by itself."""
    directory, _, name = path.rpartition("/")
    if name == "entry_points.txt" and directory.endswith(_METADATA_SUFFIXES):
        return True
    return name in CONFIGURATION_NAMES or name.endswith(".pth")


def why_dropped(path: str) -> str | None:
    """Why a new file of this name takes no part in scoring, wherever it stands; None when it does."""
    name = path.rpartition("/")[2]
    stem = name.partition(".")[0]
    if any(part.endswith(_METADATA_SUFFIXES) for part in path.split("/")):
        return "new metadata of a distribution would load plugins"
    if decides_about_tests(path):
        return "a new file of this name would decide about the tests"
    if _hijacks(stem) and (name.endswith(_MODULE_SUFFIXES) or "." not in name):
        return "a new module of this name would stand in for the test framework"
    if name.endswith(".py") and (name.startswith("test_") or stem.endswith("_test")):
        return ADDED_TESTS
    return None


def select_changes(
    changed: Mapping[str, FileVersion | None], protection: Protection, pyproject: bytes | None
) -> tuple[dict[str, FileVersion | None], dict[str, str]]:
    """Divide ``changed`` into the changes that reach the verifier and the reasons why the others do not.

    ``pyproject``: the original pyproject.toml of the workspace; its pytest section cannot be changed. Blocks while that
    of a changed one is read, in a process of its own.
    """
    allowed: dict[str, FileVersion | None] = {}
    refused: dict[str, str] = {}
    for path, version in changed.items():
        why = protection.why_refused(path)
        if why is None and path.rpartition("/")[2] == "pyproject.toml":
            why = _why_pyproject_refused(path, version, pyproject)
        if why is None:
            allowed[path] = version
        else:
            refused[path] = why
    return allowed, refused


def _why_pyproject_refused(path: str, version: FileVersion | None, original: bytes | None) -> str | None:
    before = _pytest_section(original) if path == "pyproject.toml" else {}
    after = _pytest_section(version.data if version is not None else None)
    return None if before == after and after is not None else PYTEST_SECTION


def _pytest_section(data: bytes | None) -> object:
    """The section about pytest; None where the file cannot be read."""
    # A key can be written in escapes, so only text without any is known to have no such section.
    if data is None or (b"pytest" not in data and b"\\" not in data and len(data) <= TEXT_LIMIT):
        return {}
    tables = parse_toml(data)
    if tables is None:
        return None
    tool = tables.get("tool", {})
    return tool.get("pytest", {}) if isinstance(tool, dict) else {}


def _hijacks(module: str) -> bool:
    return module in _HIJACKING_MODULES or module.startswith("pluggy")


def _hijacking_directories(path: str) -> Iterable[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[: index + 1]) for index, part in enumerate(parts) if _hijacks(part))


def _tails(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _test_directory(path: str) -> str | None:
    """The topmost directory above ``path`` that is named as directories of tests are."""
    directories = path.split("/")[:-1]
    for index, name in enumerate(directories):
        if name in _TEST_DIRECTORIES:
            return "/".join(directories[: index + 1])
    return None


_SHELL = re.compile(r"[;&|<>()`$\n]")
_CHANGE_DIRECTORY = re.compile(r"^\s*cd\s+[\w./+-]+\s*&&\s*")
_PYTHON_FIRST = re.compile(r"^\s*(?:\w+=\S*\s+)*(?:env\s+)?(?:\S*/)?(?:python|pypy|pytest|py\.test)[\w.]*(?:\s|$)")
_READ_BY = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "nox": ("noxfile.py",),
}
_INCLUDED_SUFFIX = ".mk"


def files_of_shell_line(entrypoint: str, pristine: Collection[str]) -> list[str]:
    """Paths, new ones too, that ``entrypoint`` names or that a program it names reads by itself.

    Words that end in ``.py`` are left out, and so are directories of the untouched repository.
    """
    rest = _CHANGE_DIRECTORY.sub("", entrypoint)
    if _PYTHON_FIRST.match(rest) and not _SHELL.search(rest):
        return []
    words = _words(entrypoint)
    directories = {above for path in pristine for above in ancestors(path)}
    places = ["", *(word for word in words if posixpath.normpath(word) in directories)]
    named = [posixpath.normpath(posixpath.join(place, word)) for place in places for word in _programs_and_files(words)]
    if any(posixpath.basename(word) in ("make", "gmake") for word in words):
        named += [path for path in pristine if path.endswith(_INCLUDED_SUFFIX)]
    return sorted(
        {path for path in named if path not in {*directories, ".", ".."} and not path.startswith(("../", "/"))}
    )


def _words(line: str) -> list[str]:
    """The words of a line, and of its quoted parts, which another shell may read."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        words = line.split()
    inner = [word for word in words if re.search(r"\s", word)]
    return words + [part for word in inner for part in word.split()]


def _programs_and_files(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield from _READ_BY.get(posixpath.basename(word), ())
        if re.fullmatch(r"[\w./+@=-]+", word) and not word.endswith(".py") and not word.startswith("-"):
            yield word
