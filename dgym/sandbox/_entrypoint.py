"""Runs a task's entrypoint and reads its report, which is separate from its output.

The entrypoint is started by ``scoring/wrapper.py`` of the runner directory. The wrapper receives a token on standard
input and writes it before each record of the report. Environment variables and arguments could not be used for the
token, because the code that the process runs can read them.

Untrusted code runs in the process that writes the report. Therefore a line counts only if it begins with the token, and
if a test has two outcomes, the worse one counts. Other lines are recorded as a sign of tampering, not as results.
"""

import re
import secrets
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal, get_args

import msgspec

from dgym.sandbox._protocol import RunResult, Sandbox
from dgym.tracing import span

OUTPUT_LIMIT_BYTES = 64 * 1024

TestOutcome = Literal["passed", "failed", "skipped", "error", "xfailed", "xpassed"]
Form = Literal["pytest", "python", "shell", "script"]
PASSED: frozenset[TestOutcome] = frozenset({"passed", "xpassed"})
FAILED: frozenset[TestOutcome] = frozenset({"failed", "error"})

_OUTCOMES: tuple[str, ...] = get_args(TestOutcome)
_FORMS: tuple[str, ...] = get_args(Form)
_SEVERITY = ("passed", "xpassed", "skipped", "xfailed", "failed", "error")
_NO_TESTS = 5
_MAXIMUM_REASONS = 20
_MAXIMUM_SHOWN = 5
_MAXIMUM_CAUSES = 2_000

_PYTEST_WORD = re.compile(r"(?<![\w./-])(?:[\w./~-]*/)?(?:py\.test|pytest)(?![\w./-])")
_START_WRAPPER = (
    'python=$(command -v python3 || command -v python) || { echo "no python on PATH" >&2; exit 127; }; '
    'exec "$python" -I -S "$DGYM_RUNNER/scoring/wrapper.py"'
)


class Cause(msgspec.Struct, frozen=True):
    """An exception that caused a failure, or the reason of a skip.

    Attributes:
        type: Type of the exception.
        text: Message of the exception, or the reason of the skip.
        name: Name of the module, file or fixture that the exception has as an attribute.
    """

    type: str = ""
    text: str = ""
    name: str = ""


class TestReport(msgspec.Struct, kw_only=True):
    """The report of one run of pytest, or of the wrapper of another program.

    Attributes:
        form: How the wrapper ran the entrypoint.
        sessions: Number of pytest sessions that started.
        collected: Test ids in order, without deselected tests.
        outcomes: Outcomes of the tests whose setup, call and teardown have all run, by id.
        collection_errors: Files that could not be collected.
        finished: True if every session that started also reported its end.
        exit_status: The exit status that the run reported; None if it did not report one.
        canary: Outcome of the test that must fail; None if it did not run.
        tampering: Reasons why the run cannot be trusted, in sentences.
        overruled: pytest's own outcome of tests for which another outcome counts.
        pytest_statuses: Exit status of each pytest session.
        causes: Causes of tests that failed or were skipped, and of files that cannot be collected. Only if all code
            is trusted.
        parser: Parser that read the outcomes from the output of an evaluation script; empty for other runs.
        unread: Why the output of an evaluation script does not prove that the run was complete.
    """

    __test__: ClassVar[bool] = False

    form: Form | None = None
    sessions: int = 0
    collected: list[str] = msgspec.field(default_factory=list)
    outcomes: dict[str, str] = msgspec.field(default_factory=dict)
    collection_errors: list[str] = msgspec.field(default_factory=list)
    finished: bool = False
    exit_status: int | None = None
    canary: str | None = None
    tampering: list[str] = msgspec.field(default_factory=list)
    overruled: dict[str, str] = msgspec.field(default_factory=dict)
    pytest_statuses: list[int] = msgspec.field(default_factory=list)
    causes: dict[str, list[Cause]] = msgspec.field(default_factory=dict)
    parser: str = ""
    unread: str = ""

    def disagreements(self) -> list[str]:
        """Return sentences on how the counted outcomes differ from pytest's own outcomes and exit status."""
        found = [
            f"pytest itself reports {test} as {theirs}, it counts as {self.outcomes.get(test, 'missing')}"
            for test, theirs in self.overruled.items()
        ]
        statuses = [self.exit_status] if self.form == "pytest" else self.pytest_statuses
        bad = [test for test, outcome in self.outcomes.items() if outcome in FAILED and test not in self.overruled]
        if not statuses or None in statuses:
            return found
        if any(status not in (0, _NO_TESTS) for status in statuses):
            if not (bad or self.collection_errors):
                found.append(f"pytest itself exited with status {max(filter(None, statuses))} although no test failed")
            return found
        if bad:
            found.append(f"pytest itself exited with status 0 although {_some(bad)} failed")
        unreported = [test for test in dict.fromkeys(self.collected) if test not in self.outcomes]
        if unreported:
            found.append(f"pytest itself exited with status 0 although {_some(unreported)} reported no outcome")
        return found


