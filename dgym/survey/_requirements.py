"""Find the requirements of a repository and of its tests, without executing its code.

The sources are read in this order:

1. the dependencies of the project;
2. its extra and its dependency group for tests: the first of ``test``, ``tests``, ``testing`` and ``dev``;
3. the packages that tox, nox, hatch, CI workflows, make and requirements files install for tests;
4. the plugins that pytest's settings and the tests use.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgym.sandbox.local import requirement_name
from dgym.survey._files import (
    Survey,
    python_answers,
    read_automation,
    read_ini,
    read_text,
    read_toml,
    refers_to_checks,
    setup_arguments,
    strings,
    table,
)

NAMES = ("test", "tests", "testing", "dev")
"""Names of extras and dependency groups for tests. The first that exists is used."""

_TEST_FILES = (
    *("requirements/tests.in", "requirements/test.in", "requirements/tests.txt", "requirements/test.txt"),
    *("requirements/pytest.txt", "requirements/testing.txt", "requirements-test.txt", "requirements-tests.txt"),
    *("test-requirements.txt", "requirements_test.txt", "requirements_tests.txt", "tests/requirements.txt"),
    *("test_requirements.txt", "requirements-testing.txt", "test/requirements.txt"),
)
_DEV_FILES = (
    *("requirements-dev.txt", "dev-requirements.txt", "requirements_dev.txt", "requirements/dev.txt"),
    *("requirements-dev.in", "requirements/development.txt"),
)
_BASE_FILES = ("requirements.txt", "requirements/base.txt", "requirements.in")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRAS = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*\s*\[([^\]]*)\]")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[\w\s,.-]*\])?\s*([<>=!~(;][^@/\\]*)?")
_INCLUDE = re.compile(r"^(?:-r|--requirement)[ =]?\s*(\S+)")
_SELF = re.compile(r"^(?:-e\s*|--editable[ =]\s*)?\.(?:/)?(?:\[([^\]]*)\])?$")
_FILES_READ = 500
_PLAIN = re.compile(r"[\w*./=-]{1,200}")
_LINE = 1000
"""Maximum number of characters of a requirement."""
_BOUND = re.compile(r"(>=|<)\s*(\d+)\.(\d+)(?![.\d])")
LIMIT = 256
"""Maximum number of items of ``spec.environment.requirements``."""

# Development tools that tests rarely need and that have many dependencies. If a test imports one, it is added.
_TOOLS = frozenset(
    {
        *(
            "bandit",
            "black",
            "build",
            "bump2version",
            "bumpversion",
            "check-manifest",
            "codecov",
            "coveralls",
            "flake8",
        ),
        *("flit", "furo", "hatch", "isort", "jupyter", "mkdocs", "mkdocs-material", "mypy", "myst-parser", "nox"),
        *("pip", "pip-tools", "pre-commit", "pylint", "pyright", "pyroma", "readme-renderer", "ruff", "sphinx", "tox"),
        *("sphinx-rtd-theme", "towncrier", "tox-gh-actions", "twine", "virtualenv", "uv", "wheel", "poetry", "pdm"),
        *(
            "tox-uv",
            "cibuildwheel",
            "check-wheel-contents",
            "check-sdist",
            "codespell",
            "types-setuptools",
            "hatchling",
        ),
    }
)

# Import names that differ from the names of their distributions, and common test libraries.
DISTRIBUTIONS = {
    **{name: name for name in ("attr", "flask", "freezegun", "hypothesis", "mock", "numpy", "pandas", "parameterized")},
    **{name: name for name in ("pexpect", "pretend", "psutil", "requests", "responses", "setuptools", "six", "sybil")},
    **{name: name for name in ("testfixtures", "testscenarios", "testtools", "tomli", "trio", "twisted", "jinja2")},
    **{name: name for name in ("anyio", "aiohttp", "httpx", "syrupy", "testpath", "toml", "trustme", "faker", "click")},
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "git": "GitPython",
    "jwt": "PyJWT",
    "OpenSSL": "pyOpenSSL",
    "PIL": "Pillow",
    "pkg_resources": "setuptools<82",
    "serial": "pyserial",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
    "zope.testing": "zope.testing",
    "pytest_httpserver": "pytest-httpserver",
    "requests_mock": "requests-mock",
    "pytest_asyncio": "pytest-asyncio",
    "sh": "sh",
    "sphinx": "sphinx",
    "docutils": "docutils",
    "lxml": "lxml",
    "pygments": "pygments",
    "flaky": "flaky",
    "nose": "nose",
    "objprint": "objprint",
    "werkzeug": "werkzeug",
    "packaging": "packaging",
}
_FIXTURES = {
    "benchmark": "pytest-benchmark",
    "datadir": "pytest-datadir",
    "shared_datadir": "pytest-datadir",
    "freezer": "pytest-freezer",
    "httpserver": "pytest-httpserver",
    "httpx_mock": "pytest-httpx",
    "mocker": "pytest-mock",
    "requests_mock": "requests-mock",
    "snapshot": "syrupy",
    "faker": "faker",
    "fake_process": "pytest-subprocess",
    "fp": "pytest-subprocess",
    "script_runner": "pytest-console-scripts",
    "aiohttp_client": "pytest-aiohttp",
    "event_loop": "pytest-asyncio",
    "data_regression": "pytest-regressions",
    "file_regression": "pytest-regressions",
    "unused_tcp_port": "pytest-asyncio",
    "socket_disabled": "pytest-socket",
    "lazy_fixture": "pytest-lazy-fixture",
    "image_regression": "pytest-regressions",
    "cov": "pytest-cov",
}
_MARKS = {
    "asyncio": "pytest-asyncio",
    "benchmark": "pytest-benchmark",
    "flaky": "pytest-rerunfailures",
    "trio": "pytest-trio",
    "timeout": "pytest-timeout",
    "order": "pytest-order",
    "datafiles": "pytest-datafiles",
    "anyio": "anyio",
    "forked": "pytest-forked",
    "repeat": "pytest-repeat",
    "freeze_time": "pytest-freezer",
    "twisted": "pytest-twisted",
    "xdist_group": "pytest-xdist",
    "dependency": "pytest-dependency",
    "django_db": "pytest-django",
}
_OPTIONS = (
    (re.compile(r"--(no-)?cov\b"), "pytest-cov"),
    (re.compile(r"(^|\s)(-n\s*\S|--numprocesses|--dist\b|--maxprocesses|--maxschedchunk)"), "pytest-xdist"),
    (re.compile(r"--timeout\b"), "pytest-timeout"),
    (re.compile(r"--benchmark"), "pytest-benchmark"),
    (re.compile(r"--reruns"), "pytest-rerunfailures"),
    (re.compile(r"--asyncio-mode"), "pytest-asyncio"),
    (re.compile(r"--mypy"), "pytest-mypy"),
    (re.compile(r"--flake8"), "pytest-flake8"),
    (re.compile(r"--black"), "pytest-black"),
    (re.compile(r"--ruff"), "pytest-ruff"),
    (re.compile(r"--isort"), "pytest-isort"),
    (re.compile(r"--pylint"), "pytest-pylint"),
    (re.compile(r"--checkdocs"), "pytest-checkdocs"),
    (re.compile(r"--enabler"), "pytest-enabler"),
    (re.compile(r"--html\b"), "pytest-html"),
    (re.compile(r"--randomly|no:randomly"), "pytest-randomly"),
    (re.compile(r"--forked"), "pytest-forked"),
    (re.compile(r"--disable-socket|--allow-hosts"), "pytest-socket"),
    (re.compile(r"--snapshot"), "syrupy"),
    (re.compile(r"--sugar|no:sugar"), "pytest-sugar"),
    (re.compile(r"--ds\b|--reuse-db|--nomigrations"), "pytest-django"),
    (re.compile(r"--doctest-plus|--doctest-rst"), "pytest-doctestplus"),
    (re.compile(r"--emoji"), "pytest-emoji"),
    (re.compile(r"--instafail"), "pytest-instafail"),
)
_SETTINGS = {
    "asyncio_mode": "pytest-asyncio",
    "asyncio_default_fixture_loop_scope": "pytest-asyncio",
    "timeout": "pytest-timeout",
    "DJANGO_SETTINGS_MODULE": "pytest-django",
    "env": "pytest-env",
    "trio_mode": "pytest-trio",
    "doctest_plus": "pytest-doctestplus",
}

_OLD_PARAMETERS = {
    "path": {"pytest_ignore_collect", "pytest_collect_file", "pytest_pycollect_makemodule"},
    "startdir": {"pytest_report_header", "pytest_report_collectionfinish"},
}
"""Hook parameters that pytest 9 has removed. It refuses a conftest.py that uses them."""
_BEFORE_REMOVAL = "pytest<9"


class RequirementsSource(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of one file. If they conflict with earlier requirements, all of them are left out."""

    file: str
    lines: tuple[str, ...]


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements of a repository.

    Attributes:
        sources: The requirements, by file.
        left_out: Messages about requirements that were left out, with the reason.
        python: The specifier of the supported Python versions, may be empty.
        own_name: The name of the project's distribution, may be empty.
        extension: The file that declares a compiled extension, empty if there is none.
        pytest_arguments: Arguments of a pytest command that make it collect doctests.
    """

    sources: tuple[RequirementsSource, ...] = ()
    left_out: tuple[str, ...] = ()
    python: str = ""
    own_name: str = ""
    extension: str = ""
    pytest_arguments: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """All requirements without duplicates, at most ``LIMIT``."""
        return tuple(dict.fromkeys(line for source in self.sources for line in source.lines))[:LIMIT]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that contain the requirements, without duplicates."""
        return tuple(dict.fromkeys(source.file for source in self.sources))


