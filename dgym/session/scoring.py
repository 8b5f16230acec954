"""From the agent's changes to the result of the episode."""

import asyncio
from collections.abc import Sequence

import msgspec

from dgym.api import DebugTask
from dgym.sandbox import Sandbox
from dgym.session.changes import ChangeSet
from dgym.session.preparation import Baseline, solution_paths
from dgym.session.verification import OpenUntouched, SuiteCache, Verdict, VerificationPlan, verify
from dgym.wire import EndReason, Result, Score
from dgym.workspace.patches import FileVersion

MAXIMUM_NOTES = 200


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an episode when it ended, and the reason of its end.

    ``doubted``: an ``eval`` in it ended as one does whose tests cannot run.
    """

    reason: EndReason
    steps: int
    rewrites: int
    seconds: float
    doubted: bool = False


async def score(
    pristine: Sandbox,
    task: DebugTask,
    baseline: Baseline,
    changes: ChangeSet,
    ending: Ending,
    suite_cache: SuiteCache | None = None,
    open_untouched: OpenUntouched | None = None,
) -> Result:
    """Score ``changes`` in ``pristine``, which is used up, and write the result of the episode; see ``verify``."""
    if changes.unscorable:
        return await asyncio.to_thread(
            unscored, ending.reason, f"nothing was scored: {changes.unscorable}", changes, ending
        )
    plan = verification_plan(task, baseline, changes, suite_cache)
    plan = msgspec.structs.replace(plan, doubted=ending.doubted)
    verdict = await verify(pristine, plan, open_untouched)
    return await asyncio.to_thread(result, verdict, changes, ending)


def verification_plan(
    task: DebugTask, baseline: Baseline, changes: ChangeSet, suite_cache: SuiteCache | None
) -> VerificationPlan:
    """The plan by which the verifier scores ``changes``."""
    spec = task.spec
    return VerificationPlan(
        entrypoint=spec.entrypoint,
        changed=changes.new_versions,
        timeout_seconds=float(spec.entrypoint_timeout_seconds),
        fail_to_pass=spec.scoring.fail_to_pass,
        pass_to_pass=spec.scoring.pass_to_pass,
        parser=spec.scoring.parser,
        hidden_files={file.path: FileVersion(file.data(), file.mode) for file in spec.scoring.hidden_files},
        test_patch=spec.scoring.test_patch,
        build_commands=spec.build_commands,
        protected=baseline.policy.read_only,
        cache=suite_cache,
        solution_paths=solution_paths(task),
    )


def unscored(reason: EndReason, message: str, changes: ChangeSet, ending: Ending) -> Result:
    """The result of an episode that cannot be scored for a reason that is the agent's doing."""
    verdict = Verdict(score=Score(score=0, max_score=0), message=message)
    return result(verdict, changes, msgspec.structs.replace(ending, reason=reason))


def result(verdict: Verdict, changes: ChangeSet, ending: Ending) -> Result:
    """The result; its reason is Resolved whenever everything that counts passed, else that of ``ending``.

    Encoding a large patch takes seconds: call it in a thread.
    """
    notes = [f"not carried to the verifier: {refusal.path} ({refusal.why})" for refusal in changes.refused]
    return Result(
        resolved=verdict.resolved,
        score=verdict.score.score,
        max_score=verdict.score.max_score,
        steps=ending.steps,
        rewrites=ending.rewrites,
        message=verdict.message,
        reason=EndReason.RESOLVED if verdict.resolved else ending.reason,
        notes=_shortened([*verdict.notes, *notes]),
        tests=verdict.tests,
        duration_seconds=round(ending.seconds, 3),
        patch=changes.patch.decode("utf-8", "surrogateescape"),
    )


def _shortened(notes: Sequence[str]) -> tuple[str, ...]:
    """Not more notes than a person reads: an agent chooses how many files are refused."""
    if len(notes) <= MAXIMUM_NOTES:
        return tuple(notes)
    return (*notes[: MAXIMUM_NOTES - 1], f"and {len(notes) - MAXIMUM_NOTES + 1:,} more notes")