def _some(tests: Sequence[str]) -> str:
    shown = ", ".join(tests[:_MAXIMUM_SHOWN])
    return shown if len(tests) <= _MAXIMUM_SHOWN else f"{shown} and {len(tests) - _MAXIMUM_SHOWN} more tests"


class _ReportReader:
    def __init__(self, report: TestReport) -> None:
        self.report = report
        self.ended = 0
        self.abnormal = False

    def read(self, record: dict[str, Any]) -> None:
        handler = getattr(self, f"_read_{record.get('kind')}", None)
        if handler is None:
            raise ValueError("unknown kind")
        handler(record)

    def _read_form(self, record: dict[str, Any]) -> None:
        if record["form"] not in _FORMS:
            raise ValueError("unknown form")
        self.report.form = record["form"]

    def _read_start(self, _record: dict[str, Any]) -> None:
        self.report.sessions += 1

    def _read_collected(self, record: dict[str, Any]) -> None:
        self.report.collected.extend(str(identifier) for identifier in record["ids"])

    def _read_collection_error(self, record: dict[str, Any]) -> None:
        self.report.collection_errors.append(str(record["id"]))

    def _read_test(self, record: dict[str, Any]) -> None:
        identifier, outcome = str(record["id"]), record["outcome"]
        if outcome not in _OUTCOMES:
            raise ValueError("unknown outcome")
        known = self.report.outcomes.get(identifier, outcome)
        self.report.outcomes[identifier] = max(known, outcome, key=_SEVERITY.index)

    def _read_cause(self, record: dict[str, Any]) -> None:
        identifier = str(record["id"])
        if len(self.report.causes) < _MAXIMUM_CAUSES:
            self.report.causes.setdefault(identifier, []).extend(msgspec.convert(record["chain"], list[Cause])[:8])

    def _read_canary(self, record: dict[str, Any]) -> None:
        self.report.canary = str(record["outcome"])

    def _read_tampering(self, record: dict[str, Any]) -> None:
        add_reason(self.report, str(record["why"])[:500])

    def _read_overruled(self, record: dict[str, Any]) -> None:
        if record["outcome"] not in _OUTCOMES:
            raise ValueError("unknown outcome")
        self.report.overruled[str(record["id"])] = record["outcome"]

    def _read_reading(self, record: dict[str, Any]) -> None:
        self.report.parser = str(record["parser"])
        self.report.unread = str(record.get("why", ""))[:500]

    def _read_end(self, record: dict[str, Any]) -> None:
        self.ended += 1
        if "status" in record:
            self.report.pytest_statuses.append(int(record["status"]))

    def _read_status(self, record: dict[str, Any]) -> None:
        self.report.exit_status = int(record["status"])
        if record.get("abnormal"):
            self.abnormal = True
            add_reason(self.report, str(record["abnormal"])[:500])


def add_reason(report: TestReport, why: str) -> None:
    """Add a sign of tampering, unless the report already has it or has twenty signs."""
    if why not in report.tampering and len(report.tampering) < _MAXIMUM_REASONS:
        report.tampering.append(why)


