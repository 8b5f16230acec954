"""Score an agent's changes on a pristine copy of the repository, which the agent cannot access.

The order is important. Commands that run the agent's code come before the protected files are restored, and nothing
runs between restoring them and the tests.
"""

import asyncio
import logging
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from dgym.api import DebugTaskSpec
from dgym.errors import PatchError, SandboxLost, SandboxStartFailed, SetupFailed, VerifierFailed
from dgym.sandbox import EntrypointResult, ManifestEntry, Mode, RunResult, Sandbox, choose_mode, run_entrypoint
from dgym.session.scoring._integrity import Signs, review
from dgym.session.scoring._protection import (
    Protection,
    SavedFiles,
    SavedOverlay,
    WorkspaceCopy,
    apply_test_patch,
    differing_files,
    differing_versions,
    files_of_shell_line,
    protect,
    read_versions,
    select_changes,
    why_dropped,
    write_versions,
)
from dgym.session.scoring._score import (
    ALREADY_PASSES,
    ExpectedTests,
    SuiteCache,
    counted_tests,
    environment_failure,
    evaluation_script,
    expected_tests,
    grade,
    is_doubtful,
    list_paths,
    named_tests,
    nothing_ran,
    score_run,
)
from dgym.wire import IntegritySign, Result
from dgym.workspace import ancestors
from dgym.workspace.patches import FileVersion, patched_paths

_log = logging.getLogger(__name__)
_TAIL_LINES = 20
_IN_MEMORY_BYTES = 8 * 1024**2
_BUILD_SECONDS = 1800.0
_DEPENDENCY_FILES = re.compile(r"(?:pyproject\.toml|setup\.(?:py|cfg)|Pipfile|[\w.-]*requirements[\w.-]*\.(?:txt|in))")

OpenUntouched = Callable[[], Awaitable[Sandbox]]
"""Opens another verifier, which has the untouched repository after the task's setup."""


def _nothing_protected(_path: str) -> bool:
    return False


class ScoringPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task and the agent's changes, for ``score_changes``.

    Attributes:
        spec: The task. Its source and setup are not used.
        changed: The agent's changes after the policy was applied. None for a deleted file.
        protected: Whether the task's own policy protects a path. Such files are restored after ``buildCommands``.
        cache: Caches the suite of the untouched repository. None: it is determined each time.
        solution_paths: The paths that the task's own solution changes, including modules that do not exist yet.
        doubted: Whether to run the untouched repository before the changes, unless its tests are known to run.
    """

    spec: DebugTaskSpec
    changed: Mapping[str, FileVersion | None] = {}
    protected: Callable[[str], bool] = _nothing_protected
    cache: SuiteCache | None = None
    solution_paths: tuple[str, ...] = ()
    doubted: bool = False

    @property
    def timeout_seconds(self) -> float:
        """Limit of one run of the tests."""
        return float(self.spec.entrypoint_timeout_seconds)

    @property
    def mode(self) -> Mode:
        """How the task is scored."""
        if self.spec.scoring.evaluation is not None:
            return Mode.EVALUATION
        return choose_mode(self.spec.entrypoint, self.named, self.spec.scoring.parser)

    @property
    def named(self) -> tuple[str, ...]:
        """The ids of the tests that the task names."""
        scoring = self.spec.scoring
        if scoring.evaluation is not None:
            return counted_tests(scoring.evaluation)
        return scoring.fail_to_pass + scoring.pass_to_pass

    @property
    def hidden_files(self) -> dict[str, FileVersion | None]:
        """The task's hidden files by path."""
        return {file.path: FileVersion(file.data(), file.mode) for file in self.spec.scoring.hidden_files}

    @property
    def written_paths(self) -> list[str]:
        """The paths of the hidden files and of the test patch.

        Raises:
            VerifierFailed: The patch cannot be parsed.
        """
        patch = self.spec.scoring.test_patch
        try:
            hidden = [file.path for file in self.spec.scoring.hidden_files]
            return [*hidden, *(patched_paths(patch) if patch else ())]
        except PatchError as error:
            raise VerifierFailed(f"scoring.testPatch cannot be read: {error}") from None

    def score(self, run: EntrypointResult, expected: ExpectedTests) -> Result:
        """The result of one run. ``expected`` has the named tests or the suite."""
        if self.spec.scoring.evaluation is not None:
            return grade(self.spec.scoring.evaluation, run, self.timeout_seconds)
        return score_run(self.mode, run, expected, self.timeout_seconds)


