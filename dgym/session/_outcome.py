"""The result of an episode: the agent's changes, compared with the workspace after the setup, and their score."""

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
from dgym.session._preparation import Baseline, solution_paths
from dgym.session.scoring import (
    OpenUntouched,
    ScoringPlan,
    SuiteCache,
    eval_may_not_have_run,
    label,
    score_changes,
    scored,
    shell_commands,
)
from dgym.tracing import span
from dgym.wire import EndReason, Result, Step
from dgym.workspace import Changes, Refusal, compare, encode_path, refuse
from dgym.workspace.patches import FileVersion, write_patch
from dgym.workspace.sources import forget_members

MAXIMUM_BYTES = 6 * 1024**2
"""Limit for both versions of all changed files together. The patch, the result and the response hold several copies of
them in the memory of a sidecar, which is limited to 128 MiB."""
MAXIMUM_CHANGED_FILES = 25_000
MAXIMUM_PATH_BYTES = 8 * 1024**2
MAXIMUM_NOTES = 200


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's changes that the verifier receives, and the refused changes.

    Attributes:
        changes: For each path the file before and after the change. None if it did not or does not exist.
        refused: The changes that the verifier does not receive, with the reasons.
        unscorable: Why nothing can be scored, for example too many changes. ``changes`` is empty then.
    """

    changes: dict[str, tuple[FileVersion | None, FileVersion | None]]
    refused: Sequence[Refusal] = ()
    unscorable: str = ""

    @property
    def new_versions(self) -> dict[str, FileVersion | None]:
        """The files to write into the verifier's workspace. None for a deleted file."""
        return {path: new for path, (_, new) in self.changes.items()}

    @property
    def patch(self) -> bytes:
        """The changes in the format of ``git apply``."""
        return write_patch(self.changes)


