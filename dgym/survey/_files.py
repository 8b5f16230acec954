"""Find the tests of a repository, their configuration, and files to hide or protect. Read configuration files."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from dgym.untrusted import parse_ini, parse_toml, read_regular

_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", ".tox", ".nox", "node_modules", "site-packages", ".eggs"})
_BULKY = frozenset({"node_modules", ".tox", ".nox"})
_LIMIT = 50_000
"""Maximum number of files of a survey."""
_ADDOPTS = 10_000
_CONFTESTS = 50
_SOURCES = 500

_STANDARD_TEST = re.compile(r"^(test_.*|.*_test)\.py$")
_OTHER_TEST = frozenset({"test.py", "tests.py"})
_TEST_FOLDERS = frozenset({"tests", "test"})
_NO_PROJECTS = _TEST_FOLDERS | {"examples", "example", "docs", "doc", "testing", "fixtures", "vendor", "third_party"}
"""Directories whose packages do not belong to the project itself."""
_SECRET = re.compile(r"^(\.env(\..*)?|.*\.pem|.*\.key|id_(rsa|ed25519))$")


class PytestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file that configures pytest, and its settings that affect the manifest. ``keys`` are the names of all."""

    file: str
    testpaths: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()
    addopts: str = ""
    required_plugins: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about a repository. All paths are relative to its root.

    Attributes:
        root: The root of the repository.
        python_files: Number of Python files.
        modules: Names of the importable top-level modules and packages.
        sources: Python files that are not tests, at most 500.
        names: Names of all Python files and of their directories.
        conftests: ``conftest.py`` files, at most 50.
        tests: Files with a name that pytest collects.
        other_tests: Files named ``test.py`` or ``tests.py``.
        pytest: The settings of pytest, or None.
        bulky: Large directories of tools, such as ``node_modules``.
        secrets: Files whose names suggest secrets, such as ``.env``.
        policy_files: The policy files in the root.
        django: Whether it is a Django project.
        builds: Whether the repository has a build system, so that pip can install it.
        projects: Subdirectories with their own build system.
        source_layout: Whether the packages are below ``src``.
    """

    root: Path
    python_files: int
    modules: frozenset[str]
    sources: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    conftests: tuple[str, ...]
    tests: tuple[str, ...]
    other_tests: tuple[str, ...]
    pytest: PytestSettings | None
    bulky: tuple[str, ...]
    secrets: tuple[str, ...]
    policy_files: tuple[str, ...]
    django: bool
    builds: bool
    projects: tuple[str, ...] = ()
    source_layout: bool


def survey(root: Path) -> Survey:
    """Examine the files of a repository without executing them."""
    bulky: list[str] = []
    files = list(_files(root, bulky))
    tests = [path for path in files if _STANDARD_TEST.match(PurePosixPath(path).name)]
    other_tests = [path for path in files if PurePosixPath(path).name in _OTHER_TEST]
    secrets = {path for path in files if _SECRET.match(PurePosixPath(path).name)}
    return Survey(
        root=root,
        python_files=sum(path.endswith(".py") for path in files),
        modules=frozenset(_module(path) for path in files if path.endswith(".py")),
        sources=tuple(path for path in files if _is_source(path))[:_SOURCES],
        names=frozenset(part for path in files if path.endswith(".py") for part in path[:-3].split("/")),
        conftests=tuple(path for path in files if PurePosixPath(path).name == "conftest.py")[:_CONFTESTS],
        tests=tuple(tests),
        other_tests=tuple(other_tests),
        pytest=_pytest_settings(root),
        bulky=tuple(bulky),
        secrets=tuple(sorted(secrets)),
        policy_files=tuple(name for name in (".debugignore", ".debugreadonly") if (root / name).is_file()),
        django="manage.py" in files and "django" in read_text(root, "manage.py").lower(),
        builds=_builds(root),
        projects=tuple(_projects(root, files)),
        source_layout=any(path.startswith("src/") and path.endswith(".py") for path in files)
        and not (root / "src" / "__init__.py").exists(),
    )


def test_folders(found: Survey) -> list[str]:
    """The outermost directories named ``tests`` or ``test`` that contain tests."""
    folders = set()
    for path in (*found.tests, *found.other_tests):
        parts = PurePosixPath(path).parts[:-1]
        depth = next((index for index, part in enumerate(parts, 1) if part in _TEST_FOLDERS), None)
        if depth is not None:
            folders.add("/".join(parts[:depth]))
    return sorted(folders)


def protected_patterns(found: Survey) -> list[str]:
    """Patterns that match all tests: test directories, and files outside of them."""
    folders = test_folders(found)
    outside = [
        path
        for path in (*found.tests, *found.other_tests)
        if not any(path.startswith(f"{folder}/") for folder in folders)
    ]
    patterns = {
        pattern
        for pattern, form in (("test_*.py", r"test_.*\.py"), ("*_test.py", r".*_test\.py"))
        if any(re.fullmatch(form, PurePosixPath(path).name) for path in outside)
    }
    rest = {path for path in outside if PurePosixPath(path).name in _OTHER_TEST}
    return [*(f"/{folder}/" for folder in folders), *sorted(patterns), *sorted(f"/{path}" for path in rest)]


def read_toml(root: Path, name: str) -> dict[str, Any]:
    """The content of a TOML file, or an empty dict if the file is missing or invalid."""
    return parse_toml(_read(root, name)) or {}


def read_ini(root: Path, name: str) -> dict[str, dict[str, str]]:
    """The options of an INI file by section, or an empty dict if the file is missing or invalid."""
    return parse_ini(_read(root, name)) or {}


def table(data: Any, *keys: str) -> dict[str, Any]:
    """The nested table at ``keys``, or an empty dict if it does not exist."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _files(root: Path, bulky: list[str]) -> Iterator[str]:
    seen = 0
    for directory, folders, names in os.walk(root):
        here = Path(directory)
        bulky += [(here / name).relative_to(root).as_posix() for name in sorted(_BULKY.intersection(folders))]
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not (here / name / "pyvenv.cfg").is_file()
        )
        for name in sorted(filter(_is_text, names)):
            seen += 1
            if seen > _LIMIT:
                return
            yield (here / name).relative_to(root).as_posix()


