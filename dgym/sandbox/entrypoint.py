"""Run a task's entrypoint so that what it reports can be told from what it prints.

The entrypoint starts under ``scoring/wrapper.py`` of the runner directory. The wrapper proves that a record is its own
by a token that reaches it on standard input: neither the environment nor the arguments of a process are secret from the
code that it runs.
"""

import re
import secrets
from collections.abc import Collection, Sequence
from enum import StrEnum

import msgspec

from dgym.sandbox.protocol import RunResult, Sandbox
from dgym.sandbox.report import TestReport, add_reason, parse_report

OUTPUT_LIMIT_BYTES = 64 * 1024

_PYTEST_WORD = re.compile(r"(?<![\w./-])(?:[\w./~-]*/)?(?:py\.test|pytest)(?![\w./-])")
_START_WRAPPER = (
    'python=$(command -v python3 || command -v python) || { echo "no python on PATH" >&2; exit 127; }; '
    'exec "$python" -I -S "$DGYM_RUNNER/scoring/wrapper.py"'
)


class EntrypointResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the entrypoint ended, and what it reported; ``report`` is None when it reported nothing."""

    run: RunResult
    report: TestReport | None

    @property
    def completed(self) -> bool:
        """Whether the run went through to its own end, and its exit status is the one it announced.

        Code under test can end the process early with any status, or change the status at exit; neither counts.
        """
        if self.report is None or self.run.ended_by != "exit" or not self.report.finished:
            return False
        return self.report.form == "shell" or self.report.exit_status == self.run.exit_status


class _WrapperOptions(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    entrypoint: str
    select: tuple[str, ...]
    collect_only: bool
    setup_only: bool
    workspace: str
    changed: tuple[str, ...] | None


def mentions_pytest(entrypoint: str) -> bool:
    """Whether ``entrypoint`` names pytest as a program or module: the sign that its tests can be told apart."""
    return _PYTEST_WORD.search(entrypoint) is not None


async def run_entrypoint(
    sandbox: Sandbox,
    entrypoint: str,
    *,
    timeout_seconds: float,
    select: Sequence[str] = (),
    collect_only: bool = False,
    setup_only: bool = False,
    changed: Collection[str] | None = None,
    environment: dict[str, str] | None = None,
    output_limit: int = OUTPUT_LIMIT_BYTES,
) -> EntrypointResult:
    """Run ``entrypoint`` in the workspace and read its report.

    Args:
        sandbox: Where to run.
        entrypoint: ``python -m pytest …``, ``pytest …``, ``python script.py``, ``python -m module`` or a shell line.
        timeout_seconds: For the whole run.
        select: Arguments (paths, test ids) appended to an entrypoint that is pytest.
        collect_only: Collect the tests and run none (pytest only).
        setup_only: Run every test's setup and teardown but not the test, which shows what is marked to be skipped.
        changed: Workspace paths whose code is not trusted. When given, a canary test runs last and the machinery of
            pytest is watched for changes that come from these files.
        environment: Added to the sandbox's.
        output_limit: Bytes of output to keep.
    """
    options = _WrapperOptions(
        token=secrets.token_hex(16),
        entrypoint=entrypoint,
        select=tuple(select),
        collect_only=collect_only,
        setup_only=setup_only,
        workspace=sandbox.workspace,
        changed=None if changed is None else tuple(sorted(changed)),
    )
    run = await sandbox.run(
        _START_WRAPPER,
        environment=environment,
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
    """How a task counts."""

    NAMED_TESTS = "named tests"
    WHOLE_SUITE = "whole suite"
    EXIT_STATUS = "exit status"


def choose_mode(entrypoint: str, named: Sequence[str], parser: str) -> Mode:
    """How a task with this entrypoint, these named tests and this ``parser`` counts."""
    if parser == "exitStatus":
        return Mode.EXIT_STATUS
    if named:
        return Mode.NAMED_TESTS
    if parser == "pytest" or mentions_pytest(entrypoint):
        return Mode.WHOLE_SUITE
    return Mode.EXIT_STATUS
