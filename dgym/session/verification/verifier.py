"""Score an agent's changes on a pristine copy of the repository that no agent ever touched.

The order matters: commands that run the agent's code come before the files that decide about the tests are put back,
and nothing runs between those files and the tests.
"""

import asyncio
import logging
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from dgym.api import Evaluation
from dgym.errors import PatchError, SandboxLost, SandboxStartFailed, SetupFailed, VerifierFailed
from dgym.sandbox import EntrypointResult, ManifestEntry, Mode, RunResult, Sandbox, choose_mode, run_entrypoint
from dgym.session.verification.environment import environment_failure, is_doubtful
from dgym.session.verification.evaluation import counted_tests, evaluation_script, grade
from dgym.session.verification.files import (
    SavedFiles,
    SavedOverlay,
    WorkspaceCopy,
    apply_test_patch,
    differing_files,
    differing_versions,
    read_versions,
    write_versions,
)
from dgym.session.verification.integrity import Signs
from dgym.session.verification.protection import Protection, files_of_shell_line, protect, select_changes, why_dropped
from dgym.session.verification.review import review
from dgym.session.verification.suite import ExpectedTests, SuiteCache, expected_tests, named_tests
from dgym.session.verification.verdict import ALREADY_PASSES, Verdict, judge, list_paths, nothing_ran
from dgym.wire import IntegritySign
from dgym.workspace import ancestors
from dgym.workspace.patches import FileVersion, patched_paths

_log = logging.getLogger(__name__)
_TAIL_LINES = 20
_IN_MEMORY_BYTES = 8 * 1024**2
_DEPENDENCY_FILES = re.compile(r"(?:pyproject\.toml|setup\.(?:py|cfg)|Pipfile|[\w.-]*requirements[\w.-]*\.(?:txt|in))")

OpenUntouched = Callable[[], Awaitable[Sandbox]]
"""Opens one more verifier, which holds the untouched repository after the task's setup."""


def _nothing_protected(_path: str) -> bool:
    return False


class VerificationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task and the agent's changes, as ``verify`` needs them.

    Attributes:
        changed: The agent's changes, policy applied; None: deleted.
        protected: Whether the task's own policy protects a path; such files are put back after ``build_commands``.
        cache: Where the suite of the untouched repository is remembered; without one it is determined each time.
        solution_paths: The paths that the task's own solution changes, modules that are still missing included.
        evaluation: A script whose text is read, in place of the entrypoint and the named tests.
        doubted: Whether the untouched repository is tried before the changes, unless its tests are known to run.
    """

    entrypoint: str
    changed: Mapping[str, FileVersion | None]
    timeout_seconds: float = 300.0
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    parser: str = "auto"
    evaluation: Evaluation | None = None
    hidden_files: Mapping[str, FileVersion] = {}
    test_patch: str | None = None
    build_commands: tuple[str, ...] = ()
    build_timeout_seconds: float = 1800.0
    protected: Callable[[str], bool] = _nothing_protected
    cache: SuiteCache | None = None
    solution_paths: tuple[str, ...] = ()
    doubted: bool = False

    @property
    def mode(self) -> Mode:
        """How the task counts."""
        if self.evaluation is not None:
            return Mode.EVALUATION
        return choose_mode(self.entrypoint, self.named, self.parser)

    @property
    def named(self) -> tuple[str, ...]:
        """The ids of the tests that the task names."""
        if self.evaluation is not None:
            return counted_tests(self.evaluation)
        return self.fail_to_pass + self.pass_to_pass

    @property
    def written_paths(self) -> list[str]:
        """The paths of the hidden files and of the test patch.

        Raises:
            VerifierFailed: The patch cannot be read.
        """
        try:
            return [*self.hidden_files, *(patched_paths(self.test_patch) if self.test_patch else ())]
        except PatchError as error:
            raise VerifierFailed(f"scoring.testPatch cannot be read: {error}") from None

    def judge(self, result: EntrypointResult, expected: ExpectedTests) -> Verdict:
        """The verdict on one run; ``expected`` are the named tests or the suite."""
        if self.evaluation is not None:
            return grade(self.evaluation, result, self.timeout_seconds)
        return judge(self.mode, result, expected, self.timeout_seconds)


async def verify(verifier: Sandbox, plan: VerificationPlan, open_untouched: OpenUntouched | None = None) -> Verdict:
    """Apply the plan's changes to the pristine copy in ``verifier`` and score them.

    The agent's sandbox must be dead. ``verifier`` holds the repository after the task's setup; it is used up. Where no
    test ran, the untouched repository is tried in a sandbox of ``open_untouched``, which no code of the agent reached.

    Raises:
        SetupFailed: The environment cannot run the tests, whatever the agent did.
        VerifierFailed: Scoring could not run, for reasons that are not the agent's.
    """
    try:
        verification = _Verification(verifier, plan)
        verdict = _warned(await verification.run(), plan)
        if verification.doubtful and open_untouched is not None:
            verdict = await _try_untouched(verdict, plan, open_untouched)
        return verdict
    except (SandboxLost, OSError) as error:
        raise VerifierFailed(f"the verifier failed: {error}") from error


def remember_passing(plan: VerificationPlan, *, passes: bool) -> None:
    """Remember whether everything that counts passes on the untouched repository, for the results of the task."""
    if plan.cache is not None:
        plan.cache.set("passes", holds=passes)


def _warned(verdict: Verdict, plan: VerificationPlan) -> Verdict:
    """The verdict with a warning where the untouched repository passes, as far as that is known."""
    known = plan.cache is not None and plan.cache.knows("passes")
    if not (known or verdict.untouched_passes or (verdict.resolved and not plan.changed)):
        return verdict
    message = f"{verdict.message}; {ALREADY_PASSES}"
    return msgspec.structs.replace(verdict, message=message, notes=(*verdict.notes, ALREADY_PASSES))


async def _try_untouched(verdict: Verdict, plan: VerificationPlan, open_untouched: OpenUntouched) -> Verdict:
    """The verdict, if the untouched repository's tests run; ``SetupFailed`` if the environment cannot run them."""
    if _is_known_to_run(plan):
        return verdict
    try:
        sandbox = await open_untouched()
    except (SandboxLost, SandboxStartFailed):
        note = "no test ran, and there was no second verifier to try the untouched repository in"
        return msgspec.structs.replace(verdict, notes=(*verdict.notes, note))
    try:
        await _Verification(sandbox, plan).try_untouched()
    finally:
        await sandbox.stop()
    return verdict


