"""The tool ``eval``, which runs the task's tests."""

import hashlib
from collections import Counter

import msgspec

from dgym.sandbox import PASSED, EntrypointResult, Mode, choose_mode, run_entrypoint
from dgym.tools._base import Tool
from dgym.tools._context import OUTPUT_BYTES, OutputBytes, ToolContext, ToolResult, cut_notice, plural
from dgym.tools.bash import describe_end
from dgym.wire import Score

_ADVICE = "run fewer tests at once to see the rest"
_UNCHANGED = hashlib.sha256().hexdigest()
"""Digest of a workspace without changes."""


class Eval(Tool):
    """Run the task's entrypoint (its tests, as a rule) on the workspace as it is now, built if the task has a build."""

    examples = ("eval",)

    def __init__(self, *, on_rewrite: bool = False, output_bytes: OutputBytes = OUTPUT_BYTES) -> None:
        """Configure.

        Args:
            on_rewrite: Whether the tests run after each rewrite too, as part of its answer.
            output_bytes: How much of the tests' output is shown; more loses its middle.
        """
        self._after_each_rewrite = on_rewrite
        self._output_bytes = output_bytes

    async def on_rewrite(self, context: ToolContext, path: str) -> ToolResult | None:  # noqa: ARG002 - any file counts
        """Evaluate if the option ``onRewrite`` is set."""
        return await self.use(context) if self._after_each_rewrite else None

    async def use(self, context: ToolContext) -> ToolResult:
        """Evaluate."""
        settings = context.settings
        mode = choose_mode(settings.entrypoint, settings.scored_tests, settings.parser)
        timeout = settings.entrypoint_timeout_seconds
        context.evaluated = None
        if (failure := await _build(context, self._output_bytes)) is not None:
            total = len(settings.scored_tests) if mode is Mode.NAMED_TESTS else 1
            return msgspec.structs.replace(failure, score=Score(score=0, max_score=total))
        result = await run_entrypoint(
            context.sandbox, settings.entrypoint, timeout_seconds=timeout, output_limit=self._output_bytes
        )
        context.evaluated = result
        notices = await context.follow_edits()
        run = result.run
        end = describe_end(run, timeout) or f"Exit status {run.exit_status}."
        cut = cut_notice(run.truncated_bytes, _ADVICE)
        parts = [run.text.rstrip("\n") or "(no output)", cut, f"{summary(result)}{end}", *notices]
        text = "\n".join(part for part in parts if part)
        return ToolResult(
            text=text,
            evaluation=text,
            ok=run.ended_by == "exit",
            truncated_bytes=run.truncated_bytes,
            exit_status=run.exit_status,
            breakpoints=context.breakpoints,
            score=score(result, mode, settings.scored_tests),
        )


async def _build(context: ToolContext, output_bytes: int) -> ToolResult | None:
    """Run the build commands if the workspace has changed since the last build. Returns a result if one fails."""
    settings = context.settings
    if not settings.build_commands:
        return None
    before = (await context.sandbox.digest()).sha256
    if before and before == context.built:
        return None
    context.built = None
    for command in settings.build_commands:
        run = await context.sandbox.run(
            command, timeout_seconds=settings.build_timeout_seconds, output_limit=output_bytes
        )
        if run.ended_by != "exit" or run.exit_status != 0:
            if before == _UNCHANGED:
                break  # The setup has built the unchanged workspace already, and its build may fail when repeated.
            end = describe_end(run, settings.build_timeout_seconds) or f"Exit status {run.exit_status}."
            text = f"{run.text.rstrip()}\nThe build command `{command}` failed, so no test ran. {end}".lstrip("\n")
            notices = await context.follow_edits()
            return ToolResult(
                text="\n".join([text, *notices]),
                evaluation=text,
                ok=run.ended_by == "exit",
                truncated_bytes=run.truncated_bytes,
                exit_status=run.exit_status,
                breakpoints=context.breakpoints,
            )
    context.built = (await context.sandbox.digest()).sha256
    return None


def summary(result: EntrypointResult) -> str:
    """Return ``Tests: 3 passed, 1 failed. `` for a run with a test report; empty without a report."""
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


def score(result: EntrypointResult, mode: Mode, scored_tests: tuple[str, ...] = ()) -> Score:
    """Return the score of this run: by named tests, by all tests that were not skipped, or by the exit status.

    The rules are those of the final scoring, with one difference. The final scoring also considers which tests the
    original repository skips or expects to fail, which is not known here. An incomplete run scores 0.
    """
    report = result.report
    if mode is Mode.EXIT_STATUS:
        return Score(score=int(_is_sound(result) and result.run.exit_status == 0), max_score=1)
    outcomes = report.outcomes if report is not None and _is_sound(result) else {}
    if mode is Mode.NAMED_TESTS:
        passed = sum(outcomes.get(test) in PASSED for test in scored_tests)
        return Score(score=passed, max_score=len(scored_tests))
    if report is None:
        return Score(score=0, max_score=1)
    counted = [test for test in report.collected if report.outcomes.get(test) != "skipped"]
    passed = sum(outcomes.get(test) in PASSED | {"xfailed"} for test in counted)
    return Score(score=passed, max_score=len(counted) + len(report.collection_errors))


def _is_sound(result: EntrypointResult) -> bool:
    return result.completed and not (result.report is not None and result.report.tampering)


def _order(outcome: str) -> int:
    return ("passed", "failed", "error", "skipped", "xfailed", "xpassed").index(outcome)
