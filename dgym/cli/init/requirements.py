"""The pip requirements that a repository declares, and the versions of Python that it supports."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgym.cli.init.survey import PytestSettings, read_ini, read_toml, table

_FILES = (
    *("requirements.txt", "requirements-test.txt", "requirements-tests.txt", "requirements-dev.txt"),
    *("test-requirements.txt", "dev-requirements.txt", "requirements_test.txt", "requirements_dev.txt"),
    *("requirements/base.txt", "requirements/test.txt", "requirements/tests.txt", "requirements/dev.txt"),
)
_GROUPS = ("test", "tests", "testing", "dev")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_INCLUDE = re.compile(r"^(?:-r|--requirement)[ =]?\s*(\S+)")
_TOX_ROOT = re.compile(r"\{(?:toxinidir|tox_root)\}/?")
_CONDITIONAL = re.compile(r"^[\w{},.!-]+:\s")
_CLAUSE = re.compile(r"^(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?$")
_LIMIT = 256
"""As many as a task may have."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements in the order found, their files, what is left out with the reason, and the supported Pythons."""

    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    python: str = ""


def read_requirements(root: Path, pytest: PytestSettings | None = None) -> Requirements:
    """The requirements of requirements files, ``pyproject.toml``, ``setup.cfg``, ``tox.ini`` and pytest's settings.

    ``setup.py`` is not executed.
    """
    reader = _Reader(root)
    for name in _FILES:
        reader.file(root / name)
    project = read_toml(root / "pyproject.toml")
    reader.pyproject(project)
    setup = read_ini(root / "setup.cfg")
    reader.setup_cfg(setup)
    if (root / "setup.py").is_file() and not reader.found:
        reader.left_out.append("setup.py: not executed; add what it requires")
    for name in ("Pipfile", "environment.yml", "environment.yaml"):
        if (root / name).is_file() and not reader.found:
            reader.left_out.append(f"{name}: not read; add what it lists")
    reader.tox()
    if pytest is not None:
        for plugin in pytest.plugins:
            reader.add_missing(plugin, pytest.file)
    python = table(project, "project").get("requires-python") or setup.get("options", "python_requires", fallback="")
    own = _normal(str(table(project, "project").get("name") or setup.get("metadata", "name", fallback="")))
    lines = list(dict.fromkeys(line for line in reader.found if not own or _normal(line) != own))
    if len(lines) > _LIMIT:
        reader.left_out.append(
            f"{len(lines) - _LIMIT} requirements beyond the first {_LIMIT}; use --python PATH instead"
        )
    return Requirements(
        lines=tuple(lines[:_LIMIT]),
        files=tuple(dict.fromkeys(reader.files)),
        left_out=tuple(dict.fromkeys(reader.left_out)),
        python=python if isinstance(python, str) else "",
    )


def allows(specifier: str, version: tuple[int, int]) -> bool:
    """Whether a Python of that major and minor version can meet ``specifier``; what cannot be read is no objection."""
    return all(_meets(clause.strip(), version) for clause in specifier.split(",") if clause.strip())


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
        text = re.sub(r"\\\n", " ", path.read_text("utf-8-sig", errors="replace"))
        for raw in text.splitlines():
            line = _without_comment(raw)
            include = _INCLUDE.match(line)
            if include:
                self.file(path.parent / include[1])
            elif line:
                self._add(re.sub(r"\s+--hash=\S+", "", line), name)

    def pyproject(self, data: dict[str, Any]) -> None:
        """Dependencies of the project, and of the extras and groups that are called like tests."""
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

    def setup_cfg(self, parser: Any) -> None:
        """``install_requires`` and the extras that are called like tests."""
        texts = [parser.get("options", "install_requires", fallback="")]
        texts += [parser.get("options.extras_require", name, fallback="") for name in _GROUPS]
        for line in "\n".join(texts).splitlines():
            if line.strip():
                self._add(line.strip(), "setup.cfg")

    def tox(self) -> None:
        """``deps`` of the section of ``tox.ini`` that all environments share."""
        for raw in read_ini(self._root / "tox.ini").get("testenv", "deps", fallback="").splitlines():
            line = _TOX_ROOT.sub("./", _without_comment(raw))
            include = _INCLUDE.match(line)
            if include:
                self.file(self._root / include[1])
            elif _CONDITIONAL.match(line) or "{" in line:
                self.left_out.append(f"tox.ini: {line!r} is for some of tox's environments; add it where it is needed")
            elif line:
                self.add_missing(line, "tox.ini")

    def add_missing(self, line: str, source: str) -> None:
        """Add a requirement unless one of that name is there: two for the same may contradict each other."""
        if _normal(line) not in map(_normal, self.found):
            self._add(line, source)

    def _add(self, line: str, source: str) -> None:
        if _NAME.match(line) and "/" not in line.partition("@")[0] and "\\" not in line:
            self.found.append(line)
            self.files.append(source)
        else:
            self.left_out.append(f"{source}: {line!r} is an option or a path; a requirement has a name")


def _group(groups: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    items = groups.get(name)
    for item in items if isinstance(items, list) and name not in above else ():
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
            yield from _group(groups, item["include-group"], (*above, name))


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line).strip()


def _normal(line: str) -> str:
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _meets(clause: str, version: tuple[int, int]) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        return True
    operator, numbers = match[1], tuple(map(int, match[2].split(".")))
    wanted = (*numbers, 0)[:2]
    # Of a minor version some release is meant: "<3.12.4" allows 3.12, "<3.12" does not.
    more = any(numbers[2:])
    return {
        ">=": version >= wanted,
        ">": version > wanted or (version == wanted and more),
        "<=": version <= wanted,
        "<": version < wanted or (version == wanted and more),
        "==": version[: len(numbers)] == numbers[:2],
        "!=": bool(more) or version[: len(numbers)] != numbers[:2],
        "~=": version >= wanted and version[: len(numbers) - 1] == numbers[:-1][:2],
    }[operator]
