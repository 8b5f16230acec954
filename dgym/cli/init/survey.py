"""A repository's tests, their configuration, the files to hide or protect, and its requirements."""

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
"""Files surveyed at most."""

_STANDARD_TEST = re.compile(r"^(test_.*|.*_test)\.py$")
_OTHER_TEST = frozenset({"test.py", "tests.py"})
_TEST_FOLDERS = frozenset({"tests", "test"})
_SECRET = re.compile(r"^(\.env(\..*)?|.*\.pem|.*\.key|id_(rsa|ed25519))$")


class PytestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file that configures pytest, and the settings that change what the manifest needs."""

    file: str
    testpaths: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Findings in the files of a repository. Paths are relative to it; ``bulky`` directories belong to tools."""

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
    """Read the files of the repository; nothing of it is executed."""
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
        django="manage.py" in files and "django" in read_text(root, "manage.py").lower(),
        source_layout=any(path.startswith("src/") and path.endswith(".py") for path in files)
        and not (root / "src" / "__init__.py").exists(),
    )


def test_folders(found: Survey) -> list[str]:
    """The outermost directories named ``tests`` or ``test`` that hold tests."""
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


def read_toml(root: Path, name: str) -> dict[str, Any]:
    """The file's tables; empty when there is none or it is not TOML."""
    return parse_toml(_read(root, name)) or {}


def read_ini(root: Path, name: str) -> dict[str, dict[str, str]]:
    """The options of the file's sections; none when there is no file or it is not in that form."""
    return parse_ini(_read(root, name)) or {}


def table(data: Any, *keys: str) -> dict[str, Any]:
    """The table at ``keys``; empty when there is none."""
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
            return _settings(name, read_ini(root, name).get("pytest", {}))
    pyproject = table(read_toml(root, "pyproject.toml"), "tool", "pytest", "ini_options")
    if pyproject:
        return _settings("pyproject.toml", pyproject)
    for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        if section in (sections := read_ini(root, name)):
            return _settings(name, sections[section])
    return None


def _settings(file: str, options: dict[str, Any]) -> PytestSettings:
    return PytestSettings(
        file=file,
        testpaths=_strings(options.get("testpaths")),
        pythonpath=_strings(options.get("pythonpath")),
    )


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def read_text(root: Path, name: str) -> str:
    """The text of a file of the repository ``root``; empty when it cannot be read."""
    return _read(root, name).decode("utf-8-sig", "replace")


def _read(root: Path, name: str) -> bytes:
    try:
        return read_regular(root / name, root=root)
    except OSError:
        return b""


