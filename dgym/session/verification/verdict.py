"""The verdict on a run of the entrypoint. Pure.

There are three ways to count, chosen by the task alone: the tests it names, the whole suite as the untouched
repository has it, or the exit status. A run that did not go through to its own end, or in which something tampered
with the tests, is worth nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

from dgym.sandbox import EntrypointResult, Mode
from dgym.session.verification.suite import ExpectedTests
from dgym.wire import Score, Seen

_PASSED = frozenset({"passed", "xpassed"})
_SHOWN_PATHS = 10
ALREADY_PASSES = "an empty patch resolves this task: what counts passes on the untouched repository"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of scoring. ``tests``: the outcome of every id that counts; ``notes`` and ``message`` are for people.

    ``untouched_passes``: everything that counts is known to pass on the untouched repository. ``seen``: the signs of
    the integrity label.
    """

    score: Score
    tests: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    message: str = ""
    untouched_passes: bool = False
    seen: tuple[Seen, ...] = ()

    @property
    def resolved(self) -> bool:
        """Whether everything that counts passed."""
        return self.score.resolved


def judge(mode: Mode, result: EntrypointResult, expected: ExpectedTests, timeout_seconds: float) -> Verdict:
    """The verdict on one run. ``expected`` are the named tests or the suite; unused by exit status."""
    problems = problems_of(result, timeout_seconds)
    if mode is Mode.EXIT_STATUS:
        good = not problems and result.run.exit_status == 0
        message = _first(problems) or f"the entrypoint exited with status {result.run.exit_status}"
        return Verdict(score=Score(score=int(good), max_score=1), notes=problems, message=message)
    outcomes = result.report.outcomes if result.report is not None else {}
    tests = {
        test: _shown(outcomes.get(test), before, trusted=not problems) for test, before in expected.outcomes.items()
    }
    passed = sum(outcome == "passed" for outcome in tests.values())
    absent = _absent(mode, result, tests)
    disagreements = tuple(result.report.disagreements()) if result.report is not None and not problems else ()
    notes = problems + disagreements + _collection_notes(result, expected)
    score = Score(score=passed, max_score=len(tests))
    message = _first(problems) or "; ".join([_summary(mode, score), *absent, *disagreements])
    return Verdict(score=score, tests=tests, notes=notes, message=message)


def nothing_ran(mode: Mode, expected: ExpectedTests, why: str) -> Verdict:
    """The verdict when the entrypoint could not even be started with the agent's changes."""
    if mode is Mode.EXIT_STATUS:
        return Verdict(score=Score(score=0, max_score=1), notes=(why,), message=why)
    tests = dict.fromkeys(expected.outcomes, "missing")
    return Verdict(score=Score(score=0, max_score=len(tests)), tests=tests, notes=(why,), message=why)


def problems_of(result: EntrypointResult, timeout_seconds: float) -> tuple[str, ...]:
    """Why the run is worth nothing; empty when it can be believed."""
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
    if outcome in _PASSED or (outcome == "xfailed" and before == "xfailed"):
        return "passed" if trusted else "missing"
    return "failed" if outcome == "xfailed" else outcome


def _absent(mode: Mode, result: EntrypointResult, tests: Iterable[str]) -> list[str]:
    """Which of the tests that the task names were not collected."""
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


def _summary(mode: Mode, score: Score) -> str:
    if score.max_score == 0:
        return f"no test counts ({mode})"
    return f"{score.score} of {score.max_score} tests passed"


def _first(problems: Sequence[str]) -> str:
    return problems[0] if problems else ""


def list_paths(paths: Sequence[str]) -> str:
    """Paths for a sentence; not more of them than a person reads."""
    shown = ", ".join(paths[:_SHOWN_PATHS])
    return shown if len(paths) <= _SHOWN_PATHS else f"{shown} and {len(paths) - _SHOWN_PATHS} more"
