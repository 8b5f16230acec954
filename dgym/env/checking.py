"""Check a task by running its untouched repository and its solution, each more than once, in fresh sandboxes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.env.local import Opened, Opening, open_source, suite_cache
from dgym.errors import ManifestError, SetupFailed, VerifierFailed
from dgym.sandbox import EntrypointResult
from dgym.session import ChangeSet, prepare, solution_versions, verification_plan
from dgym.session.verification import Assessment, VerificationPlan, assess, remember_passing, run_version
from dgym.workspace.patches import FileVersion

Versions = Mapping[str, FileVersion | None]


async def check_task(
    task: DebugTask, opening: Opening, *, repeats: int = 2, progress: Callable[[str], None] = lambda _text: None
) -> Assessment:
    """Run the untouched repository and, where there is one, the solution ``repeats`` times each.

    What is learned of a task that passes already is remembered for its results. A setup that fails, an environment that
    cannot run the tests and a solution that does not apply are problems of the assessment.

    Raises:
        InfrastructureError: A sandbox, an image or the source could not be had.
    """
    try:
        opened = await opening.open(task)
        source = await open_source(task)
        check = _Check(task, opened, source)
        before = []
        for number in range(1, repeats + 1):
            progress(f"{task.metadata.name}: running the untouched repository ({number} of {repeats})")
            before.append(await check.run(solved=False))
        after = []
        for number in range(1, repeats + 1 if task.spec.solution else 1):
            progress(f"{task.metadata.name}: running the solution ({number} of {repeats})")
            after.append(await check.run(solved=True))
    except (ManifestError, SetupFailed, VerifierFailed) as error:
        return Assessment(task=task.metadata.name, problems=(str(error),))
    assessment = assess(task.metadata.name, check.plan, before, after)
    remember_passing(check.plan, passes=assessment.passes)
    return assessment


class _Check:
    def __init__(self, task: DebugTask, opened: Opened, source: Path | None) -> None:
        self._task = task
        self._opened = opened
        self._source = source
        self.plan = VerificationPlan(entrypoint=task.spec.entrypoint, changed={})

    async def run(self, *, solved: bool) -> EntrypointResult:
        """One run in a sandbox of its own."""
        verifier = await self._opened.provider.verifier()
        try:
            baseline = await prepare(verifier, self._task, self._source)
            cache = suite_cache(self._task, self._source, self._opened.programs)
            self.plan = verification_plan(self._task, baseline, ChangeSet(changes={}), cache)
            changed: Versions = await solution_versions(verifier, self._task) if solved else {}
            return await run_version(verifier, msgspec.structs.replace(self.plan, changed=changed))
        finally:
            await verifier.stop()
