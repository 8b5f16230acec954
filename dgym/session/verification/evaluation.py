"""The verdict on a run of an evaluation script, by the rules of the harness of SWE-bench 5. Pure.

The verifier has read the outcomes from the script's text. Code under test can print such text, so the verdict says
where its outcomes are from.
"""

from collections.abc import Mapping

from dgym.api import Evaluation
from dgym.sandbox import EntrypointResult, EvaluationScript
from dgym.session.verification.verdict import Verdict, list_paths, problems_of
from dgym.wire import Score

NOT_GRADED = "not graded"
"""The beginning of the message where the text is no proof of a whole run."""

_GOOD = frozenset({"passed", "xfailed"})
_OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped", "ERROR": "error", "XFAIL": "xfailed"}


def counted_tests(evaluation: Evaluation) -> tuple[str, ...]:
    """The names of the tests that count."""
    return (*evaluation.fail_to_pass, *evaluation.pass_to_pass, *evaluation.outcomes)


def evaluation_script(evaluation: Evaluation) -> EvaluationScript:
    """What the verifier runs and reads."""
    return EvaluationScript(script=evaluation.script, parser=evaluation.parser, code=evaluation.parser_code)


def grade(evaluation: Evaluation, result: EntrypointResult, timeout_seconds: float) -> Verdict:
    """The verdict on one run of the script.

    A text that is no proof of a whole run is Unresolved, as in the official harness, and its message begins with
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
    score = Score(score=0 if unexpected else passed, max_score=len(tests))
    source = f"outcomes were read from the text of the evaluation script (parser {evaluation.parser})"
    message = problems[0] if problems else f"{passed} of {len(tests)} tests passed"
    return Verdict(score=score, tests=tests, notes=(*problems, source), message=f"{message}; {source}")


def _tests(evaluation: Evaluation, outcomes: Mapping[str, str]) -> dict[str, str]:
    """What every test that counts did; ``passed`` also where the rules count it as good."""
    if evaluation.rule == "exact":
        return {name: _compared(_OUTCOMES[wanted], outcomes.get(name)) for name, wanted in evaluation.outcomes.items()}
    if evaluation.rule == "failOnly":
        named = (*evaluation.fail_to_pass, *evaluation.pass_to_pass)
        return {name: "failed" if outcomes.get(name) == "failed" else "passed" for name in named}
    repaired = {name: _outcome(name, outcomes, _GOOD) for name in evaluation.fail_to_pass}
    # A test that is skipped is no regression, and no repair either.
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
    """The outcome of a test; of a name that was cut off within its parameters, where all that begin with it agree."""
    if name in outcomes:
        return outcomes[name]
    if name.count("[") <= name.count("]"):
        return None
    found = [outcome for other, outcome in outcomes.items() if other.startswith(name)]
    agreed = len({outcome in _GOOD for outcome in found}) == 1
    return found[0] if agreed else None
