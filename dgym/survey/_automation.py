"""Read how the automation of a repository installs and runs its tests: tox, nox, hatch, PDM, CI workflows and make.

Code of the repository is not executed. A noxfile and a ``setup.py`` are parsed. Every file is read up to a limit, and
unknown content is skipped.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.documents import read_yaml
from dgym.survey._files import read_ini, read_text, read_toml, strings, table
from dgym.untrusted import ask, parse_ini

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
    names += [name for name in sections if name.startswith("testenv:") and _is_of_tests(name.partition(":")[2])]
    installs: list[str] = []
    groups: list[str] = []
    commands: list[str] = []
    for name in names[:4]:
        value = {
            key: _substituted(sections, sections[name].get(key) or "")
            for key in ("deps", "extras", "dependency_groups", "commands")
        }
        for line in value["deps"].splitlines():
            installs += _words(_of_tests(line), whole=True)
        for line in value["extras"].splitlines():
            installs += [f".[{extra}]" for extra in _of_tests(line).replace(",", " ").split()]
        groups += value["dependency_groups"].replace(",", " ").split()
        commands += value["commands"].replace("\\\n", " ").splitlines()
    return _automation(file, commands, installs=installs, groups=groups)


def _of_tests(line: str) -> str:
    """A line of a tox setting without its condition. Empty if the condition is for environments without tests.

    A default environment does not meet a condition such as ``pytest6`` or ``django{42,50}``. The version of the
    requirement is then removed too.
    """
    line = line[:_LINE].strip()
    condition = _CONDITION.match(line)
    if condition is None:
        return line
    if is_of_checks(condition[1]):
        return ""
    rest = line[condition.end() :]
    return rest if {*_VERSIONED.findall(condition[1])} <= {"py", "pypy"} else re.split("[<>=!~;]", rest)[0]


def is_of_checks(name: str) -> bool:
    """Whether a name refers to linters, types, documentation or releases, and not to tests."""
    words = set(re.split(r"[^a-z0-9]+", name[:200].lower()))
    return not words.isdisjoint(_CHECKS) and words.isdisjoint(_TEST_WORDS)


def _substituted(sections: dict[str, dict[str, str]], text: str) -> str:
    for _ in range(3):
        text = _SUBSTITUTION.sub(lambda match: sections.get(match[1], {}).get(match[2]) or "", text[:100_000])
    return text.replace("{toxinidir}/", "").replace("{tox_root}/", "")


def _tox_toml(file: str, data: dict[str, Any]) -> Automation:
    environments = [table(data, "env_run_base")]
    environments += [env for name, env in table(data, "env").items() if _is_of_tests(name) and isinstance(env, dict)]
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
        if any(_is_pytest(line) for line in runs) or _is_of_tests(session["name"]):
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
                scripts += [line for line in _lines(command) if _is_of_tests(name) or "test" in line]
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


def _is_of_tests(name: str) -> bool:
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
