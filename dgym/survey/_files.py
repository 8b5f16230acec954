"""Find the tests of a repository, their configuration, and files to hide or protect. Read configuration files.

Also read how the automation of a repository installs and runs its tests: tox, nox, hatch, PDM, CI workflows and make.
Code of the repository is not executed. A noxfile and a ``setup.py`` are parsed. Every file is read up to a limit, and
unknown content is skipped.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from dgym.documents import read_yaml
from dgym.untrusted import ask, parse_ini, parse_toml, read_regular

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


_PROGRAM = Path(__file__).with_name("python_program.py")
_WORKFLOWS = 20
_STRINGS = 2_000
_LINE = 2_000
"""Maximum number of characters of a line that are read."""
_TEST_PROGRAMS = frozenset({"pytest", "py.test", "tox", "nox", "trial", "unittest", "nose2", "zope-testrunner"})
_TEST_WORDS = ("test", "tests", "testing", "unit", "default")
_CHECKS = frozenset(
    {
        *("mypy", "pyright", "type", "types", "typing", "typecheck", "lint", "linting", "flake8", "pylint", "ruff"),
        *("style", "format", "fmt", "black", "isort", "precommit", "pindeps", "bench", "benchmarks", "security"),
        *("doc", "docs", "apidocs", "sphinx", "changelog", "release", "publish", "build"),
    }
)
"""Words in the names of environments and requirements files that are not for tests."""
_CONDITION = re.compile(r"^([\w{},!.-]{1,100}):\s")
_VERSIONED = re.compile(r"([a-z]{1,100})[0-9{]")
_SUBSTITUTION = re.compile(r"\{\[([^\]]+)\](\w+)\}")


class Automation(msgspec.Struct, frozen=True, kw_only=True):
    """The commands of one file that installs or runs the tests. It is false if there are none.

    Attributes:
        file: The path of the file.
        installs: Arguments of pip.
        groups: Names of dependency groups.
        pytest: The arguments of each ``pytest`` command.
    """

    file: str
    installs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    pytest: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.installs or self.groups or self.pytest)


def read_automation(root: Path) -> list[Automation]:
    """Read all automation of the repository. Files that developers use locally come first, then CI and make."""
    project = read_toml(root, "pyproject.toml")
    found = [
        _tox(root, project),
        _nox(root),
        _hatch(root, project),
        _scripts(project),
        *_workflows(root),
        _makefile(root),
    ]
    return [automation for automation in found if automation]


# tox


def _tox(root: Path, project: dict[str, Any]) -> Automation:
    if (root / "tox.ini").is_file():
        return _tox_ini("tox.ini", read_ini(root, "tox.ini"))
    for name, data in (("tox.toml", read_toml(root, "tox.toml")), ("pyproject.toml", table(project, "tool", "tox"))):
        legacy = data.get("legacy_tox_ini")
        if isinstance(legacy, str):
            return _tox_ini(name, parse_ini(legacy.encode("utf-8", "replace")) or {})
        if data:
            return _tox_toml(name, data)
    return _tox_ini("setup.cfg", read_ini(root, "setup.cfg"))


def _tox_ini(file: str, sections: dict[str, dict[str, str]]) -> Automation:
    names = [name for name in sections if name == "testenv"]
    names += [name for name in sections if name.startswith("testenv:") and _refers_to_tests(name.partition(":")[2])]
    installs: list[str] = []
    groups: list[str] = []
    commands: list[str] = []
    for name in names[:4]:
        value = {
            key: _substituted(sections, sections[name].get(key) or "")
            for key in ("deps", "extras", "dependency_groups", "commands")
        }
        for line in value["deps"].splitlines():
            installs += _words(_without_condition(line), whole=True)
        for line in value["extras"].splitlines():
            installs += [f".[{extra}]" for extra in _without_condition(line).replace(",", " ").split()]
        groups += value["dependency_groups"].replace(",", " ").split()
        commands += value["commands"].replace("\\\n", " ").splitlines()
    return _automation(file, commands, installs=installs, groups=groups)


def _without_condition(line: str) -> str:
    """A line of a tox setting without its condition. Empty if the condition is for environments without tests.

    A default environment does not meet a condition such as ``pytest6`` or ``django{42,50}``. The version of the
    requirement is then removed too.
    """
    line = line[:_LINE].strip()
    condition = _CONDITION.match(line)
    if condition is None:
        return line
    if refers_to_checks(condition[1]):
        return ""
    rest = line[condition.end() :]
    return rest if {*_VERSIONED.findall(condition[1])} <= {"py", "pypy"} else re.split("[<>=!~;]", rest)[0]


def refers_to_checks(name: str) -> bool:
    """Whether a name refers to linters, types, documentation or releases, and not to tests."""
    words = set(re.split(r"[^a-z0-9]+", name[:200].lower()))
    return not words.isdisjoint(_CHECKS) and words.isdisjoint(_TEST_WORDS)


def _substituted(sections: dict[str, dict[str, str]], text: str) -> str:
    for _ in range(3):
        text = _SUBSTITUTION.sub(lambda match: sections.get(match[1], {}).get(match[2]) or "", text[:100_000])
    return text.replace("{toxinidir}/", "").replace("{tox_root}/", "")


def _tox_toml(file: str, data: dict[str, Any]) -> Automation:
    environments = [table(data, "env_run_base")]
    environments += [
        env for name, env in table(data, "env").items() if _refers_to_tests(name) and isinstance(env, dict)
    ]
    installs: list[str] = []
    groups: list[str] = []
    commands: list[str] = []
    for environment in environments[:4]:
        for line in strings(environment.get("deps")):
            installs += _words(line, whole=True)
        installs += [f".[{extra}]" for extra in strings(environment.get("extras"))]
        groups += strings(environment.get("dependency_groups"))
        listed = environment.get("commands")
        commands += [" ".join(strings(command)) for command in (listed if isinstance(listed, list) else ())]
    return _automation(file, commands, installs=installs, groups=groups)


# nox


def _nox(root: Path) -> Automation:
    installs: list[str] = []
    commands: list[str] = []
    for session in python_answers("nox", [read_text(root, "noxfile.py")])[0] or ():
        runs = [shlex.join(words) for name, words in session["calls"] if name == "run"]
        if any(_is_pytest(line) for line in runs) or _refers_to_tests(session["name"]):
            installs += [
                word for name, words in session["calls"] if name in ("install", "run_install") for word in words
            ]
            commands += runs
    return _automation("noxfile.py", commands, installs=installs)


# hatch, PDM, workflows, make


def _hatch(root: Path, project: dict[str, Any]) -> Automation:
    """The first hatch environment for tests that has content."""
    for file, data in (
        ("pyproject.toml", table(project, "tool", "hatch")),
        ("hatch.toml", read_toml(root, "hatch.toml")),
    ):
        for name in ("hatch-test", "test", "tests", "testing", "default"):
            environment = table(data, "envs", name)
            installs = [*strings(environment.get("dependencies")), *strings(environment.get("extra-dependencies"))]
            installs += [f".[{feature}]" for feature in strings(environment.get("features"))]
            scripts = [line for value in table(environment, "scripts").values() for line in _lines(value)]
            groups = strings(environment.get("dependency-groups"))
            if found := _automation(file, scripts, installs=installs, groups=groups):
                return found
    return Automation(file="pyproject.toml")


def _scripts(project: dict[str, Any]) -> Automation:
    scripts: list[str] = []
    for tool in ("pdm", "poe", "taskipy", "rye"):
        for keys in (("scripts",), ("tasks",)):
            for name, value in table(project, "tool", tool, *keys).items():
                command = value if isinstance(value, str) else table({"x": value}, "x").get("cmd")
                scripts += [line for line in _lines(command) if _refers_to_tests(name) or "test" in line]
    return _automation("pyproject.toml", scripts)


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [" ".join(strings(value)), *strings(value)]
    return value.splitlines() if isinstance(value, str) else []


def _workflows(root: Path) -> Iterator[Automation]:
    directory = root / ".github" / "workflows"
    files = sorted(path for path in directory.glob("*.y*ml") if path.is_file()) if directory.is_dir() else []
    for path in files[:_WORKFLOWS]:
        data = _yaml(read_text(root, f".github/workflows/{path.name}"))
        for job in table(data, "jobs").values():
            steps = job.get("steps") if isinstance(job, dict) else None
            texts = [step.get("run") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
            lines = [line for text in texts if isinstance(text, str) for line in text.replace("\\\n", " ").splitlines()]
            if any(_TEST_PROGRAMS.intersection(map(_program, line[:_LINE].split())) for line in lines):
                yield _automation(f".github/workflows/{path.name}", lines)


def _yaml(text: str) -> Any:
    return next((document.value for document in read_yaml(text) if not document.problems), None)


def _makefile(root: Path) -> Automation:
    text = read_text(root, "Makefile").replace("\\\n", " ")
    return _automation("Makefile", [line.strip("\t @-") for line in text.splitlines() if line.startswith("\t")])


def _automation(
    file: str, commands: Sequence[str], *, installs: Sequence[str] = (), groups: Sequence[str] = ()
) -> Automation:
    pytest: list[tuple[str, ...]] = []
    more: list[str] = []
    for command in commands[:_STRINGS]:
        for part in command[:_LINE].replace("||", "&&").split("&&"):
            words = _words(part)
            if (arguments := _after(words, ("pip", "pip3"), "install")) is not None:
                more += arguments
            elif (arguments := _after(words, ("pytest", "py.test"))) is not None:
                pytest.append(tuple(arguments))
    return Automation(
        file=file,
        installs=tuple(_joined([*installs, *more][:_STRINGS])),
        groups=tuple(dict.fromkeys(groups)),
        pytest=tuple(dict.fromkeys(pytest)),
    )


_WITH_VALUE = frozenset({"-r", "--requirement", "-e", "--editable", "-c", "--constraint", "--group"})


def _after(words: Sequence[str], programs: Sequence[str], verb: str | None = None) -> list[str] | None:
    """The arguments of one of ``programs`` (after ``verb``) in a command. None if the command does not run it."""
    for index, word in enumerate(words):
        if _program(word) in programs and (verb is None or verb in words[index + 1 : index + 2]):
            return list(words[index + (1 if verb is None else 2) :])
    return None


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _is_pytest(command: str) -> bool:
    return _after(_words(command[:_LINE]), ("pytest", "py.test")) is not None


def _refers_to_tests(name: str) -> bool:
    """Whether the name of a tox environment, session or script implies tests, such as ``py39`` or ``unit-tests``."""
    words = re.split(r"[-_:.]", name[:100].lower())
    return any(word in _TEST_WORDS or re.fullmatch(r"py[\d{},]{0,40}", word) for word in words)


def python_answers(what: str, texts: Sequence[str]) -> list[Any]:
    """The answer of ``python_program`` for each text of a Python file, or None if it is blank or cannot be parsed."""
    requests = [[what, text] for text in texts if text.strip()]
    answers = iter(ask(_PROGRAM, requests) if requests else ())
    return [next(answers) if text.strip() else None for text in texts]


def setup_arguments(root: Path) -> dict[str, Any]:
    """The keyword arguments of ``setup()`` in ``setup.py``. A value that is not a constant expression is None."""
    return python_answers("setup", [read_text(root, "setup.py")])[0] or {}


def _joined(words: Sequence[str]) -> Iterator[str]:
    """The arguments, with each option and its value joined to one text, such as ``-r FILE``."""
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            yield f"{word} {next(rest, '')}".strip()
        else:
            yield word


def _words(text: str, *, whole: bool = False) -> list[str]:
    """The words of a command. With ``whole``, a text that is not an option is one requirement and is not split."""
    text = text.strip()
    if whole and not text.startswith("-"):
        return [text] if text else []
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []
