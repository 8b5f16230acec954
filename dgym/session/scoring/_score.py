"""The result of one run: which tests count, and which passed. Pure functions, except for the suite cache.

Environments that cannot run a task's tests are distinguished from bugs that were not repaired.
"""

import contextlib
import hashlib
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dgym.api import Evaluation
from dgym.decoding import DECODE_ERRORS
from dgym.sandbox import PASSED, EntrypointResult, EvaluationScript, Mode
from dgym.wire import EndReason, Observation, Result, Score

ALREADY_PASSES = "an empty patch resolves this task: everything that counts passes on the untouched repository"
NOT_GRADED = "not graded"
"""Start of the message if the output of an evaluation script does not prove that the whole script ran."""
_GOOD = frozenset({"passed", "xfailed"})
_OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped", "ERROR": "error", "XFAIL": "xfailed"}
_SHOWN_PATHS = 10
Fact = Literal["runs", "passes"]
"""``runs``: the environment can run the tests. ``passes``: everything that counts already passes."""
_NOT_STARTED = frozenset({126, 127})
_NOTHING_RAN = frozenset({2, 3, 4, 5, *_NOT_STARTED})
_TAIL_LINES = 20
_ERROR = re.compile(r"^(?:E\s+|INTERNALERROR>\s*)?((?:\w+\.)*\w*(?:Error|Exception)): (.*)$")
_PLACE = re.compile(r'^(?:E\s+|INTERNALERROR>\s*)?(?:File "(?P<quoted>[^"]+)", line \d+|(?P<short>\S+\.py):\d+:)')
_SHORT_PLACE = re.compile(r"^(\S+\.py):\d+$")
_MISSING_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")
NO_ASYNC_PLUGIN = "async def functions are not natively supported"
_ASYNC_PLUGINS = ("pytest-asyncio", "anyio", "pytest-trio", "pytest-twisted", "pytest-aiohttp")
_RAN = frozenset({"passed", "xpassed", "xfailed"})
_OTHER_DISTRIBUTIONS = {
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "crypto": ("pycryptodome",),
    "cv2": ("opencv_python", "opencv_python_headless"),
    "git": ("gitpython",),
    "pil": ("pillow",),
    "skimage": ("scikit_image",),
    "sklearn": ("scikit_learn",),
    "zmq": ("pyzmq",),
}
"""Distributions whose name differs from the module that they install."""
_MISSING_AROUND = ("unrecognized arguments", "Missing required plugins", "Error importing plugin")
_WORD = re.compile(r"[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)*")