class Originals:
    """Reads files of the untouched repository.

    They are read from the packed source if the setup did not change them, else from a verifier. Starting a verifier
    takes longer than everything else that a patch needs, so it is avoided where possible.
    """

    def __init__(self, source: Path | None, verifier: Callable[[], Awaitable[Sandbox]]) -> None:
        self._source = source
        self._verifier = verifier
        self._places: dict[str, tuple[int, int]] = {}

    async def read(self, paths: Mapping[str, ManifestEntry]) -> dict[str, FileVersion]:
        """Return the file at each of ``paths``. The entries describe the expected contents."""
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
        """Record the offsets of ``paths`` in the source."""
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

    Args:
        sandbox: The agent's sandbox.
        originals: Reads the files of the untouched repository.
        baseline: The workspace before the agent's first action.
        trusting_times: Read only the files whose times or sizes have changed. An agent can forge times, so do not use
            it for a patch that is scored.
    """
    changed = await sandbox.changed() if trusting_times else None
    try:
        after = await sandbox.manifest() if changed is None else changed
    except OSError as error:
        # The agent caused it: there are too many files, or programs that use up the memory or the disk needed to list
        # them.
        return ChangeSet(changes={}, unscorable=f"the workspace's files cannot be listed: {error.strerror or error}")
    # For hundreds of thousands of files this takes seconds. It must not block other requests.
    allowed, refusals = await asyncio.to_thread(_divide, baseline, after, partial=changed is not None)
    excess = _exceeded_limit(allowed.paths)
    if excess:
        return ChangeSet(changes={}, refused=refusals, unscorable=excess)
    new_versions: dict[str, FileVersion | None] = {}
    total = 0
    for path in allowed.paths:
        before, entry = baseline.manifest.get(path), after.get(path)
        old_size, size = (version.size if version is not None else 0 for version in (before, entry))
        limit = MAXIMUM_BYTES - total - old_size
        if size > limit:
            refusals.append(Refusal(path, f"it is too large to copy ({max(old_size, size):,} bytes)"))
            continue
        try:
            new = await _version(sandbox, path, entry, limit)
        except OSError as error:
            # The agent caused it: it removed the permissions, or a program that still runs changed the file.
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
    """Divide the changes into allowed and refused. If ``partial``, paths that are not in ``after`` are unchanged."""
    before, present = baseline.manifest, {path: entry for path, entry in after.items() if entry is not None}
    links: dict[str, str] = {}
    if partial:
        links = {path: entry.target for path, entry in before.items() if entry.type == "symlink" and path not in after}
        before = {path: before[path] for path in after if path in before}
    changes = compare(before, present)
    changes = Changes(changes.items, links | changes.links)
    return refuse(changes, baseline.policy, baseline.delivered, baseline.built)


def _exceeded_limit(paths: Sequence[str]) -> str:
    if len(paths) > MAXIMUM_CHANGED_FILES:
        return f"{len(paths):,} files were changed; at most {MAXIMUM_CHANGED_FILES:,} are copied to the verifier"
    size = sum(len(encode_path(path)) for path in paths)
    if size > MAXIMUM_PATH_BYTES:
        return f"the paths of the changed files have {size:,} bytes; at most {MAXIMUM_PATH_BYTES:,} are copied"
    return ""


async def _version(sandbox: Sandbox, path: str, entry: ManifestEntry | None, limit: int) -> FileVersion | None:
    if entry is None:
        return None
    if entry.type == "symlink":
        return FileVersion(encode_path(entry.target), is_symlink=True)
    return FileVersion(await sandbox.read_file(path, limit=limit), stat.S_IMODE(entry.mode))


async def score(
    pristine: Sandbox,
    task: DebugTask,
    baseline: Baseline,
    changes: ChangeSet,
    trajectory: Sequence[Step] = (),
    suite_cache: SuiteCache | None = None,
    open_untouched: OpenUntouched | None = None,
) -> Result:
    """Score ``changes`` in ``pristine``, which cannot be used again. See ``score_changes``.

    The reason of the result is Resolved if everything that counts passed, else Unresolved. With
    ``scoring.requireClean`` the score is 0 unless the integrity label is clean. ``trajectory`` has the agent's steps.
    """
    if changes.unscorable:
        return await unscored(f"nothing was scored: {changes.unscorable}", baseline, changes, trajectory)
    plan = scoring_plan(task, baseline, changes, suite_cache)
    # True if an ``eval`` of the agent ended as if the tests could not run.
    doubted = any(eval_may_not_have_run(step.observation) for step in trajectory)
    with span("score") as scoring:
        result = await score_changes(pristine, msgspec.structs.replace(plan, doubted=doubted), open_untouched)
        if scoring is not None:
            scoring.set("dgym.score", result.score)
            scoring.set("dgym.max_score", result.max_score)
    result = await asyncio.to_thread(_with_changes, result, baseline, changes, trajectory)
    return _if_clean(result) if task.spec.scoring.require_clean else result


async def unscored(why: str, baseline: Baseline, changes: ChangeSet, trajectory: Sequence[Step] = ()) -> Result:
    """The result of an episode that cannot be scored because of what the agent did."""
    return await asyncio.to_thread(_with_changes, scored(0, 0, message=why), baseline, changes, trajectory)


def scoring_plan(
    task: DebugTask, baseline: Baseline, changes: ChangeSet, suite_cache: SuiteCache | None
) -> ScoringPlan:
    """The plan by which the verifier scores ``changes``."""
    return ScoringPlan(
        spec=task.spec,
        changed=changes.new_versions,
        protected=baseline.policy.read_only,
        cache=suite_cache,
        solution_paths=solution_paths(task),
    )


def _with_changes(result: Result, baseline: Baseline, changes: ChangeSet, trajectory: Sequence[Step]) -> Result:
    """Return ``result`` with the patch and the integrity label. Blocks for seconds if the patch is large."""
    refused = [f"not copied to the verifier: {refusal.path} ({refusal.why})" for refusal in changes.refused]
    integrity = label(
        result.integrity.seen if result.integrity is not None else (),
        [refusal.path for refusal in changes.refused],
        lambda path: path in baseline.manifest and baseline.policy.read_only(path),
        () if baseline.history_hidden else shell_commands(trajectory),
    )
    return msgspec.structs.replace(
        result,
        notes=_shortened([*result.notes, *refused]),
        patch=changes.patch.decode("utf-8", "surrogateescape"),
        integrity=integrity,
    )


def _if_clean(result: Result) -> Result:
    if result.integrity is None or result.integrity.clean:
        return result
    why = f"scoring.requireClean: the label of integrity is review ({result.integrity.seen[0].detail})"
    message = f"{why}; {result.message}"
    return msgspec.structs.replace(result, resolved=False, reason=EndReason.UNRESOLVED, score=0, message=message)


def _shortened(notes: Sequence[str]) -> tuple[str, ...]:
    """Limit the number of notes, because an agent can cause any number of refused files."""
    if len(notes) <= MAXIMUM_NOTES:
        return tuple(notes)
    return (*notes[: MAXIMUM_NOTES - 1], f"and {len(notes) - MAXIMUM_NOTES + 1:,} more notes")
