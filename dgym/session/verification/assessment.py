"""Assessment of a task by runs of its untouched repository and of its solution. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from dgym.sandbox import EntrypointResult, Mode
from dgym.session.verification.causes import Lack, by_test
from dgym.session.verification.suite import ExpectedTests, expected_tests, named_tests
from dgym.session.verification.verdict import (
    ALREADY_PASSES,
    Verdict,
    list_paths,
)
from dgym.session.verification.verifier import VerificationPlan

_PASSED = frozenset({"passed", "xpassed"})
_FILES_SHOWN = 10
_CAUSE_CHARACTERS = 300


_TOO_SLOW = (
    "the suite of the untouched repository does not end in time, so it is not known what counts: raise "
    "entrypointTimeoutSeconds, or name the tests in the entrypoint"
)


class Assessment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The problems of a task, and its tests by their outcomes.

    ``problems`` make verdicts wrong or meaningless; ``notes`` do not. ``fail_to_pass``: tests that fail before and pass
    after the solution; where there is none, those that fail and lack nothing. ``pass_to_pass``: tests that pass in
    every run. ``passes``: whether the untouched repository has everything that counts. ``lacks``: what the environment
    lacks, with the tests that show it.
    """

    task: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    passes: bool = False
    lacks: tuple[Lack, ...] = ()


def assess(
    task: str,
    plan: VerificationPlan,
    before: Sequence[EntrypointResult],
    after: Sequence[EntrypointResult],
    lacks: Sequence[Lack] = (),
) -> Assessment:
    """The assessment by runs of the untouched repository (``before``, at least one) and of the solution (``after``).

    ``lacks`` are those of the untouched repository; what the solution brings is not among those of the assessment.
    """
    expected = _expected(plan, before[0])
    untouched = [plan.judge(run, expected) for run in before]
    solved = [plan.judge(run, expected) for run in after]
    passes = all(verdict.resolved for verdict in untouched)
    problems = [ALREADY_PASSES] if passes else []
    problems += _flaky("the untouched repository", before, untouched) + _flaky("the solution", after, solved)
    problems += _misnamed(plan, before, after)
    problems += [
        f"the solution does not resolve it: {verdict.message}" for verdict in solved[:1] if not verdict.resolved
    ]
    if not after and plan.mode is Mode.WHOLE_SUITE and any(run.run.ended_by == "timeout" for run in before):
        problems.append(_TOO_SLOW)
    if not after and untouched[0].score.max_score == 0:
        problems.append(f"nothing counts: {untouched[0].message}")
    good, fixed = _always_passed(before), _always_passed(after)
    lacks = [lack for lack in lacks if not (after and lack.tests and {*lack.tests} <= {*fixed})]
    problems += [lack.sentence() for lack in lacks if not lack.is_outside]
    lacking = by_test(lacks)
    if not after:
        problems += _not_collected(before[0], lacking)
    failing = [test for test in before[0].report.outcomes if _failed_always(test, before)] if before[0].report else []
    return Assessment(
        task=task,
        problems=tuple(problems),
        notes=(
            *dict.fromkeys(note for verdict in (*untouched, *solved) for note in verdict.notes),
            *(lack.sentence() for lack in lacks if lack.is_outside),
        ),
        fail_to_pass=tuple(test for test in fixed if not _passed_once(test, before))
        if after
        else tuple(test for test in failing if test not in lacking),
        pass_to_pass=tuple(test for test in good if not after or test in fixed),
        passes=passes,
        lacks=tuple(lacks),
    )


def _not_collected(run: EntrypointResult, lacking: Mapping[str, Lack]) -> list[str]:
    """Files that cannot be collected although they lack nothing that is known: their tests cannot count."""
    if run.report is None:
        return []
    problems = []
    for path in run.report.collection_errors[:_FILES_SHOWN]:
        if path not in lacking:
            causes = run.report.causes.get(path, [])
            why = " ".join(f"{causes[-1].type}: {causes[-1].text}".split()) if causes else "the run does not show why"
            problems.append(f"cannot be collected: {path} ({why[:_CAUSE_CHARACTERS]})")
    return problems


def unsteady_tests(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """The tests that pass in some of the equal runs, and not in all; each run maps tests to their outcomes."""
    names = dict.fromkeys(test for tests in runs for test in tests)
    return [test for test in names if len({tests.get(test) in _PASSED for tests in runs}) > 1]


def _expected(plan: VerificationPlan, untouched: EntrypointResult) -> ExpectedTests:
    if plan.mode in (Mode.NAMED_TESTS, Mode.EVALUATION):
        return named_tests(plan.named)
    return expected_tests(untouched) if plan.mode is Mode.WHOLE_SUITE else ExpectedTests()


def _flaky(what: str, runs: Sequence[EntrypointResult], verdicts: Sequence[Verdict]) -> list[str]:
    """Tests, or the verdict where tests do not count, that differ between equal runs."""
    unsteady = unsteady_tests([run.report.outcomes if run.report is not None else {} for run in runs])
    if unsteady:
        return [f"flaky: equal runs of {what} differ in {list_paths(unsteady)}"]
    if len({verdict.score.score for verdict in verdicts}) > 1:
        return [f"flaky: equal runs of {what} end differently: {'; '.join(verdict.message for verdict in verdicts)}"]
    return []


def _misnamed(
    plan: VerificationPlan, before: Sequence[EntrypointResult], after: Sequence[EntrypointResult]
) -> list[str]:
    """Named tests that do not exist, or are in the wrong list."""
    if plan.mode is not Mode.NAMED_TESTS:
        return []
    reports = [run.report for run in (*before, *after) if run.report is not None]
    known = {test for report in reports for test in (*report.collected, *report.outcomes)}
    good = set(_always_passed(before))
    found = {
        "unknown test ids": [test for test in plan.named if test not in known] if known else [],
        "in failToPass, and passes on the untouched repository": [test for test in plan.fail_to_pass if test in good],
        "in passToPass, and does not pass on the untouched repository": [
            test for test in plan.pass_to_pass if test in known and not _passed_once(test, before)
        ],
    }
    return [f"{what}: {list_paths(tests)}" for what, tests in found.items() if tests]


def _always_passed(runs: Sequence[EntrypointResult]) -> list[str]:
    outcomes = [run.report.outcomes if run.report is not None else {} for run in runs]
    return [test for test in (outcomes[0] if outcomes else ()) if all(one.get(test) in _PASSED for one in outcomes)]


def _passed_once(test: str, runs: Sequence[EntrypointResult]) -> bool:
    return any(run.report is not None and run.report.outcomes.get(test) in _PASSED for run in runs)


def _failed_always(test: str, runs: Sequence[EntrypointResult]) -> bool:
    return all(run.report is not None and run.report.outcomes.get(test) in ("failed", "error") for run in runs)