_FILES = (
    *("requirements.txt", "requirements-test.txt", "requirements-tests.txt", "requirements-dev.txt"),
    *("test-requirements.txt", "dev-requirements.txt", "requirements_test.txt", "requirements_dev.txt"),
    *("requirements/base.txt", "requirements/test.txt", "requirements/tests.txt", "requirements/dev.txt"),
)
_GROUPS = ("test", "tests", "testing", "dev")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[\w\s,.-]*\])?\s*([<>=!~(;][^@/\\]*)?")
_INCLUDE = re.compile(r"^(?:-r|--requirement)[ =]?\s*(\S+)")
_BOUND = re.compile(r"(>=|<)\s*(\d+)\.(\d+)(?![.\d])")
_LINE_CHARACTERS = 1000
_REQUIREMENTS_LIMIT = 256
"""The limit of ``spec.requirements``."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements in the order found, their files, what is left out with the reason, and the supported Pythons."""

    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    python: str = ""


def read_requirements(root: Path) -> Requirements:
    """The requirements of requirements files, ``pyproject.toml`` and ``setup.cfg``; ``setup.py`` is not executed."""
    reader = _Reader(root)
    for name in _FILES:
        reader.file(root / name)
    project = read_toml(root, "pyproject.toml")
    reader.pyproject(project)
    setup = read_ini(root, "setup.cfg")
    reader.setup_cfg(setup)
    for name in ("setup.py", "Pipfile", "environment.yml", "environment.yaml", "tox.ini"):
        if (root / name).is_file() and not reader.found:
            reader.left_out.append(f"{name}: not read; add what it lists")
    python = table(project, "project").get("requires-python") or _option(setup, "options", "python_requires")
    own = _normal(str(table(project, "project").get("name") or _option(setup, "metadata", "name")))
    lines = list(dict.fromkeys(line for line in reader.found if not own or _normal(line) != own))
    if len(lines) > _REQUIREMENTS_LIMIT:
        reader.left_out.append(
            f"{len(lines) - _REQUIREMENTS_LIMIT} requirements beyond the first {_REQUIREMENTS_LIMIT};"
            " use --python PATH instead"
        )
    return Requirements(
        lines=tuple(lines[:_REQUIREMENTS_LIMIT]),
        files=tuple(dict.fromkeys(reader.files)),
        left_out=tuple(dict.fromkeys(reader.left_out)),
        python=python if isinstance(python, str) else "",
    )


def allows(specifier: str, version: tuple[int, int]) -> bool:
    """Whether the version is within the bounds ``>=X.Y`` and ``<X.Y`` of ``specifier``; other clauses do not count."""
    bounds = ((operator, (int(major), int(minor))) for operator, major, minor in _BOUND.findall(specifier))
    return all(version >= bound if operator == ">=" else version < bound for operator, bound in bounds)


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[Path] = set()
        self.found: list[str] = []
        self.files: list[str] = []
        self.left_out: list[str] = []

    def file(self, path: Path) -> None:
        """A requirements file, and those it includes, as long as they lie in the repository."""
        path = path.resolve()
        if path in self._seen or not path.is_file() or not path.is_relative_to(self._root.resolve()):
            return
        self._seen.add(path)
        name = path.relative_to(self._root.resolve()).as_posix()
        self.files.append(name)
        for raw in read_text(self._root.resolve(), name).replace("\\\n", " ").splitlines():
            line = _without_comment(raw)
            include = _INCLUDE.match(line)
            if include:
                self.file(path.parent / include[1])
            elif line:
                self._add(" ".join(word for word in line.split() if not word.startswith("--hash=")), name)

    def pyproject(self, data: dict[str, Any]) -> None:
        """Dependencies of the project, and of its extras and groups for tests."""
        project = table(data, "project")
        for line in _strings(project.get("dependencies")):
            self._add(line, "pyproject.toml")
        groups = table(data, "dependency-groups")
        for name in _GROUPS:
            for line in _strings(table(project, "optional-dependencies").get(name)):
                self._add(line, "pyproject.toml")
            for line in _group(groups, name, ()):
                self._add(line, "pyproject.toml")
        if table(data, "tool", "poetry").get("dependencies"):
            self.left_out.append("pyproject.toml: poetry's own tables are not read; add what they list")

    def setup_cfg(self, sections: dict[str, dict[str, str]]) -> None:
        """``install_requires`` and the extras for tests."""
        texts = [_option(sections, "options", "install_requires")]
        texts += [_option(sections, "options.extras_require", name) for name in _GROUPS]
        for line in "\n".join(texts).splitlines():
            if line.strip():
                self._add(line.strip(), "setup.cfg")

    def _add(self, line: str, source: str) -> None:
        line = " ".join(line[:_LINE_CHARACTERS].split())
        if _REQUIREMENT.fullmatch(line):
            self.found.append(line)
            self.files.append(source)
        elif _NAME.match(line) and "@" in line:
            self.left_out.append(
                f"{source}: {line!r} names a URL; name a released version, or add the line and run with"
                " --build-requirements if you trust its code"
            )
        else:
            self.left_out.append(
                f"{source}: {line!r} is an option or a path; name a released version, or make an environment that has"
                " it and run with --python PATH"
            )


def _option(sections: dict[str, dict[str, str]], section: str, name: str) -> str:
    return sections.get(section, {}).get(name) or ""


def _group(groups: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    items = groups.get(name)
    for item in items if isinstance(items, list) and name not in above else ():
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
            yield from _group(groups, item["include-group"], (*above, name))


def _without_comment(line: str) -> str:
    return "" if line.startswith("#") else re.split(r"\s#", line, maxsplit=1)[0].strip()


def _normal(line: str) -> str:
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
