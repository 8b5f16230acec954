"""What a repository tells about itself: its tests, how they are configured, what is better hidden or protected."""

import configparser
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
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
    """What configures pytest: the file, and the settings that change how it is called.

    ``plugins`` are requirements: distributions without which pytest refuses these settings.
    """

    file: str
    testpaths: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Paths are relative to the repository.

    ``environments`` are virtual environments, which no episode gets; ``bulky`` directories belong to tools.
    """

    root: Path
    python_files: int
    tests: tuple[str, ...]
    other_tests: tuple[str, ...]
    pytest: PytestSettings | None
    environments: tuple[str, ...]
    bulky: tuple[str, ...]
    secrets: tuple[str, ...]
    policy_files: tuple[str, ...]
    django: bool
    source_layout: bool


def survey(root: Path) -> Survey:
    """Look at the repository; nothing of it is executed."""
    environments: list[str] = []
    bulky: list[str] = []
    files = list(_files(root, environments, bulky))
    tests = [path for path in files if _STANDARD_TEST.match(PurePosixPath(path).name)]
    other_tests = [path for path in files if PurePosixPath(path).name in _OTHER_TEST]
    secrets = {path for path in files if _SECRET.match(PurePosixPath(path).name)}
    return Survey(
        root=root,
        python_files=sum(path.endswith(".py") for path in files),
        tests=tuple(tests),
        other_tests=tuple(other_tests),
        pytest=_pytest_settings(root),
        environments=tuple(environments),
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
    return parse_ini(read_text(path))


def parse_ini(text: str) -> configparser.ConfigParser:
    """The sections of ``text``; none when it is not in that form."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return configparser.ConfigParser(interpolation=None)
    return parser


def table(data: Any, *keys: str) -> dict[str, Any]:
    """The table at ``keys``; empty when anything on the way is something else."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _files(root: Path, environments: list[str], bulky: list[str]) -> Iterator[str]:
    seen = 0
    for directory, folders, names in os.walk(root):
        here = Path(directory)
        for name in sorted(folders):
            relative = (here / name).relative_to(root).as_posix()
            if (here / name / "pyvenv.cfg").is_file():
                environments.append(relative)
            elif name in _BULKY:
                bulky.append(relative)
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
            plugins=plugins_of(pyproject),
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
        plugins=plugins_of(parser[section]) if parser.has_section(section) else (),
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


_BY_OPTION = {
    "--allow-hosts": "pytest-socket",
    "--asyncio-mode": "pytest-asyncio",
    "--benchmark": "pytest-benchmark",
    "--black": "pytest-black",
    "--cov": "pytest-cov",
    "--disable-socket": "pytest-socket",
    "--dist": "pytest-xdist",
    "--doctest-plus": "pytest-doctestplus",
    "--doctest-rst": "pytest-doctestplus",
    "--ds": "pytest-django",
    "--flake8": "pytest-flake8",
    "--forked": "pytest-forked",
    "--html": "pytest-html",
    "--instafail": "pytest-instafail",
    "--isort": "pytest-isort",
    "--mpl": "pytest-mpl",
    "--mypy": "pytest-mypy",
    "--nbval": "nbval",
    "--no-cov": "pytest-cov",
    "--numprocesses": "pytest-xdist",
    "--pylint": "pytest-pylint",
    "--random-order": "pytest-random-order",
    "--randomly": "pytest-randomly",
    "--remote-data": "pytest-remotedata",
    "--reruns": "pytest-rerunfailures",
    "--ruff": "pytest-ruff",
    "--snapshot": "syrupy",
    "--strict-asyncio": "pytest-asyncio",
    "--testmon": "pytest-testmon",
    "--timeout": "pytest-timeout",
    "-n": "pytest-xdist",
}
"""Long options stand for themselves and for those that begin with them and a hyphen: ``--cov-report``."""

_BY_SETTING = {
    "DJANGO_SETTINGS_MODULE": "pytest-django",
    "asyncio_default_fixture_loop_scope": "pytest-asyncio",
    "asyncio_mode": "pytest-asyncio",
    "env": "pytest-env",
    "qt_api": "pytest-qt",
    "timeout": "pytest-timeout",
    "trio_mode": "pytest-trio",
}
_SHORT = re.compile(r"^-n(\d+|auto|logical)?$")


def plugins_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Requirements for the plugins that ``required_plugins``, ``addopts`` and other settings need, in order."""
    return tuple(dict.fromkeys(_plugins_of(settings)))


def _plugins_of(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from _words(settings.get("required_plugins"))
    for word in _words(settings.get("addopts")):
        option = "-n" if _SHORT.match(word) else word.partition("=")[0]
        for known, plugin in _BY_OPTION.items():
            if option == known or (known.startswith("--") and option.startswith(f"{known}-")):
                yield plugin
    for name, plugin in _BY_SETTING.items():
        # A configuration file's parser folds the names of settings.
        if name in settings or name.lower() in settings:
            yield plugin


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    if not isinstance(value, str):
        return []
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()
