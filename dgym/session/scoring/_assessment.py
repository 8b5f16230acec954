"""Assessment of a task from runs of its untouched repository and of its solution. Pure functions.

The failures of the tests show what the environment of the untouched repository lacks.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from dgym.sandbox import FAILED, PASSED, Cause, EntrypointResult, Mode
from dgym.session.scoring._score import (
    ALREADY_PASSES,
    NO_ASYNC_PLUGIN,
    ExpectedTests,
    expected_tests,
    list_paths,
    named_tests,
)
from dgym.session.scoring._scorer import ScoringPlan
from dgym.wire import Result

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
"""Not available in any sandbox. Tests that need them do not count, and that is not a problem of the task."""
BUILD_FILES = ("setup.py", "pyproject.toml")
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
_FILES_SHOWN = 10
_CAUSE_CHARACTERS = 300
_TOO_SLOW = (
    "the suite of the untouched repository does not end in time, so the tests that count are unknown: raise "
    "entrypointTimeoutSeconds, or name the tests in the entrypoint"
)


class UnmetRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """A missing dependency of tests, or of files that could not be collected.

    Attributes:
        kind: The kind of the dependency.
        name: Name of the module, script or plugin.
        tests: The tests or files that need it. Empty: the whole suite.
    """

    kind: Kind
    name: str
    tests: tuple[str, ...] = ()

    @property
    def is_outside(self) -> bool:
        """Whether no environment can provide the dependency."""
        return self.kind in OUTSIDE

    def sentence(self) -> str:
        """Describe the tests, the missing dependency and the remedy."""
        number = len(self.tests)
        what = "the whole suite" if not number else "1 test or file" if number == 1 else f"{number} tests or files"
        shown = ", ".join(self.tests[:_SHOWN]) + (", …" if number > _SHOWN else "")
        return f"{what}: {_REASONS[self.kind].format(name=self.name)}{f' ({shown})' if shown else ''}"


_REASONS: dict[Kind, str] = {
    "module": "no module named {name}; add its distribution to spec.environment.requirements",
    "metadata": "no installed distribution named {name}; add it to spec.environment.requirements or, if it is the"
    " repository's own, set spec.environment.install: editable",
    "installation": "the repository's own {name} cannot be imported; set spec.environment.install: editable, or create"
    " the files of its build with spec.setupCommands",
    "project": "the repository's own package in {name} is not installed; write a manifest for that directory: dgym init"
    " REPOSITORY/{name}",
    "script": "no program named {name}; set spec.environment.install: editable if it is the repository's own, else add"
    " the distribution that provides it to spec.environment.requirements",
    "plugin": "the plugin of pytest with {name} is not installed; add it to spec.environment.requirements",
    "option": "pytest does not recognize {name}; add the plugin that defines it to spec.environment.requirements",
    "extension": "the extension {name} is not built; set spec.environment.install: editable, or build it by"
    " spec.setupCommands and spec.buildCommands",
    "network": "need the network, which sandboxes do not have; these tests do not count",
    "database": "need the database {name}; these tests do not count",
    "display": "need a display; these tests do not count",
}


def find_unmet_requirements(
    run: EntrypointResult, paths: Collection[str], build_files: str = ""
) -> list[UnmetRequirement]:
    """Find the requirements of the tests that the environment of the untouched repository does not meet.

    Args:
        run: A run of the untouched repository, without watching for tampering.
        paths: The repository's files after the setup.
        build_files: The text of ``setup.py`` and ``pyproject.toml``.
    """
    unbuilt = []
    if _DECLARES_EXTENSION.search(build_files) and not any(_BUILT.search(path) for path in paths):
        unbuilt = [UnmetRequirement(kind="extension", name="that setup.py or pyproject.toml declares")]
    report = run.report
    if report is None:
        return unbuilt + unmet_requirements_in_output(run.run.text)
    failing = {test for test, outcome in report.outcomes.items() if outcome in FAILED} | set(report.collection_errors)
    found: dict[tuple[Kind, str], list[str]] = {}
    for test, causes in report.causes.items():
        skipped = test not in failing
        requirement = requirement_of_failure(causes, paths, skipped=skipped)
        if requirement is not None:
            found.setdefault(requirement, []).append(test)
    unmet = [UnmetRequirement(kind=kind, name=name, tests=tuple(tests)) for (kind, name), tests in found.items()]
    if any(requirement.kind == "extension" for requirement in unmet):
        unbuilt = []
    return unbuilt + (unmet if report.outcomes or unmet else unmet_requirements_in_output(run.run.text))


def requirement_of_failure(
    causes: Iterable[Cause], paths: Collection[str], *, skipped: bool = False
) -> tuple[Kind, str] | None:
    """Find the unmet requirement that caused one failure. A skipped test shows only extensions of the repository."""
    for cause in causes:
        if skipped:
            found = _IMPORT_SKIP.search(cause.text)
            if found and (own := _own(found[1], paths)) is not None and own[0] == "extension":
                return own
            continue
        requirement = _requirement_of_cause(cause, paths)
        if requirement is not None:
            return requirement
    return None


def _requirement_of_cause(cause: Cause, paths: Collection[str]) -> tuple[Kind, str] | None:
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
    if NO_ASYNC_PLUGIN in text:
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
    """Classify a missing module of the repository: an extension, or another file that its installation creates."""
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
    """Find the directory with its own build files that has a missing module, in a repository of several packages."""
    for path in sorted(paths):
        directory, _, name = path.rpartition("/")
        if directory and name in BUILD_FILES:
            places = [f"{directory}/{layout}{module}" for layout in ("", "src/", "lib/")]
            if any(other.startswith((f"{place}/", f"{place}.py")) for place in places for other in paths):
                return ("project", directory)
    return None


def unmet_requirements_in_output(text: str) -> list[UnmetRequirement]:
    """Find the unmet requirements in the output of a run that ended before the first test."""
    unmet: dict[tuple[Kind, str], None] = {}
    for line in (line[:_LINE] for line in text.splitlines()):
        if found := _UNRECOGNIZED.search(line):
            unmet[("option", (found[1] or found[2] or found[3]).strip()[:100])] = None
        elif line.startswith(
            ("ImportError: Error importing plugin", "E   ModuleNotFoundError", "ModuleNotFoundError")
        ) and (missing := _MISSING_MODULE.search(line)):
            unmet[("module", missing[1].partition(".")[0])] = None
    return [UnmetRequirement(kind=kind, name=name) for kind, name in unmet]


def by_test(unmet: Iterable[UnmetRequirement]) -> Mapping[str, UnmetRequirement]:
    """The unmet requirement of each test."""
    return {test: requirement for requirement in unmet for test in requirement.tests}


class Assessment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The problems of a task, and its tests by their outcomes.

    Attributes:
        task: Name of the task.
        problems: Problems that make results wrong or meaningless.
        notes: Remarks that are not problems.
        fail_to_pass: Tests that fail before and pass after the solution. Without a solution: tests that fail although
            the environment lacks nothing for them.
        pass_to_pass: Tests that pass in every run.
        passes: Whether everything that counts passes on the untouched repository.
        unmet: The requirements that the environment does not meet, with the tests that show it.
    """

    task: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    passes: bool = False
    # ``dgym check --output json`` prints this field under the name "lacks".
    unmet: tuple[UnmetRequirement, ...] = msgspec.field(default=(), name="lacks")