def parse_report(data: bytes, token: str) -> TestReport | None:
    """Parse a report; None if ``data`` is empty."""
    if not data.strip():
        return None
    report = TestReport()
    reader = _ReportReader(report)
    prefix = token.encode() + b" "
    for line in data.split(b"\n"):
        if not line:
            continue
        if not line.startswith(prefix):
            add_reason(report, "something other than the test run wrote to its report")
            continue
        try:
            reader.read(msgspec.json.decode(line[len(prefix) :], type=dict[str, Any]))
        except Exception:  # A forged record can raise any exception; it is not an infrastructure error.
            add_reason(report, "the report has a record that cannot be read")
    report.finished = reader.ended == report.sessions and not reader.abnormal
    if report.form != "shell":
        report.finished = report.finished and report.exit_status is not None
    return report


class EntrypointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The run of the entrypoint, and its report; ``report`` is None if nothing was reported."""

    run: RunResult
    report: TestReport | None

    @property
    def completed(self) -> bool:
        """Whether the run reached its end, and its exit status equals the reported exit status.

        Code under test can end the process early with any status, or change the status at exit. Both are not counted
        as completed.
        """
        if self.report is None or self.run.ended_by != "exit" or not self.report.finished:
            return False
        return self.report.form == "shell" or self.report.exit_status == self.run.exit_status


class EvaluationScript(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation script of a task.

    Attributes:
        script: The script, for bash.
        parser: Name of the parser that reads the script's output.
        code: Source code of the parser, if it is part of the task.
    """

    script: str
    parser: str
    code: str | None = None


class _WrapperOptions(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    entrypoint: str
    setup_only: bool
    workspace: str
    changed: tuple[str, ...] | None
    evaluation: EvaluationScript | None


def mentions_pytest(entrypoint: str) -> bool:
    """Whether ``entrypoint`` names pytest as a program or module. Only pytest reports an outcome for each test."""
    return _PYTEST_WORD.search(entrypoint) is not None


async def run_entrypoint(
    sandbox: Sandbox,
    entrypoint: str,
    *,
    timeout_seconds: float,
    setup_only: bool = False,
    changed: Collection[str] | None = None,
    evaluation: EvaluationScript | None = None,
    output_limit: int = OUTPUT_LIMIT_BYTES,
) -> EntrypointResult:
    """Run ``entrypoint`` in the workspace and read its report.

    Args:
        sandbox: Where to run.
        entrypoint: ``python -m pytest …``, ``pytest …``, ``python script.py``, ``python -m module`` or a shell line.
        timeout_seconds: Timeout of the whole run.
        setup_only: Run the setup and teardown of each test but not the test, to find the tests that are skipped.
        changed: Workspace paths whose code is not trusted. If it is not None, a test that must fail runs last.
        evaluation: Run this script instead of the entrypoint and parse its output.
        output_limit: Maximum number of bytes of output to keep.
    """
    options = _WrapperOptions(
        token=secrets.token_hex(16),
        entrypoint=entrypoint,
        setup_only=setup_only,
        workspace=sandbox.workspace,
        changed=None if changed is None else tuple(sorted(changed)),
        evaluation=evaluation,
    )
    with span("run entrypoint"):
        run = await sandbox.run(
            _START_WRAPPER,
            stdin=msgspec.json.encode(options),
            timeout_seconds=timeout_seconds,
            output_limit=output_limit,
            report=True,
        )
    report = parse_report(run.report, options.token)
    if report is not None and changed is not None and report.canary == "passed":
        add_reason(report, "a test that must fail passed")
    return EntrypointResult(run=run, report=report)


class Mode(StrEnum):
    """The basis of the score of a task."""

    NAMED_TESTS = "named tests"
    WHOLE_SUITE = "whole suite"
    EXIT_STATUS = "exit status"
    EVALUATION = "evaluation"


def choose_mode(entrypoint: str, named: Sequence[str], parser: str) -> Mode:
    """Return the mode of a task with this entrypoint, these named tests and this ``parser``."""
    if parser == "exitStatus":
        return Mode.EXIT_STATUS
    if named:
        return Mode.NAMED_TESTS
    if parser == "pytest" or mentions_pytest(entrypoint):
        return Mode.WHOLE_SUITE
    return Mode.EXIT_STATUS