async def score_changes(verifier: Sandbox, plan: ScoringPlan, open_untouched: OpenUntouched | None = None) -> Result:
    """Apply the plan's changes to the pristine copy in ``verifier`` and score them.

    The agent's sandbox must have terminated. ``verifier`` has the repository after the task's setup and cannot be used
    again. If no test ran, the untouched repository is run in a sandbox of ``open_untouched``, where the agent's code
    has never run.

    Raises:
        SetupFailed: The environment cannot run the tests, independent of the agent.
        VerifierFailed: Scoring could not run for reasons that the agent did not cause.
    """
    try:
        scorer = _Scorer(verifier, plan)
        result = await scorer.run()
        known = plan.cache is not None and plan.cache.is_set("passes")
        if known or scorer.untouched_passes or (result.resolved and not plan.changed):
            message = f"{result.message}; {ALREADY_PASSES}"
            result = msgspec.structs.replace(result, message=message, notes=(*result.notes, ALREADY_PASSES))
        if scorer.doubtful and open_untouched is not None:
            result = await _try_untouched(result, plan, open_untouched)
        return result
    except (SandboxLost, OSError) as error:
        raise VerifierFailed(f"the verifier failed: {error}") from error


async def _try_untouched(result: Result, plan: ScoringPlan, open_untouched: OpenUntouched) -> Result:
    """Return ``result`` if the tests of the untouched repository run.

    Raises:
        SetupFailed: The environment cannot run them.
    """
    if _is_known_to_run(plan):
        return result
    try:
        sandbox = await open_untouched()
    except (SandboxLost, SandboxStartFailed):
        note = "no test ran, and a second verifier for the untouched repository was not available"
        return msgspec.structs.replace(result, notes=(*result.notes, note))
    try:
        await _Scorer(sandbox, plan).try_untouched()
    finally:
        await sandbox.stop()
    return result


def _is_known_to_run(plan: ScoringPlan) -> bool:
    """Whether the tests of the untouched repository ran before. Failures are not cached, since they can be repaired."""
    return plan.cache is not None and plan.cache.is_set("runs")


async def run_version(verifier: Sandbox, plan: ScoringPlan) -> EntrypointResult:
    """Run the entrypoint over the plan's changes, which are trusted, as scoring does but without a result.

    Raises:
        SetupFailed: The plan has no changes, and the environment cannot run the tests.
        VerifierFailed: A build command failed, or scoring could not run.
    """
    try:
        return await _Scorer(verifier, plan).run_trusted()
    except (SandboxLost, OSError, _AgentError) as error:
        raise VerifierFailed(str(error)) from error


async def check_evaluation(sandbox: Sandbox, plan: ScoringPlan, result: EntrypointResult) -> None:
    """Check the run of the entrypoint in the agent's ``sandbox`` before the agent's first step.

    Hidden files and the test patch are not there yet.

    Raises:
        SetupFailed: The environment cannot run the tests.
    """
    if not _is_known_to_run(plan):
        await _Scorer(sandbox, plan).check_environment(result, tests_follow=bool(plan.written_paths))


class _AgentError(Exception):
    """The agent's changes prevent the tests from running."""