def _is_known_to_run(plan: VerificationPlan) -> bool:
    """Whether the tests of the untouched repository ran before. A failure is not remembered: it can be repaired."""
    return plan.cache is not None and plan.cache.knows("runs")


async def run_version(verifier: Sandbox, plan: VerificationPlan) -> EntrypointResult:
    """The run of the entrypoint over the plan's changes, which are trusted, as scoring makes it but without a verdict.

    Raises:
        SetupFailed: The plan has no changes, and the environment cannot run the tests.
        VerifierFailed: A build command failed, or scoring could not run.
    """
    try:
        return await _Verification(verifier, plan).run_trusted()
    except (SandboxLost, OSError, _AgentsDoing) as error:
        raise VerifierFailed(str(error)) from error


async def check_evaluation(sandbox: Sandbox, plan: VerificationPlan, result: EntrypointResult) -> None:
    """Check the run of the entrypoint in the agent's ``sandbox`` before the agent's first step.

    Hidden files and the test patch are not there yet.

    Raises:
        SetupFailed: The environment cannot run the tests.
    """
    if not _is_known_to_run(plan):
        await _Verification(sandbox, plan).check_environment(result, tests_follow=bool(plan.written_paths))


class _AgentsDoing(Exception):
    """The agent's changes keep the tests from being run at all."""


