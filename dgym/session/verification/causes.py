"""What the tests of the untouched repository lack, as far as their failures show it. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from dgym.sandbox import Cause, EntrypointResult

Kind = Literal[
    "module",
    "metadata",
    "script",
    "plugin",
    "extension",
    "option",
    "network",
    "database",
    "display",
    "installation",
    "project",
]
OUTSIDE: tuple[Kind, ...] = ("network", "database", "display")
"""What no sandbox has: tests that need it do not count, and that is not a problem."""

BUILD_FILES = ("setup.py", "pyproject.toml")

_BAD = frozenset({"failed", "error"})
_SHOWN = 3
_LINE = 1_000
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NOT_FOUND = re.compile(
    r"(?:: |^|')([\w.+-]{1,64})'?: (?:command )?not found|No such file or directory: '([^'/]{1,64})'"
)
_DISTRIBUTION = re.compile(
    r"(?:No package metadata was found for '?|^)([A-Za-z0-9][A-Za-z0-9._-]*)'?$"
    r"|The '([A-Za-z0-9][\w.-]*)[^']*' distribution"
)
_UNRECOGNIZED = re.compile(
    r"error: unrecognized arguments: (.*)|ERROR: Unknown config option: (\S+)|Missing required plugins: (.*)"
)
_IMPORT_SKIP = re.compile(r"could not import '([\w.]+)'")
_ASYNC = "async def functions are not natively supported"
_NETWORK = re.compile(
    r"name resolution|Name or service not known|nodename nor servname|getaddrinfo failed|Network is unreachable"
    r"|Cannot assign requested address|No address associated with hostname|Failed to resolve|NameResolutionError"
    r"|Max retries exceeded with url|Cannot connect to host|Could not resolve host|All connection attempts failed",
    re.IGNORECASE,
)
_DATABASE_TYPE = re.compile(r"^(psycopg2?|pymysql|MySQLdb|redis|pymongo|asyncpg|aiomysql|cassandra|motor|pymssql)\b")
_DATABASE_TEXT = re.compile(
    r"could not connect to server|Can't connect to (?:local )?MySQL|:(?:5432|3306|6379|27017|9042|11211)\b",
    re.IGNORECASE,
)
_DISPLAY = re.compile(
    r"no display name|couldn't connect to display|cannot connect to (?:the )?X|could not connect to display"
    r"|Unable to open display|NoSuchDisplay|DisplayNameError|\$DISPLAY",
    re.IGNORECASE,
)
_MISSING_FILE = frozenset({"builtins.FileNotFoundError", "FileNotFoundError"})
_DECLARES_EXTENSION = re.compile(r"\b(?:ext_modules|cffi_modules|rust_extensions)\s*=|\bext-modules\s*=")
_BUILT = re.compile(r"\.(so|pyd)$")
_EXTENSION_FILE = re.compile(r"\.(pyx|pxd|c|cc|cpp|cxx|rs|f90)$")


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """What tests, or files that could not be collected, are without. ``name``: of the module, script or plugin."""

    kind: Kind
    name: str
    tests: tuple[str, ...] = ()

    @property
    def is_outside(self) -> bool:
        """Whether no environment can provide it."""
        return self.kind in OUTSIDE

    def sentence(self) -> str:
        """The tests, what they lack, and the remedy."""
        number = len(self.tests)
        what = "the whole suite" if not number else "1 test or file" if number == 1 else f"{number} tests or files"
        shown = ", ".join(self.tests[:_SHOWN]) + (", …" if number > _SHOWN else "")
        return f"{what}: {_REASONS[self.kind].format(name=self.name)}{f' ({shown})' if shown else ''}"


_REASONS: dict[Kind, str] = {
    "module": "no module named {name}; add its distribution to spec.environment.requirements",
    "metadata": "no installed distribution named {name}; add it to spec.environment.requirements or, if it is the"
    " repository's own, set spec.environment.install: editable",
    "installation": "the repository's own {name} cannot be imported; set spec.environment.install: editable, or make"
    " what its build makes by spec.setupCommands",
    "project": "the repository's own package in {name} is not installed; write a manifest for that directory: dgym init"
    " REPOSITORY/{name}",
    "script": "no program named {name}; set spec.environment.install: editable if it is the repository's own, else add"
    " what provides it to spec.environment.requirements",
    "plugin": "the plugin of pytest with {name} is not installed; add it to spec.environment.requirements",
    "option": "pytest does not know {name}; add the plugin that it belongs to to spec.environment.requirements",
    "extension": "the extension {name} is not built; set spec.environment.install: editable, or build it by"
    " spec.setupCommands and spec.buildCommands",
    "network": "need the network, which no sandbox has; left out of what counts",
    "database": "need the database {name}; left out of what counts",
    "display": "need a display; left out of what counts",
}


def find_lacks(run: EntrypointResult, paths: Collection[str], build_files: str = "") -> list[Lack]:
    """What the tests of the untouched repository lack.

    Args:
        run: A run of the untouched repository, unwatched.
        paths: The repository's files after the setup.
        build_files: The text of ``setup.py`` and ``pyproject.toml``.
    """
    unbuilt = []
    if _DECLARES_EXTENSION.search(build_files) and not any(_BUILT.search(path) for path in paths):
        unbuilt = [Lack(kind="extension", name="that setup.py or pyproject.toml declares")]
    report = run.report
    if report is None:
        return unbuilt + lacks_in_output(run.run.text)
    failing = {test for test, outcome in report.outcomes.items() if outcome in _BAD} | set(report.collection_errors)
    found: dict[tuple[Kind, str], list[str]] = {}
    for test, causes in report.causes.items():
        skipped = test not in failing
        lack = lack_of(causes, paths, skipped=skipped)
        if lack is not None:
            found.setdefault(lack, []).append(test)
    lacks = [Lack(kind=kind, name=name, tests=tuple(tests)) for (kind, name), tests in found.items()]
    if any(lack.kind == "extension" for lack in lacks):
        unbuilt = []
    return unbuilt + (lacks if report.outcomes or lacks else lacks_in_output(run.run.text))


def lack_of(causes: Iterable[Cause], paths: Collection[str], *, skipped: bool = False) -> tuple[Kind, str] | None:
    """What these causes of one failure show; for a skip only what the repository's own extensions lack."""
    for cause in causes:
        if skipped:
            found = _IMPORT_SKIP.search(cause.text)
            if found and (own := _own(found[1], paths)) is not None and own[0] == "extension":
                return own
            continue
        lack = _lack(cause, paths)
        if lack is not None:
            return lack
    return None