class _Scorer:
    def __init__(self, verifier: Sandbox, plan: ScoringPlan) -> None:
        self._verifier = verifier
        self._plan = plan
        self._notes: list[str] = []
        self._signs = Signs()
        self._reached = False
        """Whether code of the agent has run in the verifier."""
        self.doubtful = False
        """Whether no test ran, for a reason that the environment may have caused."""
        self.untouched_passes = False
        """Whether everything that counts is known to pass on the untouched repository."""

    async def try_untouched(self) -> None:
        """Run the tests of the untouched repository. Raises SetupFailed if the environment cannot run them."""
        try:
            await self._build()
        except _AgentError:
            return  # The bug may break the build of the repository, which is not a failure of the environment.
        await self._write_tests()
        await self.check_environment(await self._run_entrypoint())
        if self._plan.cache is not None:
            self._plan.cache.set("runs", holds=True)

    async def run_trusted(self) -> EntrypointResult:
        """Run the entrypoint over the plan's changes, without watching for tampering."""
        await write_versions(self._verifier, self._plan.changed)
        await self._build()
        await self._write_tests()
        result = await self._run_entrypoint()
        if not self._plan.changed:
            await self.check_environment(result)
        return result

    async def check_environment(self, untouched: EntrypointResult, *, tests_follow: bool = False) -> None:
        """Check a run of the untouched repository.

        Raises:
            SetupFailed: The environment cannot run the tests.
        """
        if not is_doubtful(self._plan.mode, untouched):
            return
        manifest = await self._verifier.manifest()
        written = self._plan.written_paths
        protection = protect(manifest, self._plan.named, written)
        named = [path for path in manifest if _DEPENDENCY_FILES.fullmatch(path)]
        versions = await read_versions(self._verifier, manifest, named)
        failure = environment_failure(
            self._plan.mode,
            self._plan.spec.entrypoint,
            untouched,
            workspace=self._verifier.workspace,
            paths={*manifest, *self._plan.solution_paths, *written},
            is_fixed=lambda path: protection.why_refused(path) is not None or why_dropped(path) is not None,
            declared="\n".join(version.data.decode("utf-8", "replace") for version in versions.values()),
            tests_follow=tests_follow,
        )
        if failure is not None:
            raise SetupFailed(failure)

    async def run(self) -> Result:
        tried = self._plan.doubted and self._plan.mode is not Mode.WHOLE_SUITE and not _is_known_to_run(self._plan)
        if tried:
            copy = await WorkspaceCopy.save(self._verifier)
            await self.try_untouched()
            await copy.restore()
        result = await self._score()
        self.doubtful = self.doubtful and not tried
        return result

    async def _score(self) -> Result:
        spec = self._plan.spec
        expected = await self._expected()
        self.untouched_passes = expected.all_pass
        pristine = await self._verifier.manifest()
        named = files_of_shell_line(spec.entrypoint, pristine)
        if spec.scoring.evaluation is not None:
            named += files_of_shell_line(spec.scoring.evaluation.script, pristine)
        protection = protect(pristine, expected.outcomes, [*self._plan.written_paths, *named])
        pyproject = await read_versions(self._verifier, pristine, ["pyproject.toml"])
        original = pyproject["pyproject.toml"].data if pyproject else None
        try:
            changed, refused = await asyncio.to_thread(select_changes, self._plan.changed, protection, original)
        except Exception as error:
            # The agent wrote this input, so the agent caused the failure. It is also a bug of dgym, so it is logged.
            _log.exception("the changes cannot be scored")
            return nothing_ran(self._plan.mode, expected, f"the changes cannot be scored ({type(error).__name__})")
        self._notes.extend(f"not scored: {path} ({why})" for path, why in sorted(refused.items()))
        self._signs.add_refused(refused, protection)
        await self._review(pristine, changed)
        try:
            result = await self._run_changed(expected, protection, changed)
        except _AgentError as failure:
            result = nothing_ran(self._plan.mode, expected, str(failure))
        except (SandboxLost, OSError) as death:
            if not self._reached:
                raise
            why = f"the verifier failed once the agent's code had run in it ({death})"
            result = nothing_ran(self._plan.mode, expected, why)
        return msgspec.structs.replace(result, notes=(*result.notes, *self._notes), integrity=self._signs.label)

    async def _review(self, pristine: Mapping[str, ManifestEntry], changed: Mapping[str, FileVersion | None]) -> None:
        """Mark the patch. The verifier still has the untouched files."""
        before = await read_versions(self._verifier, pristine, sorted(changed))
        changes = {path: (before.get(path), after) for path, after in changed.items()}
        by_status = self._plan.mode in (Mode.EXIT_STATUS, Mode.EVALUATION)
        builds = bool(self._plan.spec.build_commands)
        try:
            marks = await asyncio.to_thread(review, changes, by_status=by_status, builds=builds)
        except Exception as error:
            _log.exception("the patch cannot be reviewed")
            self._signs.add(IntegritySign.PATCH_MARKED, [f"the patch cannot be reviewed ({type(error).__name__})"])
        else:
            self._signs.add_seen(marks)

    # Run of the untouched repository

    async def _expected(self) -> ExpectedTests:
        plan = self._plan
        if plan.mode in (Mode.NAMED_TESTS, Mode.EVALUATION):
            return named_tests(plan.named)
        if plan.mode is Mode.EXIT_STATUS:
            return ExpectedTests()
        known = plan.cache.get() if plan.cache is not None else None
        if known is None:
            known = await self._find_expected()
            if plan.cache is not None and known.outcomes:
                plan.cache.put(known)
        return known

    async def _find_expected(self) -> ExpectedTests:
        copy = await WorkspaceCopy.save(self._verifier)
        await self._write_tests()
        run = await self._run_entrypoint()
        marks = None if run.completed else await self._run_entrypoint(setup_only=True)
        await self.check_environment(run)
        await copy.restore()
        return expected_tests(run, marks)

    # Run of the agent's version

    async def _run_changed(
        self, expected: ExpectedTests, protection: Protection, changed: Mapping[str, FileVersion | None]
    ) -> Result:
        self._reached = bool(changed)
        if self._plan.spec.build_commands:
            kept = await self._write_and_build(protection, changed)
            await self._check_tests(kept, await self._write_tests())
        else:
            await write_versions(self._verifier, changed)
            await self._write_tests()
        try:
            run = await self._run_entrypoint(changed=changed)
        except (SandboxLost, OSError) as death:
            raise _AgentError(f"the verifier died while the tests ran ({death})") from death
        self.doubtful = is_doubtful(self._plan.mode, run) and self._plan.mode is not Mode.WHOLE_SUITE
        if self.doubtful and not changed:
            await self.check_environment(run)
            self.doubtful = False
        self._signs.add_report(run.report)
        try:
            return self._plan.score(run, expected)
        except Exception as error:
            _log.exception("the report of the tests cannot be scored")
            raise _AgentError(f"the report of the tests cannot be scored ({type(error).__name__})") from error

    async def _write_and_build(
        self, protection: Protection, changed: Mapping[str, FileVersion | None]
    ) -> Mapping[str, ManifestEntry]:
        """Write the changes, build, and restore the protected files. Return the protected files."""
        before = await self._verifier.manifest()
        kept = {
            path: entry
            for path, entry in before.items()
            if entry.type in ("file", "symlink") and (protection.is_restored(path) or self._plan.protected(path))
        }
        with (
            tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as archive,
            tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as overlay_archive,
        ):
            saved = await SavedFiles.save(self._verifier, kept, archive)
            overlay = await SavedOverlay.save(self._verifier, overlay_archive)
            await write_versions(self._verifier, changed)
            await self._build()
            await self._end_build()
            planted = await self._restore_overlay(overlay, protection)
            after = await self._manifest()
            unwanted = [path for path in after if path not in before and protection.why_dropped(path) is not None]
            await self._verifier.remove(unwanted)
            restored = await saved.restore(after)
        if restored:
            self._notes.append(f"restored after the build commands: {list_paths(restored)}")
            self._signs.add(IntegritySign.TESTS_CHANGED, restored)
        if unwanted:
            self._notes.append(f"removed after the build commands: {list_paths(sorted(unwanted))}")
            self._signs.add_new(unwanted, protection)
        if planted:
            self._notes.append(f"removed from the environment after the build commands: {list_paths(planted)}")
            self._signs.add(IntegritySign.HOOK_PLANTED, planted)
        return kept

    async def _restore_overlay(self, overlay: SavedOverlay, protection: Protection) -> list[str]:
        try:
            return await overlay.restore(protection)
        except OSError as error:
            raise _AgentError(f"after the build commands {error.strerror or error}") from error

    async def _check_tests(self, kept: Mapping[str, ManifestEntry], written: Mapping[str, FileVersion | None]) -> None:
        """Read the restored files again: a process that escaped may have changed them since."""
        manifest = await self._manifest()
        others = {path: entry for path, entry in kept.items() if written.keys().isdisjoint([path, *ancestors(path)])}
        differing = differing_files(others, manifest)
        differing += await differing_versions(self._verifier, manifest, written)
        if differing:
            self._signs.add(IntegritySign.TESTS_CHANGED, differing)
            raise _AgentError(f"tampered: changed after they were restored: {list_paths(sorted(differing))}")

    async def _end_build(self) -> None:
        """Kill processes that the build commands left running: they could change the restored tests."""
        try:
            count = await self._verifier.end_processes()
        except OSError as error:
            raise _AgentError(f"after the build commands {error.strerror}") from error
        if count:
            killed = f"killed after the build commands: {count} {'process' if count == 1 else 'processes'}"
            self._notes.append(killed)
            self._signs.add(IntegritySign.PROCESSES_KILLED, [killed])

    async def _manifest(self) -> dict[str, ManifestEntry]:
        try:
            return await self._verifier.manifest()
        except OSError as error:
            raise _AgentError(f"the files that the build commands left cannot be listed: {error.strerror}") from error

    async def _build(self) -> None:
        for command in self._plan.spec.build_commands:
            try:
                result = await self._verifier.run(command, timeout_seconds=_BUILD_SECONDS)
            except (SandboxLost, OSError) as death:
                raise _AgentError(f"the verifier died while the build command {command!r} ran ({death})") from death
            if result.ended_by != "exit" or result.exit_status != 0:
                raise _AgentError(f"the build command {command!r} {_failure(result)}")

    async def _write_tests(self) -> Mapping[str, FileVersion | None]:
        """Write the hidden files and apply the test patch. Return the versions written."""
        written, patch = self._plan.hidden_files, self._plan.spec.scoring.test_patch
        await write_versions(self._verifier, written)
        if patch:
            written.update(await apply_test_patch(self._verifier, patch))
        return written

    async def _run_entrypoint(
        self, *, changed: Mapping[str, FileVersion | None] | None = None, setup_only: bool = False
    ) -> EntrypointResult:
        evaluation = self._plan.spec.scoring.evaluation
        result = await run_entrypoint(
            self._verifier,
            self._plan.spec.entrypoint,
            timeout_seconds=self._plan.timeout_seconds,
            changed=changed,
            setup_only=setup_only,
            evaluation=None if evaluation is None else evaluation_script(evaluation),
        )
        if result.report is None and result.run.ended_by != "timeout":
            raise VerifierFailed(f"the entrypoint was not started: {_tail(result.run)}")
        return result


def _failure(result: RunResult) -> str:
    if result.ended_by == "timeout":
        return f"did not end within {_BUILD_SECONDS:g} s"
    return f"failed ({result.ended_by}, status {result.exit_status}): {_tail(result)}"


def _tail(result: RunResult) -> str:
    return "\n".join(result.text.strip().splitlines()[-_TAIL_LINES:])
