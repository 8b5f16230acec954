"""Score an agent's changes on a pristine copy of the repository that no agent ever touched.

The order matters: commands that run the agent's code come before the files that decide about the tests are put back,
and nothing runs between those files and the tests.
"""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from dgym.errors import SandboxLost, VerifierFailed
from dgym.sandbox import RunResult, Sandbox
from dgym.sandbox.entrypoint import EntrypointResult, run_entrypoint
from dgym.sandbox.scoring_mode import Mode, choose_mode
from dgym.session.scoring import (
    ExpectedTests,
    Verdict,
    expected_tests,
    judge,
    list_paths,
    named_tests,
    nothing_ran,
)
from dgym.session.verification_entrypoint import files_of_shell_line
from dgym.session.verification_files import SavedFiles, WorkspaceCopy, apply_test_patch, read_versions, write_versions
from dgym.session.verification_protection import Protection, protect, select_changes
from dgym.workspace.apply import patched_paths
from dgym.workspace.errors import PatchError
from dgym.workspace.files import FileVersion

__all__ = ["ExpectedTestsCache", "Mode", "Verdict", "VerificationPlan", "verify"]

_TAIL_LINES = 20
_IN_MEMORY_BYTES = 8 * 1024**2


def _nothing_protected(_path: str) -> bool:
    return False


class VerificationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` needs to know of a task and of what the agent did.

    ``changed``: what the agent changed, policy applied; None: deleted. ``protected``: whether the task's own policy
    protects a path; such files are put back after ``build_commands``. ``cache`` and ``digest``: where the suite of the
    untouched repository is remembered, and of which task; without either it is found out each time.
    """

    entrypoint: str
    changed: Mapping[str, FileVersion | None]
    timeout_seconds: float = 300.0
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    parser: str = "auto"
    hidden_files: Mapping[str, FileVersion] = {}
    test_patch: str | None = None
    build_commands: tuple[str, ...] = ()
    build_timeout_seconds: float = 1800.0
    protected: Callable[[str], bool] = _nothing_protected
    cache: "ExpectedTestsCache | None" = None
    digest: str = ""

    @property
    def mode(self) -> Mode:
        """How the task counts."""
        return choose_mode(self.entrypoint, self.fail_to_pass + self.pass_to_pass, self.parser)


class ExpectedTestsCache:
    """Remembers the suites of untouched repositories in a directory, one small file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, digest: str) -> ExpectedTests | None:
        """The suite of the task with this digest, if it is known and readable."""
        try:
            return msgspec.json.decode(self._path(digest).read_bytes(), type=ExpectedTests)
        except (OSError, msgspec.DecodeError):
            return None

    def put(self, digest: str, expected: ExpectedTests) -> None:
        """Remember a suite; a full or read-only disk only costs time later."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                file.write(msgspec.json.encode(expected))
            Path(file.name).replace(self._path(digest))
        except OSError:
            return

    def _path(self, digest: str) -> Path:
        return self._directory / (hashlib.sha256(f"1:{digest}".encode()).hexdigest() + ".json")


async def verify(verifier: Sandbox, plan: VerificationPlan) -> Verdict:
    """Apply the plan's changes to the pristine copy in ``verifier`` and score them.

    The agent's sandbox must be dead. ``verifier`` holds the repository after the task's setup; it is used up.

    Raises:
        VerifierFailed: Scoring could not run, for reasons that are not the agent's.
    """
    try:
        return await _Verification(verifier, plan).run()
    except (SandboxLost, OSError) as error:
        raise VerifierFailed(f"the verifier failed: {error}") from error


class _AgentsDoing(Exception):
    """The agent's changes keep the tests from being run at all."""


class _Verification:
    def __init__(self, verifier: Sandbox, plan: VerificationPlan) -> None:
        self._verifier = verifier
        self._plan = plan
        self._notes: list[str] = []

    async def run(self) -> Verdict:
        expected = await self._expected()
        pristine = await self._verifier.manifest()
        named = files_of_shell_line(self._plan.entrypoint, pristine)
        protection = protect(pristine, expected.outcomes, [*self._written_paths(), *named])
        pyproject = await read_versions(self._verifier, pristine, ["pyproject.toml"])
        original = pyproject["pyproject.toml"].data if pyproject else None
        changed, refused = select_changes(self._plan.changed, protection, original)
        self._notes.extend(f"not scored: {path} ({why})" for path, why in sorted(refused.items()))
        try:
            verdict = await self._run_changed(expected, protection, changed)
        except _AgentsDoing as failure:
            verdict = nothing_ran(self._plan.mode, expected, str(failure))
        return msgspec.structs.replace(verdict, notes=(*verdict.notes, *self._notes))

    def _written_paths(self) -> list[str]:
        patch = self._plan.test_patch
        try:
            return [*self._plan.hidden_files, *(patched_paths(patch) if patch else ())]
        except PatchError as error:
            raise VerifierFailed(f"scoring.testPatch cannot be read: {error}") from None

    # The untouched repository

    async def _expected(self) -> ExpectedTests:
        plan = self._plan
        if plan.mode is Mode.NAMED_TESTS:
            return named_tests(plan.fail_to_pass + plan.pass_to_pass)
        if plan.mode is Mode.EXIT_STATUS:
            return ExpectedTests()
        known = plan.cache.get(plan.digest) if plan.cache is not None and plan.digest else None
        if known is None:
            known = await self._find_expected()
            if plan.cache is not None and plan.digest and known.outcomes:
                plan.cache.put(plan.digest, known)
        return known

    async def _find_expected(self) -> ExpectedTests:
        copy = await WorkspaceCopy.save(self._verifier)
        await self._write_tests()
        run = await self._run_entrypoint()
        marks = None if run.completed else await self._run_entrypoint(setup_only=True)
        await copy.restore()
        return expected_tests(run, marks)

    # The agent's version

    async def _run_changed(
        self, expected: ExpectedTests, protection: Protection, changed: Mapping[str, FileVersion | None]
    ) -> Verdict:
        if self._plan.build_commands:
            await self._write_and_build(protection, changed)
        else:
            await write_versions(self._verifier, changed)
        await self._write_tests()
        try:
            result = await self._run_entrypoint(changed=changed)
        except SandboxLost as death:
            raise _AgentsDoing(f"the tests took the verifier down ({death})") from death
        return judge(self._plan.mode, result, expected, self._plan.timeout_seconds)

    async def _write_and_build(self, protection: Protection, changed: Mapping[str, FileVersion | None]) -> None:
        before = await self._verifier.manifest()
        kept = {
            path: entry
            for path, entry in before.items()
            if entry.type != "other" and (protection.holds(path) or self._plan.protected(path))
        }
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as archive:
            saved = await SavedFiles.save(self._verifier, kept, archive)
            await write_versions(self._verifier, changed)
            await self._build()
            after = await self._verifier.manifest()
            unwanted = [path for path in after if path not in before and protection.why_dropped(path) is not None]
            await self._verifier.remove(unwanted)
            restored = await saved.restore(after)
        if restored:
            self._notes.append(f"put back after the build commands: {list_paths(restored)}")
        if unwanted:
            self._notes.append(f"removed after the build commands: {list_paths(sorted(unwanted))}")

    async def _build(self) -> None:
        timeout = self._plan.build_timeout_seconds
        for command in self._plan.build_commands:
            try:
                result = await self._verifier.run(command, timeout_seconds=timeout)
            except SandboxLost as death:
                raise _AgentsDoing(f"the build command {command!r} took the verifier down ({death})") from death
            if result.ended_by != "exit" or result.exit_status != 0:
                raise _AgentsDoing(f"the build command {command!r} {_failure(result, timeout)}")

    async def _write_tests(self) -> None:
        await write_versions(self._verifier, self._plan.hidden_files)
        if self._plan.test_patch:
            await apply_test_patch(self._verifier, self._plan.test_patch)

    async def _run_entrypoint(
        self, *, changed: Mapping[str, FileVersion | None] | None = None, setup_only: bool = False
    ) -> EntrypointResult:
        result = await run_entrypoint(
            self._verifier,
            self._plan.entrypoint,
            timeout_seconds=self._plan.timeout_seconds,
            changed=changed,
            setup_only=setup_only,
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