def _lack(cause: Cause, paths: Collection[str]) -> tuple[Kind, str] | None:
    kind, text = cause.type.rpartition(".")[2], cause.text
    if kind in ("ModuleNotFoundError", "ImportError"):
        found = _MISSING_MODULE.search(text)
        if found:
            top = found[1].partition(".")[0]
            return _own(found[1], paths) or _project(top, paths) or ("module", top)
        return None
    if kind in ("PackageNotFoundError", "DistributionNotFound"):
        found = _DISTRIBUTION.search(text)
        return ("metadata", (cause.name or (found and (found[1] or found[2])) or "").strip() or "unknown")
    if kind == "FixtureLookupError" and cause.name:
        return ("plugin", f"the fixture {cause.name}")
    if _ASYNC in text:
        return ("plugin", "support of async tests, such as pytest-asyncio")
    if _DISPLAY.search(text):
        return ("display", "")
    if _DATABASE_TYPE.match(cause.type) and re.search(r"connect|refused|timed out|timeout", text, re.IGNORECASE):
        return ("database", cause.type.partition(".")[0])
    if _DATABASE_TEXT.search(text) and re.search(r"refused|connect", text, re.IGNORECASE):
        return ("database", "server")
    if kind == "gaierror" or _NETWORK.search(text):
        return ("network", "")
    if cause.type in _MISSING_FILE and cause.name and "/" not in cause.name and "." not in cause.name:
        return ("script", cause.name)
    if kind not in _MISSING_FILE and (found := _NOT_FOUND.search(f"{cause.type}: {text}")) and "not found" in text:
        return ("script", found[1] or found[2])
    return None


def _own(module: str, paths: Collection[str]) -> tuple[Kind, str] | None:
    """What a missing module of the repository is: an extension, or another file that its installation makes."""
    parts = module.split(".")
    places = {path.removeprefix("src/").removeprefix("lib/"): path for path in paths}
    directory = "/".join(parts[:-1])
    is_inside = len(parts) > 1 and any(place.startswith(f"{directory}/") for place in places)
    is_top = any(place in (f"{parts[0]}.py", f"{parts[0]}/__init__.py") for place in places)
    if not (is_inside or is_top):
        return None
    if any(_EXTENSION_FILE.search(place) and place.rpartition(".")[0].endswith(parts[-1]) for place in places):
        return ("extension", module)
    return ("installation", module)


def _project(module: str, paths: Collection[str]) -> tuple[Kind, str] | None:
    """The directory with build files of its own that has a missing module, as in a repository of several packages."""
    for path in sorted(paths):
        directory, _, name = path.rpartition("/")
        if directory and name in BUILD_FILES:
            places = [f"{directory}/{layout}{module}" for layout in ("", "src/", "lib/")]
            if any(other.startswith((f"{place}/", f"{place}.py")) for place in places for other in paths):
                return ("project", directory)
    return None


def lacks_in_output(text: str) -> list[Lack]:
    """What a run lacked that ended before any test."""
    lacks: dict[tuple[Kind, str], None] = {}
    for line in (line[:_LINE] for line in text.splitlines()):
        if found := _UNRECOGNIZED.search(line):
            lacks[("option", (found[1] or found[2] or found[3]).strip()[:100])] = None
        elif line.startswith(
            ("ImportError: Error importing plugin", "E   ModuleNotFoundError", "ModuleNotFoundError")
        ) and (missing := _MISSING_MODULE.search(line)):
            lacks[("module", missing[1].partition(".")[0])] = None
    return [Lack(kind=kind, name=name) for kind, name in lacks]


def by_test(lacks: Iterable[Lack]) -> Mapping[str, Lack]:
    """The lack of each test."""
    return {test: lack for lack in lacks for test in lack.tests}