def assess(
    task: str,
    plan: ScoringPlan,
    before: Sequence[EntrypointResult],
    after: Sequence[EntrypointResult],
    unmet: Sequence[UnmetRequirement] = (),
) -> Assessment:
    """Assess a task from runs of the untouched repository (``before``, at least one) and of the solution (``after``).

    ``unmet`` has those of the untouched repository. The assessment leaves out those that the solution removes.
    """
    expected = _expected(plan, before[0])
    untouched = [plan.score(run, expected) for run in before]
    solved = [plan.score(run, expected) for run in after]
    passes = all(result.resolved for result in untouched)
    problems = [ALREADY_PASSES] if passes else []
    problems += _flaky("the untouched repository", before, untouched) + _flaky("the solution", after, solved)
    problems += _misnamed(plan, before, after)
    problems += [f"the solution does not resolve it: {result.message}" for result in solved[:1] if not result.resolved]
    if not after and plan.mode is Mode.WHOLE_SUITE and any(run.run.ended_by == "timeout" for run in before):
        problems.append(_TOO_SLOW)
    if not after and untouched[0].max_score == 0:
        problems.append(f"nothing counts: {untouched[0].message}")
    good, fixed = _always_passed(before), _always_passed(after)
    unmet = [each for each in unmet if not (after and each.tests and {*each.tests} <= {*fixed})]
    problems += [requirement.sentence() for requirement in unmet if not requirement.is_outside]
    lacking = by_test(unmet)
    if not after:
        problems += _not_collected(before[0], lacking)
    failing = [test for test in before[0].report.outcomes if _failed_always(test, before)] if before[0].report else []
    return Assessment(
        task=task,
        problems=tuple(problems),
        notes=(
            *dict.fromkeys(note for result in (*untouched, *solved) for note in result.notes),
            *(requirement.sentence() for requirement in unmet if requirement.is_outside),
        ),
        fail_to_pass=tuple(test for test in fixed if not _passed_once(test, before))
        if after
        else tuple(test for test in failing if test not in lacking),
        pass_to_pass=tuple(test for test in good if not after or test in fixed),
        passes=passes,
        unmet=tuple(unmet),
    )


