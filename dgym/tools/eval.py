"""Running the task's tests."""

from collections import Counter

from dgym.sandbox.entrypoint import EntrypointResult, run_entrypoint
from dgym.sandbox.report import TestReport
from dgym.tools.base import Tool, ToolResult
from dgym.tools.bash import describe_end
from dgym.tools.context import ToolContext
from dgym.tools.text import plural
from dgym.wire import Score

_OUTPUT_BYTES = 60 * 1024
_NOT_COUNTED = frozenset({"skipped"})
_GOOD = frozenset({"passed", "xfailed"})


class Eval(Tool):
    """Run the task's entrypoint (its tests, as a rule) on the workspace as it is now."""

    examples = ("eval",)

    def __init__(self, *, on_rewrite: bool = False) -> None:
        self._after_each_rewrite = on_rewrite

    async def on_rewrite(self, context: ToolContext, path: str) -> ToolResult | None:  # noqa: ARG002 - any file counts
        """Evaluate after each rewrite too, where the options say so."""
        return await self.use(context) if self._after_each_rewrite else None

    async def use(self, context: ToolContext) -> ToolResult:
        """Evaluate."""
        settings = context.settings
        timeout = settings.entrypoint_timeout_seconds
        result = await run_entrypoint(
            context.sandbox, settings.entrypoint, timeout_seconds=timeout, output_limit=_OUTPUT_BYTES
        )
        notices = await context.follow_edits()
        run = result.run
        end = describe_end(run, timeout) or f"Exit status {run.exit_status}."
        parts = [run.text.rstrip("\n") or "(no output)", f"{summary(result)}{end}", *notices]
        text = "\n".join(parts)
        return ToolResult(
            text=text,
            evaluation=text,
            ok=run.ended_by == "exit",
            truncated_bytes=run.truncated_bytes,
            exit_status=run.exit_status,
            breakpoints=context.breakpoints,
            score=score(result, settings.scored_tests),
        )


def summary(result: EntrypointResult) -> str:
    """``Tests: 3 passed, 1 failed. `` for a run that told of tests, else nothing."""
    report = result.report
    if report is None or not (report.collected or report.collection_errors):
        return ""
    counts = Counter(report.outcomes.values())
    missing = len(set(report.collected) - report.outcomes.keys())
    parts = [f"{counts[outcome]} {outcome}" for outcome in sorted(counts, key=_order)]
    parts += [f"{missing} not finished"] if missing else []
    broken = len(report.collection_errors)
    parts += [f"{plural(broken, 'file')} could not be collected"] if broken else []
    return f"Tests: {', '.join(parts)}. "


def score(result: EntrypointResult, scored_tests: tuple[str, ...]) -> Score:
    """What this run would be worth: named tests, else every test not skipped, else the exit status."""
    report = result.report
    if scored_tests:
        outcomes = report.outcomes if report is not None else {}
        return Score(score=sum(outcomes.get(test) == "passed" for test in scored_tests), max_score=len(scored_tests))
    if report is not None and report.form == "pytest" and (report.collected or report.collection_errors):
        return _score_suite(report)
    return Score(score=int(result.completed and result.run.exit_status == 0), max_score=1)


def _score_suite(report: TestReport) -> Score:
    counted = [test for test in report.collected if report.outcomes.get(test) not in _NOT_COUNTED]
    passed = sum(report.outcomes.get(test) in _GOOD for test in counted)
    return Score(score=passed, max_score=len(counted) + len(report.collection_errors))


def _order(outcome: str) -> int:
    return ("passed", "failed", "error", "skipped", "xfailed", "xpassed").index(outcome)
