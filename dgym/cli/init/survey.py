"""What a repository tells about itself: its tests, how they are configured, what is better hidden or protected."""

import configparser
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", ".tox", ".nox", "node_modules", "site-packages", ".eggs"})
_BULKY = frozenset({"node_modules", ".tox", ".nox"})
_LIMIT = 50_000
"""Files surveyed; those beyond would not change the proposal."""

_STANDARD_TEST = re.compile(r"^(test_.*|.*_test)\.py$")
_OTHER_TEST = frozenset({"test.py", "tests.py"})
_TEST_FOLDERS = frozenset({"tests", "test"})
_SECRET = re.compile(r"^(\.env(\..*)?|.*\.pem|.*\.key|id_(rsa|ed25519))$")


class PytestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file that configures pytest, and the settings that change what the manifest needs."""

    file: str
    testpaths: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a repository show. Paths are relative to it; ``bulky`` directories belong to tools."""

    root: Path
    python_files: int
    tests: tuple[str, ...]
    other_tests: tuple[str, ...]
    pytest: PytestSettings | None
    bulky: tuple[str, ...]
    secrets: tuple[str, ...]
    policy_files: tuple[str, ...]
    django: bool
    source_layout: bool


def survey(root: Path) -> Survey:
    """Look at the repository; nothing of it is executed."""
    bulky: list[str] = []
    files = list(_files(root, bulky))
    tests = [path for path in files if _STANDARD_TEST.match(PurePosixPath(path).name)]
    other_tests = [path for path in files if PurePosixPath(path).name in _OTHER_TEST]
    secrets = {path for path in files if _SECRET.match(PurePosixPath(path).name)}
    return Survey(
        root=root,
        python_files=sum(path.endswith(".py") for path in files),
        tests=tuple(tests),
        other_tests=tuple(other_tests),
        pytest=_pytest_settings(root),
        bulky=tuple(bulky),
        secrets=tuple(sorted(secrets)),
        policy_files=tuple(name for name in (".debugignore", ".debugreadonly") if (root / name).is_file()),
        django="manage.py" in files and "django" in read_text(root / "manage.py").lower(),
        source_layout=any(path.startswith("src/") and path.endswith(".py") for path in files)
        and not (root / "src" / "__init__.py").exists(),
    )


def test_folders(found: Survey) -> list[str]:
    """The outermost directories called like tests that hold tests."""
    folders = set()
    for path in (*found.tests, *found.other_tests):
        parts = PurePosixPath(path).parts[:-1]
        depth = next((index for index, part in enumerate(parts, 1) if part in _TEST_FOLDERS), None)
        if depth is not None:
            folders.add("/".join(parts[:depth]))
    return sorted(folders)


def protected_patterns(found: Survey) -> list[str]:
    """Patterns for all tests: their directories, and the files outside of those."""
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


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables; empty when there is none or it is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError:
        return {}


def read_ini(path: Path) -> configparser.ConfigParser:
    """The file's sections; none when there is no file or it is not in that form."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_text(path))
    except configparser.Error:
        return configparser.ConfigParser(interpolation=None)
    return parser


def table(data: Any, *keys: str) -> dict[str, Any]:
    """The table at ``keys``; empty when anything on the way is something else."""
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


def _is_text(name: str) -> bool:
    """Whether the name can be written in a manifest at all."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _pytest_settings(root: Path) -> PytestSettings | None:
    """The first of pytest's configuration files that configures it, in pytest's own order."""
    for name in ("pytest.ini", ".pytest.ini"):
        if (root / name).is_file():
            return _from_ini(root / name, "pytest")
    pyproject = table(read_toml(root / "pyproject.toml"), "tool", "pytest", "ini_options")
    if pyproject:
        return PytestSettings(
            file="pyproject.toml",
            testpaths=_strings(pyproject.get("testpaths")),
            pythonpath=_strings(pyproject.get("pythonpath")),
            plugins=_strings(pyproject.get("required_plugins")),
        )
    for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        if read_ini(root / name).has_section(section):
            return _from_ini(root / name, section)
    return None


def _from_ini(path: Path, section: str) -> PytestSettings:
    parser = read_ini(path)
    return PytestSettings(
        file=path.name,
        testpaths=_strings(parser.get(section, "testpaths", fallback="")),
        pythonpath=_strings(parser.get(section, "pythonpath", fallback="")),
        plugins=_strings(parser.get(section, "required_plugins", fallback="")),
    )


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def read_text(path: Path) -> str:
    """The file's text; empty when it cannot be read."""
    try:
        return path.read_text("utf-8-sig", errors="replace")
    except OSError:
        return ""