def read_requirements(root: Path, found: Survey | None = None) -> Requirements:
    """Read the requirements of a repository. With ``found``, also those of its tests and of pytest's settings."""
    reader = _RequirementsReader(root)
    reader.read()
    if found is not None:
        reader.add_plugins(found)
    for name in ("Pipfile", "environment.yml", "environment.yaml"):
        if (root / name).is_file() and not reader.sources:
            reader.left_out.append(f"{name}: not read; add the requirements that it lists")
    number = len({line for source in reader.sources for line in source.lines})
    if number > LIMIT:
        reader.left_out.append(f"{number - LIMIT} requirements beyond the first {LIMIT}; use --python PATH instead")
    return Requirements(
        sources=tuple(reader.sources),
        left_out=tuple(dict.fromkeys(reader.left_out)),
        python=reader.python,
        own_name=reader.own_name,
        extension=reader.extension,
        pytest_arguments=reader.pytest_arguments,
    )


def allows(specifier: str, version: tuple[int, int]) -> bool:
    """Whether ``version`` meets the clauses ``>=X.Y`` and ``<X.Y`` of ``specifier``. Other clauses are ignored."""
    bounds = ((operator, (int(major), int(minor))) for operator, major, minor in _BOUND.findall(specifier))
    return all(version >= bound if operator == ">=" else version < bound for operator, bound in bounds)