class _Verification:
    def __init__(self, verifier: Sandbox, plan: VerificationPlan) -> None:
        self._verifier = verifier
        self._plan = plan
        self._notes: list[str] = []
        self._signs = Signs()
        self._reached = False
        """Whether code of the agent has run in the verifier."""
        self.doubtful = False
        """Whether no test ran, for a reason that may be the environment's."""

    async def try_untouched(self) -> None:
        """Run the tests of the untouched repository; ``SetupFailed`` if the environment cannot run them."""
        try:
            await self._build()
        except _AgentsDoing:
            return  # A build that the repository's own code breaks is the bug.
        await self._write_tests()
        await self.check_environment(await self._run_entrypoint())
        if self._plan.cache is not None:
            self._plan.cache.set("runs", holds=True)

    async def run_trusted(self) -> EntrypointResult:
        """Run the entrypoint over the plan's changes, unwatched."""
        await write_versions(self._verifier, self._plan.changed)
        await self._build()
        await self._write_tests()
        result = await self._run_entrypoint()
        if not self._plan.changed:
            await self.check_environment(result)
        return result

    async def check_environment(self, untouched: EntrypointResult, *, tests_follow: bool = False) -> None:
        """``SetupFailed`` if the run of the untouched repository shows that the environment cannot run the tests."""
        if not is_doubtful(self._plan.mode, untouched):
            return
        manifest = await self._verifier.manifest()
        protection = protect(manifest, self._plan.named, self._plan.written_paths)
        named = [path for path in manifest if _DEPENDENCY_FILES.fullmatch(path)]
        versions = await read_versions(self._verifier, manifest, named)
        failure = environment_failure(
            self._plan.mode,
            self._plan.entrypoint,
            untouched,
            workspace=self._verifier.workspace,
            paths={*manifest, *self._plan.solution_paths, *self._plan.written_paths},
            is_fixed=lambda path: protection.why_refused(path) is not None or why_dropped(path) is not None,
            declared="\n".join(version.data.decode("utf-8", "replace") for version in versions.values()),
            tests_follow=tests_follow,
        )
        if failure is not None:
            raise SetupFailed(failure)

    async def run(self) -> Verdict:
        tried = self._plan.doubted and self._plan.mode is not Mode.WHOLE_SUITE and not _is_known_to_run(self._plan)
        if tried:
            copy = await WorkspaceCopy.save(self._verifier)
            await self.try_untouched()
            await copy.restore()
        verdict = await self._run_verdict()
        self.doubtful = self.doubtful and not tried
        return verdict

    async def _run_verdict(self) -> Verdict:
        expected = await self._expected()
        pristine = await self._verifier.manifest()
        named = files_of_shell_line(self._plan.entrypoint, pristine)
        if self._plan.evaluation is not None:
            named += files_of_shell_line(self._plan.evaluation.script, pristine)
        protection = protect(pristine, expected.outcomes, [*self._plan.written_paths, *named])
        pyproject = await read_versions(self._verifier, pristine, ["pyproject.toml"])
        original = pyproject["pyproject.toml"].data if pyproject else None
        try:
            changed, refused = await asyncio.to_thread(select_changes, self._plan.changed, protection, original)
        except Exception as error:
            # The agent wrote what is judged here, so it is the agent's doing, and a fault of ours that has to be found.
            _log.exception("the changes cannot be judged")
            verdict = nothing_ran(self._plan.mode, expected, f"the changes cannot be judged ({type(error).__name__})")
            return msgspec.structs.replace(verdict, untouched_passes=expected.all_pass)
        self._notes.extend(f"not scored: {path} ({why})" for path, why in sorted(refused.items()))
        self._signs.add_refused(refused, protection)
        await self._review(pristine, changed)
        try:
            verdict = await self._run_changed(expected, protection, changed)
        except _AgentsDoing as failure:
            verdict = nothing_ran(self._plan.mode, expected, str(failure))
        except (SandboxLost, OSError) as death:
            if not self._reached:
                raise
            why = f"the verifier failed once the agent's code had run in it ({death})"
            verdict = nothing_ran(self._plan.mode, expected, why)
        return msgspec.structs.replace(
            verdict,
            notes=(*verdict.notes, *self._notes),
            untouched_passes=expected.all_pass,
            seen=self._signs.seen,
        )

    async def _review(self, pristine: Mapping[str, ManifestEntry], changed: Mapping[str, FileVersion | None]) -> None:
        """Mark the patch, from what the agent changed and the untouched files that still stand here."""
        before = await read_versions(self._verifier, pristine, sorted(changed))
        changes = {path: (before.get(path), after) for path, after in changed.items()}
        by_status = self._plan.mode in (Mode.EXIT_STATUS, Mode.EVALUATION)
        builds = bool(self._plan.build_commands)
        try:
            marks = await asyncio.to_thread(review, changes, by_status=by_status, builds=builds)
        except Exception as error:
            _log.exception("the patch cannot be reviewed")
            self._signs.add(IntegritySign.PATCH_MARKED, [f"the patch cannot be reviewed ({type(error).__name__})"])
        else:
            self._signs.add_seen(marks)

    # The untouched repository

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

    # The agent's version

    async def _run_changed(
        self, expected: ExpectedTests, protection: Protection, changed: Mapping[str, FileVersion | None]
    ) -> Verdict:
        self._reached = bool(changed)
        if self._plan.build_commands:
            kept = await self._write_and_build(protection, changed)
            await self._check_tests(kept, await self._write_tests())
        else:
            await write_versions(self._verifier, changed)
            await self._write_tests()
        try:
            result = await self._run_entrypoint(changed=changed)
        except (SandboxLost, OSError) as death:
            raise _AgentsDoing(f"the tests took the verifier down ({death})") from death
        self.doubtful = is_doubtful(self._plan.mode, result) and self._plan.mode is not Mode.WHOLE_SUITE
        if self.doubtful and not changed:
            await self.check_environment(result)
            self.doubtful = False
        self._signs.add_report(result.report)
        try:
            return self._plan.judge(result, expected)
        except Exception as error:
            _log.exception("the report of the tests cannot be judged")
            raise _AgentsDoing(f"the report of the tests cannot be judged ({type(error).__name__})") from error

    async def _write_and_build(
        self, protection: Protection, changed: Mapping[str, FileVersion | None]
    ) -> Mapping[str, ManifestEntry]:
        """Write the changes and build; returns the protected files, which are then as they were before."""
        before = await self._verifier.manifest()
        kept = {
            path: entry
            for path, entry in before.items()
            if entry.type in ("file", "symlink") and (protection.holds(path) or self._plan.protected(path))
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
            self._notes.append(f"put back after the build commands: {list_paths(restored)}")
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
            raise _AgentsDoing(f"after the build commands {error.strerror or error}") from error

    async def _check_tests(self, kept: Mapping[str, ManifestEntry], written: Mapping[str, FileVersion | None]) -> None:
        """Read again what was put back after the build: a process that escaped may have changed it since."""
        manifest = await self._manifest()
        others = {path: entry for path, entry in kept.items() if written.keys().isdisjoint([path, *ancestors(path)])}
        differing = differing_files(others, manifest)
        differing += await differing_versions(self._verifier, manifest, written)
        if differing:
            self._signs.add(IntegritySign.TESTS_CHANGED, differing)
            raise _AgentsDoing(f"tampered: changed after they were put back: {list_paths(sorted(differing))}")

    async def _end_build(self) -> None:
        """Kill what the build commands left running: it could change the tests once they are put back."""
        try:
            count = await self._verifier.end_processes()
        except OSError as error:
            raise _AgentsDoing(f"after the build commands {error.strerror}") from error
        if count:
            killed = f"killed after the build commands: {count} {'process' if count == 1 else 'processes'}"
            self._notes.append(killed)
            self._signs.add(IntegritySign.PROCESSES_KILLED, [killed])

    async def _manifest(self) -> dict[str, ManifestEntry]:
        try:
            return await self._verifier.manifest()
        except OSError as error:
            raise _AgentsDoing(f"the files that the build commands left cannot be listed: {error.strerror}") from error

    async def _build(self) -> None:
        timeout = self._plan.build_timeout_seconds
        for command in self._plan.build_commands:
            try:
                result = await self._verifier.run(command, timeout_seconds=timeout)
            except (SandboxLost, OSError) as death:
                raise _AgentsDoing(f"the build command {command!r} took the verifier down ({death})") from death
            if result.ended_by != "exit" or result.exit_status != 0:
                raise _AgentsDoing(f"the build command {command!r} {_failure(result, timeout)}")

    async def _write_tests(self) -> Mapping[str, FileVersion | None]:
        """Write the hidden files and apply the test patch; returns the versions written."""
        written: dict[str, FileVersion | None] = dict(self._plan.hidden_files)
        await write_versions(self._verifier, written)
        if self._plan.test_patch:
            written.update(await apply_test_patch(self._verifier, self._plan.test_patch))
        return written

    async def _run_entrypoint(
        self, *, changed: Mapping[str, FileVersion | None] | None = None, setup_only: bool = False
    ) -> EntrypointResult:
        result = await run_entrypoint(
            self._verifier,
            self._plan.entrypoint,
            timeout_seconds=self._plan.timeout_seconds,
            changed=changed,
            setup_only=setup_only,
            evaluation=None if self._plan.evaluation is None else evaluation_script(self._plan.evaluation),
        )
        if result.report is None and result.run.ended_by != "timeout":
            raise VerifierFailed(f"the entrypoint was not started: {_tail(result.run)}")
        return result


def _failure(result: RunResult, timeout_seconds: float) -> str:
    if result.ended_by == "timeout":
        return f"did not end within {timeout_seconds:g} s"
    return f"failed ({result.ended_by}, status {result.exit_status}): {_tail(result)}"


def _tail(result: RunResult) -> str:
    return "\n".join(result.text.strip().splitlines()[-_TAIL_LINES:])