def _builds(root: Path) -> bool:
    project = read_toml(root, "pyproject.toml")
    return (root / "setup.py").is_file() or "build-system" in project or "project" in project


def _projects(root: Path, files: list[str]) -> Iterator[str]:
    directories = {PurePosixPath(path).parent for path in files if path.endswith(("/setup.py", "/pyproject.toml"))}
    for directory in sorted(directories):
        if _NO_PROJECTS.isdisjoint(directory.parts) and _builds(root / directory):
            yield directory.as_posix()


def _is_source(path: str) -> bool:
    *directories, name = PurePosixPath(path).parts
    special = _STANDARD_TEST.match(name) or name in _OTHER_TEST or name in ("setup.py", "conftest.py", "noxfile.py")
    return name.endswith(".py") and not special and _NO_PROJECTS.isdisjoint(directories)


def _module(path: str) -> str:
    parts = PurePosixPath(path.removeprefix("src/")).parts
    return parts[0].removesuffix(".py")


def _is_text(name: str) -> bool:
    """Whether the name is valid Unicode, so that a manifest can contain it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _pytest_settings(root: Path) -> PytestSettings | None:
    """The settings in the first configuration file that pytest would use."""
    for name in ("pytest.ini", ".pytest.ini"):
        if (root / name).is_file():
            return _settings(name, read_ini(root, name).get("pytest", {}))
    pyproject = read_toml(root, "pyproject.toml")
    options = table(pyproject, "tool", "pytest", "ini_options") or table(pyproject, "tool", "pytest")
    if options:
        return _settings("pyproject.toml", options)
    for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        if section in (sections := read_ini(root, name)):
            return _settings(name, sections[section])
    return None


def _settings(file: str, options: dict[str, Any]) -> PytestSettings:
    return PytestSettings(
        file=file,
        testpaths=strings(options.get("testpaths")),
        pythonpath=strings(options.get("pythonpath")),
        addopts=" ".join(strings(options.get("addopts")))[:_ADDOPTS],
        required_plugins=strings(options.get("required_plugins")),
        keys=tuple(options),
    )


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list, or the words of a string."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def read_text(root: Path, name: str) -> str:
    """The text of a file in the repository, or an empty text if it cannot be read."""
    return _read(root, name).decode("utf-8-sig", "replace")


def _read(root: Path, name: str) -> bytes:
    try:
        return read_regular(root / name, root=root)
    except OSError:
        return b""