class _RequirementsReader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._project = read_toml(root, "pyproject.toml")
        self._config = read_ini(root, "setup.cfg")
        self._setup = setup_arguments(root)
        self._seen: set[Path] = set()
        self._taken: set[str] = set()
        self.sources: list[RequirementsSource] = []
        self.left_out: list[str] = []
        project, poetry = table(self._project, "project"), table(self._project, "tool", "poetry")
        self.own_name = requirement_name(
            _first_text(
                project.get("name"),
                poetry.get("name"),
                table(self._project, "tool", "flit", "metadata").get("module"),
                _option(self._config, "metadata", "name"),
                self._setup.get("name"),
            )
        )
        self.python = _first_text(
            project.get("requires-python"),
            _option(self._config, "options", "python_requires"),
            self._setup.get("python_requires"),
            _from_poetry("", table(poetry, "dependencies").get("python")),
        ).strip()
        self.extension = self._find_extension()
        self.pytest_arguments: tuple[str, ...] = ()

    def read(self) -> None:
        """Read all sources except plugins, in order."""
        self._declared()
        if not self._first_extra() | self._first_group():
            self._add("setup.py", strings_of(self._setup.get("tests_require")))
            self._add("setup.cfg", strings_of(_option(self._config, "options", "tests_require")))
        self._automation()
        known = len(self.sources)
        for name in _TEST_FILES:
            self.add_file(self._root / name, named_by_file=True)
        if len(self.sources) == known == 0 or not self.sources:
            for name in _DEV_FILES:
                self.add_file(self._root / name, named_by_file=True)

    def _declared(self) -> None:
        project = table(self._project, "project")
        self._add("pyproject.toml", strings_of(project.get("dependencies")))
        poetry = table(self._project, "tool", "poetry")
        self._add("pyproject.toml", _poetry_lines(poetry.get("dependencies")))
        flit = table(self._project, "tool", "flit", "metadata")
        self._add("pyproject.toml", strings_of(flit.get("requires")))
        self._add("setup.cfg", strings_of(_option(self._config, "options", "install_requires")))
        self._add("setup.py", strings_of(self._setup.get("install_requires")))
        for name in _BASE_FILES:
            self.add_file(self._root / name, named_by_file=True)

    def _extras(self) -> dict[str, tuple[str, list[str]]]:
        found: dict[str, tuple[str, list[str]]] = {}
        places: list[tuple[str, dict[str, Any]]] = [
            ("pyproject.toml", table(self._project, "project", "optional-dependencies")),
            ("pyproject.toml", table(self._project, "tool", "flit", "metadata", "requires-extra")),
            ("setup.cfg", table(self._config, "options.extras_require")),
            ("setup.py", table(self._setup, "extras_require")),
        ]
        for file, extras in places:
            for name, value in extras.items():
                found.setdefault(requirement_name(name.partition(":")[0]), (file, strings_of(value)))
        poetry = table(self._project, "tool", "poetry")
        dependencies = table(poetry, "dependencies")
        for name, value in table(poetry, "extras").items():
            lines = [_from_poetry(each, dependencies.get(each)) for each in strings(value)]
            found.setdefault(requirement_name(name), ("pyproject.toml", lines))
        return found

    def _groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        standard = table(self._project, "dependency-groups")
        for name in standard:
            found[requirement_name(name)] = _group(standard, name)
        for name, value in table(self._project, "tool", "pdm", "dev-dependencies").items():
            found.setdefault(requirement_name(name), strings_of(value))
        poetry = table(self._project, "tool", "poetry")
        for name, value in table(poetry, "group").items():
            found.setdefault(requirement_name(name), _poetry_lines(table(value, "dependencies")))
        if old := _poetry_lines(poetry.get("dev-dependencies")):
            found.setdefault("dev", old)
        if uv := strings_of(table(self._project, "tool", "uv").get("dev-dependencies")):
            found.setdefault("dev", uv)
        return found

    def _first_extra(self) -> bool:
        extras = self._extras()
        name = next((name for name in NAMES if name in extras), None)
        return name is not None and self._extra(name)

    def _extra(self, name: str) -> bool:
        """Add an extra of the project, and the other extras that it includes."""
        extras = self._extras()
        waiting, done = [requirement_name(name)], set[str]()
        added = False
        while waiting:
            extra = waiting.pop()
            if extra in done or extra not in extras:
                continue
            done.add(extra)
            file, lines = extras[extra]
            own = [line for line in lines if requirement_name(line) == self.own_name]
            for line in own:
                if found := _EXTRAS.match(line):
                    waiting += [requirement_name(word.strip()) for word in found[1].split(",")]
            added |= self._add(file, [line for line in lines if line not in own])
        return added

    def _first_group(self) -> bool:
        groups = self._groups()
        name = next((name for name in NAMES if name in groups), None)
        return name is not None and self._add("pyproject.toml", groups[name], without_tools=name == "dev")

    def _automation(self) -> None:
        commands: list[tuple[str, ...]] = []
        for automation in read_automation(self._root):
            commands += automation.pytest
            lines: list[str] = []
            for word in automation.installs:
                if own := _SELF.match(word):
                    for extra in (own[1] or "").split(","):
                        if extra.strip() and not _is_placeholder(extra):
                            self._extra(extra.strip())
                elif include := _INCLUDE.match(word):
                    if not _is_placeholder(include[1]) and not refers_to_checks(Path(include[1]).stem):
                        self.add_file(self._root / include[1], named_by_file=False)
                elif not word.startswith("-") and not _is_placeholder(word) and _REQUIREMENT.fullmatch(word):
                    lines.append(word)
            groups = self._groups()
            for group in automation.groups:
                self._add(automation.file, groups.get(requirement_name(group), []), without_tools=True)
            self._add(automation.file, lines, without_tools=True)
        self.pytest_arguments = next(filter(None, map(self._doctest_arguments, commands)), ())

    def _doctest_arguments(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments of a pytest command that collect doctests, with its paths and ``--ignore`` options.

        Empty if the command does not collect doctests.
        """
        kept: list[str] = []
        paths: list[str] = []
        rest = iter(word for word in words if _PLAIN.fullmatch(word))
        for word in rest:
            name, _, value = word.partition("=")
            if name in ("--doctest-modules", "--doctest-continue-on-failure") or (name == "--doctest-glob" and value):
                kept.append(word)
            elif name in ("--ignore", "--ignore-glob"):
                kept.append(f"{name}={value or next(rest, '')}")
            elif not word.startswith("-") and ".." not in word and (self._root / word).exists():
                paths.append(word)
        return (*kept, *paths) if any(word.startswith("--doctest-") for word in kept) else ()

    def add_file(self, path: Path, *, named_by_file: bool) -> None:
        """Add a requirements file and the files that it includes. Files outside of the repository are skipped."""
        try:
            path = path.resolve()
            name = path.relative_to(self._root.resolve()).as_posix()
        except (OSError, ValueError, RuntimeError):
            return
        if path in self._seen or not path.is_file():
            return
        self._seen.add(path)
        lines: list[str] = []
        for raw in read_text(self._root.resolve(), name).replace("\\\n", " ").splitlines():
            line = "" if raw.startswith("#") else re.split(r"\s#", raw[:_LINE], maxsplit=1)[0].strip()
            if include := _INCLUDE.match(line):
                self._add(name, lines, warn=named_by_file)
                lines = []
                self.add_file(path.parent / include[1], named_by_file=named_by_file)
            elif (own := _SELF.match(line)) and self.own_name:
                for extra in (own[1] or "").split(","):
                    self._extra(extra.strip())
            elif line:
                lines.append(" ".join(word for word in line.split() if not word.startswith("--hash=")))
        self._add(name, lines, warn=named_by_file)

    def add_plugins(self, found: Survey) -> None:
        """Add the distributions that pytest's settings and the tests use, unless they have already been added."""
        needed: dict[str, str] = {}
        settings = found.pytest
        if settings is not None:
            for pattern, name in _OPTIONS:
                if pattern.search(settings.addopts):
                    needed.setdefault(name, settings.file)
            for key in settings.keys:
                if key in _SETTINGS:
                    needed.setdefault(_SETTINGS[key], settings.file)
            for line in settings.required_plugins:
                needed.setdefault(line, settings.file)
        for path, names in distributions_of_tests(self._root, found):
            for name in names:
                needed.setdefault(name, path)
        if user := next((path for path in found.sources if _uses_pkg_resources(read_text(self._root, path))), None):
            needed.setdefault(DISTRIBUTIONS["pkg_resources"], user)
        for line, file in needed.items():
            # A requirement with an upper bound is always added: without the bound, another requirement could install
            # a version that does not work.
            if requirement_name(line) not in self._taken or "<" in line:
                self._add(file, [line])

    def _add(self, file: str, lines: Iterable[str], *, without_tools: bool = False, warn: bool = True) -> bool:
        good: list[str] = []
        for raw in lines:
            line = " ".join(raw[:_LINE].split())
            name = requirement_name(line)
            if not line or (name and name == self.own_name) or (without_tools and name in _TOOLS):
                continue
            if _REQUIREMENT.fullmatch(line):
                good.append(line)
                self._taken.add(name)
            elif warn:
                self.left_out.append(f"{file}: {line!r} {_why_left_out(line)}")
        known = {line for source in self.sources for line in source.lines}
        if new := tuple(line for line in dict.fromkeys(good) if line not in known):
            self.sources.append(RequirementsSource(file=file, lines=new))
        return bool(good)

    def _find_extension(self) -> str:
        build = table(self._project, "build-system")
        backend = " ".join([str(build.get("build-backend", "")), *strings_of(build.get("requires"))])
        if any(self._setup.get(name) for name in ("ext_modules", "cffi_modules", "rust_extensions")) or any(
            name in read_text(self._root, "setup.py") for name in ("ext_modules", "cffi_modules")
        ):
            return "setup.py"
        if table(self._project, "tool", "setuptools").get("ext-modules"):
            return "pyproject.toml"
        builds = re.search(r"mesonpy|meson-python|maturin|scikit.build|skbuild|cython", backend, re.IGNORECASE)
        return "pyproject.toml" if builds else ""


def distribution_of(kind: str, name: str) -> str | None:
    """The distribution that provides a missing dependency of tests, or None if it is unknown.

    Args:
        kind: The kind of the dependency: "plugin", "option", "module" or "metadata".
        name: Its name.
    """
    if kind == "plugin":
        if name.startswith("support of async"):
            return "pytest-asyncio"
        return _FIXTURES.get(name.removeprefix("the fixture "))
    if kind == "option":
        known = [plugin for pattern, plugin in _OPTIONS if pattern.search(name)]
        return _SETTINGS.get(name) or next(iter(known), name if name.startswith("pytest-") else None)
    if kind in ("module", "metadata") and _NAME.fullmatch(name.replace("_", "-")):
        return DISTRIBUTIONS.get(name, name)
    return None


def distributions_of_tests(root: Path, found: Survey) -> Iterator[tuple[str, list[str]]]:
    """For each test file, the known distributions of its marks, fixtures and imports."""
    defined: set[str] = set()
    paths = [*found.conftests, *found.tests[:_FILES_READ], *found.other_tests[:_FILES_READ]]
    for path, known in zip(paths, python_answers("tests", [read_text(root, path) for path in paths]), strict=True):
        if known is None:
            continue
        local = set(known["functions"])
        old = False
        if path in found.conftests:
            defined |= local
            old = any(name in known["parameters"] and hooks & local for name, hooks in _OLD_PARAMETERS.items())
        names = [
            DISTRIBUTIONS[name]
            for name in known["imports"]
            if name in DISTRIBUTIONS and name not in found.modules and name not in sys.stdlib_module_names
        ]
        names += [_MARKS[name] for name in known["marks"] if name in _MARKS]
        names += [_FIXTURES[name] for name in known["parameters"] if name in _FIXTURES and name not in local | defined]
        yield path, [*dict.fromkeys(names), *([_BEFORE_REMOVAL] if old else [])]


def _uses_pkg_resources(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines() if "pkg_resources" in line)
    return any(line.startswith(("import pkg_", "from pkg_", "__import__(")) for line in lines)


def _why_left_out(line: str) -> str:
    if _NAME.match(line) and "@" in line:
        return (
            "names a URL; name a released version, or add the line and run with --build-requirements if you trust its"
            " code"
        )
    return (
        "is an option or a path; name a released version, or make an environment that has it and run with --python PATH"
    )


def _is_placeholder(word: str) -> bool:
    return bool(re.search(r"[{}$*`]", word))


def _first_text(*values: Any) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def strings_of(value: Any) -> list[str]:
    """The lines of a text, or the strings of a list."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip() and not line.strip().startswith("#")]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _option(sections: dict[str, dict[str, str]], section: str, name: str) -> str:
    return sections.get(section, {}).get(name) or ""


def _group(groups: dict[str, Any], name: str) -> list[str]:
    waiting, done, lines = [name], set[str](), list[str]()
    while waiting:
        name = waiting.pop()
        items = groups.get(name)
        if name in done or not isinstance(items, list):
            continue
        done.add(name)
        lines += [item for item in items if isinstance(item, str)]
        waiting += [
            item["include-group"] for item in items if isinstance(table({"x": item}, "x").get("include-group"), str)
        ]
    return lines


def _poetry_lines(dependencies: Any) -> list[str]:
    items = dependencies.items() if isinstance(dependencies, dict) else ()
    return [
        _from_poetry(name, value)
        for name, value in items
        if name != "python" and not (isinstance(value, dict) and value.get("optional") is True)
    ]


def _from_poetry(name: str, value: Any) -> str:
    """A Poetry dependency in pip's format. For example, ``^1.2`` becomes ``>=1.2,<2``."""
    if isinstance(value, list):
        value = value[0] if value else ""
    details = value if isinstance(value, dict) else {}
    if details.get("git") or details.get("path") or details.get("url"):
        return f"{name} @ {details.get('git') or details.get('path') or details.get('url')}"
    version = details.get("version", "") if details else value
    clauses = [_clause(part.strip()) for part in str(version or "").split(",")]
    extras = ",".join(strings_of(details.get("extras")))
    marker = details.get("markers")
    python = details.get("python")
    tail = f"; {marker}" if isinstance(marker, str) else ""
    if isinstance(python, str) and not tail:
        clauses_of_python = ",".join(_clause(part.strip()) for part in python.split(","))
        bounds = re.findall(r"([<>=!~]+)\s*([\d.]+)", clauses_of_python)
        tail = (
            "; " + " and ".join(f'python_version {operator} "{bound}"' for operator, bound in bounds) if bounds else ""
        )
    return f"{name}{f'[{extras}]' if extras else ''}{','.join(filter(None, clauses))}{tail}"


def _clause(text: str) -> str:
    if text in ("", "*"):
        return ""
    if match := re.fullmatch(r"\^\s*(\d+(?:\.\d+)*)(.*)", text):
        parts = [int(part) for part in match[1].split(".")]
        index = next((number for number, part in enumerate(parts) if part), len(parts) - 1)
        upper = [*parts[:index], parts[index] + 1]
        return f">={match[1]}{match[2]},<{'.'.join(map(str, upper))}"
    if match := re.fullmatch(r"~\s*(\d+)(?:\.(\d+))?((?:\.\d+)*)", text):
        below = f"{int(match[1])}.{int(match[2]) + 1}" if match[2] else str(int(match[1]) + 1)
        return f">={text.lstrip('~ ')},<{below}"
    return text if re.match(r"[<>=!~]", text) else f"=={text}"