class ExpectedTests(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The suite of the untouched repository.

    Tests that are skipped there do not count.

    Attributes:
        outcomes: The outcome there of each test that counts; "" if the test did not end.
        collection_errors: Files that could not be collected.
    """

    outcomes: dict[str, str] = {}
    collection_errors: tuple[str, ...] = ()

    @property
    def all_pass(self) -> bool:
        """Whether there are tests and all of them are known to pass."""
        return bool(self.outcomes) and all(outcome in PASSED | _GOOD for outcome in self.outcomes.values())


def expected_tests(run: EntrypointResult, marks: EntrypointResult | None = None) -> ExpectedTests:
    """Determine the suite of the untouched repository.

    Args:
        run: A run of the suite.
        marks: If ``run`` did not end: a run of the setups only. It shows which of the remaining tests would be skipped.
    """
    outcomes: dict[str, str] = {}
    errors: list[str] = []
    for result in (marks, run):
        if result is None or result.report is None:
            continue
        for test in result.report.collected:
            outcomes.setdefault(test, "")
        found = result.report.outcomes.items()
        outcomes.update({test: outcome for test, outcome in found if result is run or outcome == "skipped"})
        errors.extend(result.report.collection_errors)
    counted = {test: outcome for test, outcome in outcomes.items() if outcome != "skipped"}
    return ExpectedTests(outcomes=counted, collection_errors=tuple(dict.fromkeys(errors)))


def named_tests(identifiers: Iterable[str]) -> ExpectedTests:
    """The tests that a task names, in its order, without duplicates."""
    return ExpectedTests(outcomes=dict.fromkeys(identifiers, ""))


class SuiteCache(msgspec.Struct, frozen=True):
    """Caches the suite of a task's untouched repository, and facts about it, as small files in ``directory``.

    ``key`` must change with everything that can change the suite: the task, its sources, its interpreter.
    """

    directory: Path
    key: str

    def get(self) -> ExpectedTests | None:
        """The suite; None if it is not cached or cannot be read."""
        try:
            return msgspec.json.decode(self._path("json").read_bytes(), type=ExpectedTests)
        except (OSError, *DECODE_ERRORS):
            return None

    def put(self, expected: ExpectedTests) -> None:
        """Cache the suite. Errors of the disk are ignored, because they only cost time later."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as file:
                file.write(msgspec.json.encode(expected))
            Path(file.name).replace(self._path("json"))

    def is_set(self, fact: Fact) -> bool:
        """Whether a fact is cached."""
        return self._path(fact).exists()

    def set(self, fact: Fact, *, holds: bool) -> None:
        """Cache a fact, or remove it from the cache."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            path = self._path(fact)
            path.touch() if holds else path.unlink(missing_ok=True)

    def _path(self, suffix: str) -> Path:
        name = hashlib.sha256(f"1:{self.key}".encode()).hexdigest()
        return self.directory / f"{name}.{suffix}"


def scored(passed: int, of: int, **details: Any) -> Result:
    """The result of a run in which ``passed`` of ``of`` tests passed. ``details`` are its other fields."""
    resolved = Score(score=passed, max_score=of).resolved
    reason = EndReason.RESOLVED if resolved else EndReason.UNRESOLVED
    return Result(resolved=resolved, reason=reason, score=passed, max_score=of, **details)


def score_run(mode: Mode, result: EntrypointResult, expected: ExpectedTests, timeout_seconds: float) -> Result:
    """The result of one run. ``expected`` has the named tests or the suite. The exit status mode does not use it."""
    problems = problems_of(result, timeout_seconds)
    if mode is Mode.EXIT_STATUS:
        good = not problems and result.run.exit_status == 0
        message = _first(problems) or f"the entrypoint exited with status {result.run.exit_status}"
        return scored(int(good), 1, notes=problems, message=message)
    outcomes = result.report.outcomes if result.report is not None else {}
    tests = {
        test: _shown(outcomes.get(test), before, trusted=not problems) for test, before in expected.outcomes.items()
    }
    passed = sum(outcome == "passed" for outcome in tests.values())
    absent = _absent(mode, result, tests)
    disagreements = tuple(result.report.disagreements()) if result.report is not None and not problems else ()
    notes = problems + disagreements + _collection_notes(result, expected)
    message = _first(problems) or "; ".join([_summary(mode, passed, len(tests)), *absent, *disagreements])
    return scored(passed, len(tests), tests=tests, notes=notes, message=message)


def nothing_ran(mode: Mode, expected: ExpectedTests, why: str) -> Result:
    """The result if the entrypoint could not be started with the agent's changes."""
    if mode is Mode.EXIT_STATUS:
        return scored(0, 1, notes=(why,), message=why)
    tests = dict.fromkeys(expected.outcomes, "missing")
    return scored(0, len(tests), tests=tests, notes=(why,), message=why)


def problems_of(result: EntrypointResult, timeout_seconds: float) -> tuple[str, ...]:
    """Why the run scores 0. Empty if the run is valid."""
    report, run = result.report, result.run
    tampering = tuple(f"tampered: {why}" for why in report.tampering) if report is not None else ()
    if run.ended_by == "timeout":
        return (*tampering, f"the entrypoint did not end within {timeout_seconds:g} s, so no test counts as passed")
    if run.ended_by == "memory":
        return (*tampering, "the entrypoint was killed because it used too much memory, so no test counts as passed")
    if result.completed:
        return tampering
    return (*tampering, f"the entrypoint {_ending(result)}, so no test counts as passed")


def _ending(result: EntrypointResult) -> str:
    report, status = result.report, result.run.exit_status
    if status is not None and status < 0:
        return f"was ended by signal {-status}"
    if report is None or not report.finished:
        return f"exited with status {status} before the run was over"
    return f"exited with status {status} although the run ended with {report.exit_status}"


def _shown(outcome: str | None, before: str, *, trusted: bool) -> str:
    if outcome is None:
        return "missing"
    if outcome in PASSED or (outcome == "xfailed" and before == "xfailed"):
        return "passed" if trusted else "missing"
    return "failed" if outcome == "xfailed" else outcome


def _absent(mode: Mode, result: EntrypointResult, tests: Iterable[str]) -> list[str]:
    """Report the named tests that were not collected."""
    if mode is not Mode.NAMED_TESTS or result.report is None:
        return []
    found = {*result.report.collected, *result.report.outcomes}
    absent = [test for test in tests if test not in found]
    return [f"not collected: {list_paths(absent)}"] if absent else []


def _collection_notes(result: EntrypointResult, expected: ExpectedTests) -> tuple[str, ...]:
    notes = []
    before = set(expected.collection_errors)
    if before:
        notes.append(
            f"could not be collected on the untouched repository, so not counted: {list_paths(sorted(before))}"
        )
    errors = result.report.collection_errors if result.report is not None else []
    new = sorted(set(errors) - before)
    if new:
        notes.append(f"could not be collected: {list_paths(new)}")
    return tuple(notes)


def _summary(mode: Mode, passed: int, of: int) -> str:
    return f"{passed} of {of} tests passed" if of else f"no test counts ({mode})"


def _first(problems: Sequence[str]) -> str:
    return problems[0] if problems else ""


def counted_tests(evaluation: Evaluation) -> tuple[str, ...]:
    """The names of the tests that count."""
    return (*evaluation.fail_to_pass, *evaluation.pass_to_pass, *evaluation.outcomes)


def evaluation_script(evaluation: Evaluation) -> EvaluationScript:
    """The evaluation script and parser for the verifier."""
    return EvaluationScript(script=evaluation.script, parser=evaluation.parser, code=evaluation.parser_code)


def grade(evaluation: Evaluation, result: EntrypointResult, timeout_seconds: float) -> Result:
    """The result of one run of an evaluation script. The verifier has parsed the outcomes from its output.

    Code under test can print such output, so the result notes where its outcomes come from. If the output does not
    prove that the whole script ran, the result is Unresolved, as in the official harness, and its message begins with
    ``not graded``.
    """
    report = result.report
    problems = problems_of(result, timeout_seconds)
    if not problems and report is not None and report.unread:
        problems = (f"{NOT_GRADED}: {report.unread}",)
    names = counted_tests(evaluation)
    outcomes = report.outcomes if report is not None and not problems else {}
    tests = dict.fromkeys(names, "missing") if problems else _tests(evaluation, outcomes)
    unexpected = [name for name in outcomes if evaluation.rule == "exact" and name not in evaluation.outcomes]
    if unexpected:
        problems = (f"the text has tests that are not expected: {list_paths(unexpected)}",)
    passed = sum(outcome == "passed" for outcome in tests.values())
    source = f"outcomes were read from the text of the evaluation script (parser {evaluation.parser})"
    message = _first(problems) or f"{passed} of {len(tests)} tests passed"
    counted = 0 if unexpected else passed
    return scored(counted, len(tests), tests=tests, notes=(*problems, source), message=f"{message}; {source}")


def _tests(evaluation: Evaluation, outcomes: Mapping[str, str]) -> dict[str, str]:
    """The outcome of every test that counts. ``passed`` includes outcomes that the rules accept."""
    if evaluation.rule == "exact":
        return {name: _compared(_OUTCOMES[wanted], outcomes.get(name)) for name, wanted in evaluation.outcomes.items()}
    if evaluation.rule == "failOnly":
        named = (*evaluation.fail_to_pass, *evaluation.pass_to_pass)
        return {name: "failed" if outcomes.get(name) == "failed" else "passed" for name in named}
    repaired = {name: _outcome(name, outcomes, _GOOD) for name in evaluation.fail_to_pass}
    # A skipped test is neither a regression nor a repair.
    kept = {name: _outcome(name, outcomes, _GOOD | {"skipped"}) for name in evaluation.pass_to_pass}
    return repaired | kept


def _compared(wanted: str, outcome: str | None) -> str:
    if outcome == wanted:
        return "passed"
    return "failed" if outcome == "passed" else outcome or "missing"


def _outcome(name: str, outcomes: Mapping[str, str], good: frozenset[str]) -> str:
    outcome = _find(name, outcomes) or "missing"
    return "passed" if outcome in good else outcome


def _find(name: str, outcomes: Mapping[str, str]) -> str | None:
    """The outcome of a test; None if unknown.

    If the name was cut off within its parameters, all tests that begin with it must agree.
    """
    if name in outcomes:
        return outcomes[name]
    if name.count("[") <= name.count("]"):
        return None
    found = [outcome for other, outcome in outcomes.items() if other.startswith(name)]
    agreed = len({outcome in _GOOD for outcome in found}) == 1
    return found[0] if agreed else None


def list_paths(paths: Sequence[str]) -> str:
    """List paths for a message, shortened."""
    shown = ", ".join(paths[:_SHOWN_PATHS])
    return shown if len(paths) <= _SHOWN_PATHS else f"{shown} and {len(paths) - _SHOWN_PATHS} more"


def is_doubtful(mode: Mode, result: EntrypointResult) -> bool:
    """Whether the environment may have caused ``result``: nothing that counts has run."""
    if result.run.ended_by != "exit":
        return False
    report = result.report
    if mode is Mode.EXIT_STATUS:
        return report is not None and report.form == "shell" and result.run.exit_status in _NOT_STARTED
    return report is None or not report.outcomes or _lacks_async_plugin(result)


def _lacks_async_plugin(result: EntrypointResult) -> bool:
    """Whether no test passed, and all failed tests are coroutines that pytest cannot run without a plugin."""
    if result.report is None or not _RAN.isdisjoint(result.report.outcomes.values()):
        return False
    lines = result.run.text.splitlines()
    explained = sum(NO_ASYNC_PLUGIN in line and not line.startswith("FAILED ") for line in lines)
    failures = sum(line.startswith("___") and line.endswith("___") for line in lines)
    return explained >= max(1, failures - bool(result.run.truncated_bytes))


def eval_may_not_have_run(observation: Observation) -> bool:
    """Whether an ``eval`` of the agent's workspace ended as if the tests could not run."""
    score = observation.score
    return score is not None and score.score == 0 and observation.exit_status in _NOTHING_RAN


def environment_failure(
    mode: Mode,
    entrypoint: str,
    result: EntrypointResult,
    *,
    workspace: str,
    paths: Collection[str],
    is_fixed: Callable[[str], bool],
    declared: str = "",
    tests_follow: bool = False,
) -> str | None:
    """Why the environment cannot run the tests, from a run of the untouched repository. None if it can.

    Args:
        mode: How the task is scored.
        entrypoint: The command that ran, for the message.
        result: The run. Its output can be trusted because the agent did not affect it.
        workspace: The absolute path of the repository.
        paths: The files of the repository, and those that the task's solution adds.
        is_fixed: Whether agents cannot change a path. If such a file imports a missing module, the environment is at
            fault.
        declared: The text of the files in which the repository declares its dependencies.
        tests_follow: Whether scoring adds tests that the run did not have. Then a run without tests is not a failure.
    """
    if not is_doubtful(mode, result):
        return None
    lines = result.run.text.strip().splitlines()
    causes = []
    for number, line in enumerate(lines):
        if (found := _ERROR.match(line)) is None:
            continue
        module = _missing_module(found[1], found[2])
        if module is None and _was_raised_in_libraries(lines[: number + 1], workspace, paths):
            causes.append(f"{found[1]}: {found[2]}")
            continue
        if module is None or _is_part(module, paths):
            return None
        place = _place_before(lines[:number], workspace)
        if place is not None and place in paths and not is_fixed(place) and not _is_declared(module, declared):
            return None
        causes.append(f"{found[1]}: {found[2]}")
    output = [line for line in lines if line.strip()][-_TAIL_LINES:]
    status = result.run.exit_status
    if _lacks_async_plugin(result):
        plugin = next((name for name in _ASYNC_PLUGINS if _is_declared(name, declared)), _ASYNC_PLUGINS[0])
        causes.append(f"the tests are coroutines, and no plugin of pytest runs them; install {plugin}")
    is_explained = causes or status in _NOT_STARTED or any(sign in line for line in lines for sign in _MISSING_AROUND)
    if tests_follow and not is_explained:
        return None
    ran = f"{entrypoint!r} exited with status {status} on the untouched repository"
    return "\n".join(
        [
            f"the environment cannot run the tests: {ran}",
            *output,
            causes[0] if causes else _without_error(lines, result),
        ]
    )


def _missing_module(kind: str, text: str) -> str | None:
    found = _MISSING_MODULE.search(text) if kind in ("ModuleNotFoundError", "ImportError") else None
    return found[1].partition(".")[0] if found is not None else None


def _is_part(module: str, paths: Collection[str]) -> bool:
    """Whether the repository has a module or package of this name, in any directory."""
    names = {f"{module}.py", module}
    return any(not names.isdisjoint(path.split("/")) for path in paths)


def _was_raised_in_libraries(lines: Sequence[str], workspace: str, paths: Collection[str]) -> bool:
    """Whether ``lines`` end with a traceback, and no traceback entry in them is a file of the repository."""
    named = [found["quoted"] or found["short"] for line in lines if (found := _PLACE.match(line.strip()))]
    inside = workspace.rstrip("/") + "/"
    places = [posixpath.normpath(posixpath.join(workspace, name)).removeprefix(inside) for name in named]
    short = [found[1] for line in lines if (found := _SHORT_PLACE.match(line.strip()))]
    return bool(places) and not any(place in paths for place in (*places, *short)) and inside not in lines[-1]


def _place_before(lines: list[str], workspace: str) -> str | None:
    """The file of the innermost entry of the preceding traceback, relative to the workspace."""
    for line in reversed(lines):
        if (found := _PLACE.match(line.strip())) is not None:
            path = posixpath.normpath(posixpath.join(workspace, found["quoted"] or found["short"]))
            return path.removeprefix(workspace.rstrip("/") + "/")
    return None


def _is_declared(module: str, declared: str) -> bool:
    words = {word.lower().replace("-", "_").replace(".", "_") for word in _WORD.findall(declared)}
    name = module.lower().replace("-", "_")
    others = (f"py{name}", f"{name}py", f"python_{name}", f"py_{name}", *_OTHER_DISTRIBUTIONS.get(name, ()))
    return not words.isdisjoint((name, *others))


def _without_error(lines: list[str], result: EntrypointResult) -> str:
    errors = [line for line in lines if line.startswith(("ERROR", "error:")) or ": error: " in line]
    if errors:
        return errors[-1]
    if result.run.exit_status in _NOT_STARTED and lines:
        return lines[-1]
    return "no test was collected"
