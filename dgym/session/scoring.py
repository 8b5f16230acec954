"""From the agent's changes to the result of the episode.

A change set has both versions of each changed file, read from the sandboxes, and the changes refused.
"""

import asyncio
import contextlib
import hashlib
import stat
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from dgym.api import DebugTask
from dgym.sandbox import ManifestEntry, Sandbox
from dgym.session.preparation import Baseline, solution_paths
from dgym.session.verification import (
    OpenUntouched,
    SuiteCache,
    Verdict,
    VerificationPlan,
    label,
    shell_commands,
    suggests_doubt,
    verify,
)
from dgym.tracing import span
from dgym.wire import EndReason, Integrity, Result, Score, Step
from dgym.workspace import Changes, Refusal, compare, encode_path, refuse
from dgym.workspace.patches import FileVersion, write_patch
from dgym.workspace.sources import forget_members

MAXIMUM_BYTES = 6 * 1024**2
"""Of both versions of the changed files together: patch, result and answer are several copies of them in the memory of
a sidecar, which has 128 MiB."""
MAXIMUM_CHANGED_FILES = 25_000
MAXIMUM_PATH_BYTES = 8 * 1024**2
MAXIMUM_NOTES = 200


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's changes that may reach the verifier, and those that were refused.

    ``changes``: by path the file before and after; None where it did not or does not exist. ``unscorable``: why nothing
    can be scored, such as too many changes; ``changes`` is empty then.
    """

    changes: dict[str, tuple[FileVersion | None, FileVersion | None]]
    refused: Sequence[Refusal] = ()
    unscorable: str = ""

    @property
    def new_versions(self) -> dict[str, FileVersion | None]:
        """The files to write into the verifier's workspace; None: deleted."""
        return {path: new for path, (_, new) in self.changes.items()}

    @property
    def patch(self) -> bytes:
        """The changes as ``git apply`` takes them."""
        return write_patch(self.changes)