def _not_collected(run: EntrypointResult, lacking: Mapping[str, UnmetRequirement]) -> list[str]:
    """Report files that cannot be collected for an unknown reason. Their tests cannot count."""
    if run.report is None:
        return []
    problems = []
    for path in run.report.collection_errors[:_FILES_SHOWN]:
        if path not in lacking:
            causes = run.report.causes.get(path, [])
            why = (
                " ".join(f"{causes[-1].type}: {causes[-1].text}".split())
                if causes
                else "the run does not show the cause"
            )
            problems.append(f"cannot be collected: {path} ({why[:_CAUSE_CHARACTERS]})")
    return problems


def unsteady_tests(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """The tests that pass in some, but not in all, of the runs. The runs are equal; each maps tests to outcomes."""
    names = dict.fromkeys(test for tests in runs for test in tests)
    return [test for test in names if len({tests.get(test) in PASSED for tests in runs}) > 1]


def _expected(plan: ScoringPlan, untouched: EntrypointResult) -> ExpectedTests:
    if plan.mode in (Mode.NAMED_TESTS, Mode.EVALUATION):
        return named_tests(plan.named)
    return expected_tests(untouched) if plan.mode is Mode.WHOLE_SUITE else ExpectedTests()


def _flaky(what: str, runs: Sequence[EntrypointResult], results: Sequence[Result]) -> list[str]:
    """Report tests that differ between equal runs, or the score if tests do not count."""
    unsteady = unsteady_tests([run.report.outcomes if run.report is not None else {} for run in runs])
    if unsteady:
        return [f"flaky: equal runs of {what} differ in {list_paths(unsteady)}"]
    if len({result.score for result in results}) > 1:
        return [f"flaky: equal runs of {what} end differently: {'; '.join(result.message for result in results)}"]
    return []


def _misnamed(plan: ScoringPlan, before: Sequence[EntrypointResult], after: Sequence[EntrypointResult]) -> list[str]:
    """Report named tests that do not exist or are in the wrong list."""
    if plan.mode is not Mode.NAMED_TESTS:
        return []
    reports = [run.report for run in (*before, *after) if run.report is not None]
    known = {test for report in reports for test in (*report.collected, *report.outcomes)}
    good = set(_always_passed(before))
    scoring = plan.spec.scoring
    found = {
        "unknown test ids": [test for test in plan.named if test not in known] if known else [],
        "in failToPass, and passes on the untouched repository": [
            test for test in scoring.fail_to_pass if test in good
        ],
        "in passToPass, and does not pass on the untouched repository": [
            test for test in scoring.pass_to_pass if test in known and not _passed_once(test, before)
        ],
    }
    return [f"{what}: {list_paths(tests)}" for what, tests in found.items() if tests]


def _always_passed(runs: Sequence[EntrypointResult]) -> list[str]:
    outcomes = [run.report.outcomes if run.report is not None else {} for run in runs]
    return [test for test in (outcomes[0] if outcomes else ()) if all(one.get(test) in PASSED for one in outcomes)]


def _passed_once(test: str, runs: Sequence[EntrypointResult]) -> bool:
    return any(run.report is not None and run.report.outcomes.get(test) in PASSED for run in runs)


def _failed_always(test: str, runs: Sequence[EntrypointResult]) -> bool:
    return all(run.report is not None and run.report.outcomes.get(test) in ("failed", "error") for run in runs)