class Originals:
    """Files of the untouched repository, for its changes.

    They are read from the packed source where the setup has left them as they are, else from a verifier, whose start
    takes longer than all the rest of a patch.
    """

    def __init__(self, source: Path | None, verifier: Callable[[], Awaitable[Sandbox]]) -> None:
        self._source = source
        self._verifier = verifier
        self._places: dict[str, tuple[int, int]] = {}

    async def read(self, paths: Mapping[str, ManifestEntry]) -> dict[str, FileVersion]:
        """The file at each of ``paths``, as its entry describes it."""
        sizes = {path: entry.size for path, entry in paths.items() if entry.type == "file"}
        packed = {} if self._source is None else await asyncio.to_thread(self._read_packed, self._source, sizes)
        found: dict[str, FileVersion] = {}
        for path, entry in paths.items():
            data = packed.get(path)
            if data is not None and hashlib.sha256(data).hexdigest() == entry.sha256:
                found[path] = FileVersion(data, stat.S_IMODE(entry.mode))
            elif (version := await _version(await self._verifier(), path, entry, MAXIMUM_BYTES)) is not None:
                found[path] = version
        return found

    def _read_packed(self, source: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
        packed = {}
        with contextlib.suppress(OSError, tarfile.TarError), source.open("rb") as file:
            self._find(file, {path for path in sizes if path not in self._places})
            for path, size in sizes.items():
                offset, length = self._places.get(path, (0, -1))
                if length == size:
                    file.seek(offset)
                    packed[path] = file.read(length)
        return packed

    def _find(self, file: IO[bytes], paths: set[str]) -> None:
        """Record where the source has ``paths``."""
        if paths:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
                while paths and (member := tar.next()) is not None:
                    forget_members(tar)
                    if member.isreg() and member.name in paths:
                        self._places[member.name] = (member.offset_data, member.size)
                        paths.discard(member.name)


async def collect(
    sandbox: Sandbox, originals: Originals, baseline: Baseline, *, trusting_times: bool = False
) -> ChangeSet:
    """Compare ``sandbox`` with ``baseline``, whose files are read from ``originals``.

    ``trusting_times``: read only the files whose times or sizes have changed; for a patch that decides about nothing.
    """
    changed = await sandbox.changed() if trusting_times else None
    try:
        after = await sandbox.manifest() if changed is None else changed
    except OSError as error:
        # Too many files, or programs that take the memory or the disk to list them: the agent's doing.
        return ChangeSet(changes={}, unscorable=f"the workspace's files cannot be listed: {error.strerror or error}")
    # Deciding about hundreds of thousands of files takes seconds, in which other calls want their answers.
    allowed, refusals = await asyncio.to_thread(_divide, baseline, after, partial=changed is not None)
    excess = _excess(allowed.paths)
    if excess:
        return ChangeSet(changes={}, refused=refusals, unscorable=excess)
    new_versions: dict[str, FileVersion | None] = {}
    total = 0
    for path in allowed.paths:
        before, entry = baseline.manifest.get(path), after.get(path)
        old_size, size = (version.size if version is not None else 0 for version in (before, entry))
        limit = MAXIMUM_BYTES - total - old_size
        if size > limit:
            refusals.append(Refusal(path, f"it is too large to carry ({max(old_size, size):,} bytes)"))
            continue
        try:
            new = await _version(sandbox, path, entry, limit)
        except OSError as error:
            # Without permissions, or changed by a program that still runs: the agent's doing, never a fault of ours.
            refusals.append(Refusal(path, f"it cannot be read ({error.strerror or error})"))
            continue
        total += old_size + (len(new.data) if new is not None else 0)
        new_versions[path] = new
    before_them = {path: baseline.manifest[path] for path in new_versions if path in baseline.manifest}
    old_versions = await originals.read(before_them)
    return ChangeSet(
        changes={path: (old_versions.get(path), new) for path, new in new_versions.items()}, refused=refusals
    )


def _divide(
    baseline: Baseline, after: Mapping[str, ManifestEntry | None], *, partial: bool
) -> tuple[Changes, list[Refusal]]:
    """The changes that are carried and those that are not; ``partial``: other paths are as in ``baseline``."""
    before, present = baseline.manifest, {path: entry for path, entry in after.items() if entry is not None}
    links: dict[str, str] = {}
    if partial:
        links = {path: entry.target for path, entry in before.items() if entry.type == "symlink" and path not in after}
        before = {path: before[path] for path in after if path in before}
    changes = compare(before, present)
    changes = Changes(changes.items, links | changes.links)
    return refuse(changes, baseline.policy, baseline.delivered, baseline.built)


def _excess(paths: Sequence[str]) -> str:
    if len(paths) > MAXIMUM_CHANGED_FILES:
        return f"{len(paths):,} files were changed; at most {MAXIMUM_CHANGED_FILES:,} are carried to the verifier"
    size = sum(len(encode_path(path)) for path in paths)
    if size > MAXIMUM_PATH_BYTES:
        return f"the paths of the changed files have {size:,} bytes; at most {MAXIMUM_PATH_BYTES:,} are carried"
    return ""


async def _version(sandbox: Sandbox, path: str, entry: ManifestEntry | None, limit: int) -> FileVersion | None:
    if entry is None:
        return None
    if entry.type == "symlink":
        return FileVersion(encode_path(entry.target), is_symlink=True)
    return FileVersion(await sandbox.read_file(path, limit=limit), stat.S_IMODE(entry.mode))


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an episode when it ended, and the reason of its end.

    ``history``: its steps until then.
    """

    reason: EndReason
    steps: int
    rewrites: int
    seconds: float
    history: Sequence[Step] = ()

    @property
    def doubted(self) -> bool:
        """Whether an ``eval`` ended as one does whose tests cannot run."""
        return any(suggests_doubt(step.observation) for step in self.history)


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
            unscored, ending.reason, f"nothing was scored: {changes.unscorable}", baseline, changes, ending
        )
    plan = verification_plan(task, baseline, changes, suite_cache)
    plan = msgspec.structs.replace(plan, doubted=ending.doubted)
    with span("verify") as verifying:
        verdict = await verify(pristine, plan, open_untouched)
        if verifying is not None:
            verifying.set("dgym.score", verdict.score.score)
            verifying.set("dgym.max_score", verdict.score.max_score)
    required = task.spec.scoring.require_clean
    return await asyncio.to_thread(result, verdict, baseline, changes, ending, require_clean=required)


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
        evaluation=spec.scoring.evaluation,
        hidden_files={file.path: FileVersion(file.data(), file.mode) for file in spec.scoring.hidden_files},
        test_patch=spec.scoring.test_patch,
        build_commands=spec.build_commands,
        protected=baseline.policy.read_only,
        cache=suite_cache,
        solution_paths=solution_paths(task),
    )


def unscored(reason: EndReason, message: str, baseline: Baseline, changes: ChangeSet, ending: Ending) -> Result:
    """The result of an episode that cannot be scored for a reason that is the agent's doing."""
    verdict = Verdict(score=Score(score=0, max_score=0), message=message)
    return result(verdict, baseline, changes, msgspec.structs.replace(ending, reason=reason))


def result(
    verdict: Verdict, baseline: Baseline, changes: ChangeSet, ending: Ending, *, require_clean: bool = False
) -> Result:
    """The result; its reason is Resolved whenever everything that counts passed, else that of ``ending``.

    With ``require_clean`` a verdict counts only with a clean label of integrity.

    Encoding a large patch takes seconds: call it in a thread.
    """
    notes = [f"not carried to the verifier: {refusal.path} ({refusal.why})" for refusal in changes.refused]
    integrity = label(
        verdict.seen,
        [refusal.path for refusal in changes.refused],
        lambda path: path in baseline.manifest and baseline.policy.read_only(path),
        () if baseline.history_hidden else shell_commands(ending.history),
    )
    if require_clean and not integrity.clean:
        verdict = _not_clean(verdict, integrity)
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
        integrity=integrity,
    )


def _not_clean(verdict: Verdict, integrity: Integrity) -> Verdict:
    why = f"scoring.requireClean: the label of integrity is {integrity.label} ({integrity.seen[0].detail})"
    score = Score(score=0, max_score=verdict.score.max_score)
    return msgspec.structs.replace(verdict, score=score, message=f"{why}; {verdict.message}")


def _shortened(notes: Sequence[str]) -> tuple[str, ...]:
    """Not more notes than a person reads: an agent chooses how many files are refused."""
    if len(notes) <= MAXIMUM_NOTES:
        return tuple(notes)
    return (*notes[: MAXIMUM_NOTES - 1], f"and {len(notes) - MAXIMUM_NOTES + 1:,} more notes")
